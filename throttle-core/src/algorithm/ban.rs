//! Keys that do not stop: how strikes become bans, and how bans grow.
//!
//! A strike is a step of its own behind the refusal or the response, and no part of the decision.
//! In the decision it would make every refusal a write, in all algorithms and in both texts that
//! decide on Redis, and "a refusal never consumes" would depend on the configuration. The price: a
//! request that is decided between a refusal and its strike is not yet refused by the ban that the
//! strike begins.

use std::time::Duration;

use super::exception::{Exception, Strikes, Treatment};
use crate::error::ConfigError;
use crate::time::{Timestamp, micros_ceil};

/// When strikes become a ban, and how long bans last. A strike is a refusal, or a response that
/// counts as one.
///
/// The first ban lasts [`lasting`](Self::lasting). Each further one lasts
/// [`growing`](Self::growing) times as long as the one before, at most [`up_to`](Self::up_to).
/// While a key is banned its strikes are not counted. A client that stays away for
/// [`forgotten_after`](Self::forgotten_after) begins anew.
///
/// ```
/// use std::time::Duration;
/// use throttle_core::backend::Ban;
///
/// let ban = Ban::after(5)
///     .lasting(Duration::from_secs(600))
///     .growing(2)
///     .up_to(Duration::from_secs(3_600));
/// assert!(ban.check().is_ok());
/// let lengths = [0, 1, 2, 3, 4].map(|bans_before| ban.length(bans_before).as_secs());
/// assert_eq!(lengths, [600, 1_200, 2_400, 3_600, 3_600]);
/// assert!(
///     ban.growing(0)
///         .check()
///         .unwrap_err()
///         .to_string()
///         .contains("between 1 and 100")
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Ban {
    after: u32,
    growth: u32,
    within: Duration,
    length: Duration,
    up_to: Duration,
    forgotten_after: Duration,
    even_if_spoofable: bool,
}

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;
/// Of all durations. Sums of them stay whole numbers in the store's doubles.
const LONGEST: Duration = Duration::from_secs(3_650 * DAY);

impl Ban {
    /// A ban after so many strikes, from 1 to 1,000,000.
    pub const fn after(strikes: u32) -> Self {
        Self {
            after: strikes,
            growth: 2,
            within: Duration::from_secs(10 * MINUTE),
            length: Duration::from_secs(10 * MINUTE),
            up_to: Duration::from_secs(DAY),
            forgotten_after: Duration::from_secs(7 * DAY),
            even_if_spoofable: false,
        }
    }

