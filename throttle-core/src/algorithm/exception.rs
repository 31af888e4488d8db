//! What stands over a key's state until an instant, and how it is written.

use std::sync::Arc;

use super::kind::Algorithm;
use super::wire::{double, instant, read};
use crate::error::ConfigError;
use crate::policy::Policy;
use crate::time::Timestamp;

/// A key treated otherwise until an instant: exempt, blocked, or under another limit. It lies over the key's state, and
/// is over by itself.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::backend::{Exception, Treatment};
/// use throttle_core::{Backend, Gcra, Key, Limiter, ManualClock, MemoryBackend, Policy, PolicySet, Rate, Timestamp};
///
/// let clock = ManualClock::new(Timestamp::EPOCH);
/// let memory = MemoryBackend::builder().clock(clock.clone()).build();
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let limiter = Limiter::new(memory.clone(), set.clone())?;
/// let set = Arc::new(memory.prepare(set)?);
///
/// let until = Timestamp::from_micros(3_600_000_000);
/// let _ = memory.except(&set, 0, &Key::from("ada"), Some(Exception { treatment: Treatment::Blocked, until }));
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
    /// These parameters decide in place of the call's. [`Policy::own`] checks them. What they charge is neither given
    /// back nor corrected later.
    Limit(Arc<Algorithm>),
}

impl Exception {
    /// Checks it for a key of `policy`. Backends call it before they store an exception.
    ///
    /// # Errors
    ///
    /// If it is over at `now`, where that is known, or if its limit takes more than 100 times as long as the policy, or
    /// one of its tiers, to recover from full use, or the reverse.
    pub fn check(&self, policy: &Policy, now: Option<Timestamp>) -> Result<(), ConfigError> {
        if let Some(now) = now.filter(|now| self.until <= *now) {
            let rule = format!("it must be after the present time of the store, {now}; to end an exception, lift it");
            return Err(ConfigError::new("until", self.until, rule).in_policy(policy.name()));
        }
        match &self.treatment {
            Treatment::Limit(limit) => policy.own(**limit).map(drop),
            Treatment::Exempt | Treatment::Blocked => Ok(()),
        }
    }

    /// The bytes that stand before those of the state: `x`, then `e` (exempt), `b` (blocked) or `l` (limit), the last
    /// instant as a double in µs, little endian, and the [tag](Algorithm::tag) of the limit.
    #[must_use]
    pub fn to_wire(&self) -> Vec<u8> {
        let (letter, tag) = match &self.treatment {
            Treatment::Exempt => (b'e', Vec::new()),
            Treatment::Blocked => (b'b', Vec::new()),
            Treatment::Limit(limit) => (b'l', limit.tag()),
        };
        [&[b'x', letter][..], &double(self.until.as_micros()), &tag].concat()
    }

    /// The exception that some bytes begin with, and the bytes behind it, which are those of the state; none where the
    /// key was unused. Any bytes may be passed.
    #[must_use]
    pub fn from_wire(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[b'x', letter], rest) = bytes.split_first_chunk()? else { return None };
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
            _ => return None,
        };
        Some((Self { treatment, until }, rest))
    }
}
