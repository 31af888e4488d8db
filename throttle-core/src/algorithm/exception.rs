//! What stands over a key's state until an instant, and how it is written.

use std::sync::Arc;

use super::kind::Algorithm;
use super::wire::{amounts, double, instant, read, write};
use crate::error::ConfigError;
use crate::policy::Policy;
use crate::time::Timestamp;

/// A key treated otherwise until an instant: exempt, blocked, or under another limit. It lies over
/// the key's state, and is over by itself.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::{Exception, KeyStep, Treatment};
/// use throttle_core::{
///     Backend, Gcra, Key, Limiter, ManualClock, MemoryBackend, Policy, PolicySet, Rate, Timestamp,
/// };
///
/// let clock = ManualClock::new(Timestamp::EPOCH);
/// let memory = MemoryBackend::builder().clock(clock.clone()).build();
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let limiter = Limiter::new(memory.clone(), set.clone())?;
/// let set = Arc::new(memory.prepare(set)?);
///
/// let until = Timestamp::from_micros(3_600_000_000);
/// let blocked = Exception { treatment: Treatment::Blocked, until };
/// let _ = memory.run(&set, 0, KeyStep::Except(Key::from("ada"), Some(blocked)));
/// assert!(!limiter.check("ada", 1).is_admitted());
/// clock.set(until);
/// assert!(limiter.check("ada", 1).is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// How the key is treated.
    pub treatment: Treatment,
    /// The first instant, by the store's clock, at which it is not treated so any more.
    pub until: Timestamp,
}

/// How a key with an [`Exception`] is treated.
///
/// ```
/// use throttle_core::backend::Treatment;
/// use throttle_core::{Gcra, Policy, Rate};
///
/// let policy = Policy::new("per-user", Gcra::new(Rate::per_minute(60)))?;
/// let raised = Treatment::Limit(policy.own(Gcra::new(Rate::per_minute(600)))?);
/// assert_ne!(raised, Treatment::Exempt);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Costs up to the capacity are admitted, and nothing is charged.
    Exempt,
    /// Nothing is admitted.
    Blocked,
    /// These parameters decide in place of the call's. [`Policy::own`] checks them. What they
    /// charge is neither given back nor corrected later.
    Limit(Arc<Algorithm>),
    /// Nothing is admitted while the key is banned; before and after that it is decided as usual.
    /// The exception is over when all strikes and bans are forgotten.
    Struck(Strikes),
}

/// The strikes of a key, which [`KeyStep::Strike`](crate::backend::KeyStep::Strike) counts.
///
/// ```
/// use throttle_core::backend::{Exception, Strikes, Treatment};
/// use throttle_core::{Gcra, Rate, Timestamp};
///
/// let banned_until = Timestamp::from_micros(60_000_000);
/// let strikes = Strikes { banned_until, since: Timestamp::EPOCH, strikes: 0, level: 1 };
/// let over = Exception { treatment: Treatment::Struck(strikes), until: Timestamp::MAX };
/// let gcra = Gcra::new(Rate::per_day(9)).build()?;
/// let (banned, verdict) = gcra.decide(gcra.fresh().excepted(Some(over)), Timestamp::EPOCH, 1);
/// assert_eq!(verdict.retry_after_micros(), Some(60_000_000));
/// assert!(gcra.decide(banned, banned_until, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strikes {
    /// The end of the last ban; [`Timestamp::MIN`] if there was none.
    pub banned_until: Timestamp,
    /// When the first of the strikes was made that count now.
    pub since: Timestamp,
    /// How many count now.
    pub strikes: u32,
    /// Bans that are not forgotten, at most 20.
    pub level: u8,
}

impl Exception {
    /// Checks it for a key of `policy`. Backends call it before they store an exception.
    ///
    /// # Errors
    ///
    /// If it is over at `now`, where that is known, or if its limit takes more than 100 times as
    /// long as the policy, or one of its tiers, to recover from full use, or the reverse.
    pub fn check(&self, policy: &Policy, now: Option<Timestamp>) -> Result<(), ConfigError> {
        if let Some(now) = now.filter(|now| self.until <= *now) {
            let rule = format!(
                "it must be after the present time of the store, {now}; to end an exception, lift \
                    it"
            );
            return Err(ConfigError::new("until", self.until, rule).in_policy(policy.name()));
        }
        match &self.treatment {
            Treatment::Limit(limit) => policy.own(**limit).map(drop),
            Treatment::Exempt | Treatment::Blocked | Treatment::Struck(_) => Ok(()),
        }
    }

    /// The first instant at which the key is decided as usual again.
    #[must_use]
    pub fn ends(&self) -> Timestamp {
        match &self.treatment {
            Treatment::Struck(strikes) => self.until.min(strikes.banned_until),
            Treatment::Exempt | Treatment::Blocked | Treatment::Limit(_) => self.until,
        }
    }

    /// The bytes that stand before those of the state: `x`, then `e` (exempt), `b` (blocked), `l`
    /// (limit) or `s` (struck), the last instant as a double in µs, little endian, and the
    /// [tag](Algorithm::tag) of the limit, or the four numbers of [`Strikes`] in their order, each
    /// a double.
    #[must_use]
    pub fn to_wire(&self) -> Vec<u8> {
        let (letter, tag) = match &self.treatment {
            Treatment::Exempt => (b'e', Vec::new()),
            Treatment::Blocked => (b'b', Vec::new()),
            Treatment::Limit(limit) => (b'l', limit.tag()),
            Treatment::Struck(Strikes {
                banned_until,
                since,
                strikes,
                level,
            }) => {
                let mut bytes = Vec::new();
                let numbers = [
                    banned_until.as_micros(),
                    since.as_micros(),
                    (*strikes).into(),
                    (*level).into(),
                ];
                write(&mut bytes, &numbers);
                (b's', bytes)
            }
        };
        [&[b'x', letter][..], &double(self.until.as_micros()), &tag].concat()
    }

    /// The exception that some bytes begin with, and the bytes behind it, which are those of the
    /// state; none where the key was unused. Any bytes may be passed.
    #[must_use]
    pub fn from_wire(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[b'x', letter], rest) = bytes.split_first_chunk()? else {
            return None;
        };
        let (until, mut rest) = rest.split_at_checked(8)?;
        let until = Timestamp::from_micros(instant(*read(until)?.first()?)?);
        let treatment = match letter {
            b'e' => Treatment::Exempt,
            b'b' => Treatment::Blocked,
            b'l' => {
                let limit = Algorithm::from_tag(rest)?;
                rest = &rest[limit.tag().len()..];
                Treatment::Limit(Arc::new(limit))
            }
            b's' => {
                let (numbers, beneath) = rest.split_at_checked(32)?;
                rest = beneath;
                Treatment::Struck(Strikes::of(&read(numbers)?)?)
            }
            _ => return None,
        };
        Some((Self { treatment, until }, rest))
    }
}

impl Strikes {
    /// From this level on, bans grow no more.
    pub(super) const TOP: u8 = 20;

    fn of(numbers: &[i64]) -> Option<Self> {
        let (&[banned_until, since], counts) = numbers.split_first_chunk()?;
        let [banned_until, since] =
            [instant(banned_until)?, instant(since)?].map(Timestamp::from_micros);
        let [strikes, level] = amounts(counts)?;
        let level = u8::try_from(level)
            .ok()
            .filter(|level| *level <= Self::TOP)?;
        Some(Self {
            banned_until,
            since,
            strikes: u32::try_from(strikes).ok()?,
            level,
        })
    }
}