    /// Sets for how long a strike counts. The count begins anew with the first strike that is later
    /// than this after the one that began it. Defaults to 10 minutes.
    pub const fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Sets the length of the first ban. Defaults to 10 minutes.
    pub const fn lasting(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Sets how many times longer each ban is than the one before, from 1 to 100. After 20 bans
    /// they grow no more. Defaults to 2.
    pub const fn growing(mut self, factor: u32) -> Self {
        self.growth = factor;
        self
    }

    /// Sets the length of the longest ban. Defaults to 1 day.
    pub const fn up_to(mut self, longest: Duration) -> Self {
        self.up_to = longest;
        self
    }

    /// Sets how long after the end of a ban the next one is a first one again. Defaults to 7 days.
    pub const fn forgotten_after(mut self, time: Duration) -> Self {
        self.forgotten_after = time;
        self
    }

    /// Bans keys also where a client can send requests with another client's key: because something
    /// before this process prevents that. Backends ignore it. Defaults to `false`: a layer that
    /// could let one client ban another is not built.
    pub const fn even_if_spoofable(mut self) -> Self {
        self.even_if_spoofable = true;
        self
    }

    /// Returns whether it bans keys also [where clients can choose
    /// them](Self::even_if_spoofable).
    #[must_use]
    pub const fn is_even_if_spoofable(&self) -> bool {
        self.even_if_spoofable
    }

    /// Checks it. Layers call it when they are built.
    ///
    /// # Errors
    ///
    /// If a number is 0 or beyond its bound, a duration is 0 or longer than 10 years, or the
    /// longest ban is shorter than the first one.
    pub fn check(&self) -> Result<(), ConfigError> {
        let number = |field, value: u32, most: u32| match value {
            value if (1..=most).contains(&value) => Ok(()),
            _ => Err(ConfigError::new(
                field,
                value,
                format!("it must be between 1 and {most}"),
            )),
        };
        number("after", self.after, 1_000_000)?;
        number("growing", self.growth, 100)?;
        for (field, time) in [
            ("within", self.within),
            ("lasting", self.length),
            ("up_to", self.up_to),
            ("forgotten_after", self.forgotten_after),
        ] {
            if time.is_zero() || time > LONGEST {
                return Err(ConfigError::new(
                    field,
                    format_args!("{time:?}"),
                    "it must be between 1 µs and 3650 days",
                ));
            }
        }
        if self.up_to < self.length {
            let rule = format!(
                "it must be at least the length of the first ban, {:?}; raise it",
                self.length
            );
            return Err(ConfigError::new(
                "up_to",
                format_args!("{:?}", self.up_to),
                rule,
            ));
        }
        Ok(())
    }

    /// Returns the length of a ban after so many before it that are not forgotten, in whole µs.
    #[must_use]
    pub fn length(&self, bans_before: u8) -> Duration {
        let [_, growth, _, length, up_to, _] = self.numbers();
        let grown = |length: u64, _| length.saturating_mul(growth).min(up_to);
        Duration::from_micros((0..bans_before.min(Strikes::TOP)).fold(length, grown))
    }

    /// Returns its numbers, as a store that strikes elsewhere needs them: strikes, and growth; then
    /// in µs, rounded up, the time within which they count, the first length, the longest one, and
    /// the time after which a ban is forgotten.
    #[must_use]
    pub fn numbers(&self) -> [u64; 6] {
        let [within, length, up_to, forgotten_after] =
            [self.within, self.length, self.up_to, self.forgotten_after].map(micros_ceil);
        [
            self.after.into(),
            self.growth.into(),
            within,
            length,
            up_to,
            forgotten_after,
        ]
    }

    /// Adds a strike at `now` to what stands over a key's state. Backends call it in one atomic
    /// step. Nothing is to be written if it returns `None`: the key is banned, or an exception that
    /// an operator has set stands.
    ///
    /// A ban that ends later than the longest one from now on is shortened to that: the clock was
    /// set back, or the longest one was lowered. Without a strike, such a ban lasts until the clock
    /// has reached its end, as other waits do.
    ///
    /// ```
    /// use throttle_core::Timestamp;
    /// use throttle_core::backend::{Ban, Treatment};
    ///
    /// let ban = Ban::after(2);
    /// let first = ban.strike(None, Timestamp::EPOCH).expect("it counts");
    /// let second = ban
    ///     .strike(Some(&first.exception), Timestamp::EPOCH)
    ///     .expect("it counts");
    /// assert_eq!((first.is_ban, second.is_ban), (false, true));
    /// assert_eq!(
    ///     ban.strike(Some(&second.exception), Timestamp::EPOCH),
    ///     None,
    ///     "the key is banned"
    /// );
    /// ```
    #[must_use]
    pub fn strike(&self, over: Option<&Exception>, now: Timestamp) -> Option<StrikeOutcome> {
        let [after, _, within, _, up_to, forgotten_after] = self.numbers();
        let mut key = match over.filter(|over| now < over.until) {
            None => Strikes {
                banned_until: Timestamp::MIN,
                since: now,
                strikes: 0,
                level: 0,
            },
            Some(Exception {
                treatment: Treatment::Struck(strikes),
                ..
            }) => *strikes,
            Some(_) => return None,
        };
        let mut is_ban = false;
        if now < key.banned_until {
            let latest = now.after_micros(up_to);
            if key.banned_until <= latest {
                return None;
            }
            key.banned_until = latest;
        } else {
            if key.banned_until.after_micros(forgotten_after) <= now {
                key.level = 0;
            }
            if key.strikes == 0 || key.since.after_micros(within) < now {
                (key.strikes, key.since) = (0, now);
            }
            (key.strikes, key.since) = (key.strikes.saturating_add(1), key.since.min(now));
            is_ban = u64::from(key.strikes) >= after;
        }
        if is_ban {
            key.banned_until = now + self.length(key.level);
            (key.level, key.strikes) = (Strikes::TOP.min(key.level + 1), 0);
        }
        let counted = if key.strikes > 0 {
            key.since.after_micros(within.saturating_add(1))
        } else {
            now
        };
        let forgotten = if key.level == 0 {
            now
        } else {
            key.banned_until.after_micros(forgotten_after)
        };
        Some(StrikeOutcome {
            exception: Exception {
                treatment: Treatment::Struck(key),
                until: counted.max(forgotten),
            },
            is_ban,
        })
    }
}

/// What a strike has made of a key: see [`Ban::strike`].
///
/// ```
/// use throttle_core::Timestamp;
/// use throttle_core::backend::{Ban, Treatment};
///
/// let struck = Ban::after(1).strike(None, Timestamp::EPOCH).expect("it counts");
/// let Treatment::Struck(strikes) = struck.exception.treatment else { panic!("a strike") };
/// assert_eq!((strikes.banned_until.as_micros(), strikes.level), (600_000_000, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrikeOutcome {
    /// What stands over the key's state from now on.
    pub exception: Exception,
    /// Whether this strike has begun a ban.
    pub is_ban: bool,
}
