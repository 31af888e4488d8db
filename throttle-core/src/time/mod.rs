//! Time as the algorithms see it: whole microseconds since the Unix epoch, and where they come
//! from.

mod manual;
mod system;

use core::fmt;
use core::time::Duration;

pub use manual::ManualClock;
pub use system::SystemClock;

/// The largest integer below which every integer is exact in an IEEE double, as Redis scripts
/// compute: 2^53 − 1.
pub(crate) const EXACT_MAX: u64 = (1 << 53) - 1;

/// An instant: whole microseconds since 1970-01-01T00:00:00Z, leap seconds not counted, negative
/// before it.
///
/// Values are kept within ±(2^53 − 1) µs (the years 1684 to 2255), so that the difference of any
/// two instants fits an `i64` and every instant is exact in the doubles that a Redis script
/// computes with.
///
/// ```
/// use throttle_core::Timestamp;
///
/// let noon = Timestamp::from_micros(43_200_000_000);
/// assert_eq!(noon.as_micros(), 12 * 3_600 * 1_000_000);
/// assert_eq!(Timestamp::from_micros(i64::MAX), Timestamp::MAX, "the nearest that there is");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest instant: −(2^53 − 1) µs.
    pub const MIN: Self = Self(-(EXACT_MAX as i64));
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// The latest instant: 2^53 − 1 µs, in the year 2255.
    pub const MAX: Self = Self(EXACT_MAX as i64);

    /// An instant `micros` microseconds after the epoch. Values outside
    /// [`MIN`](Self::MIN)..=[`MAX`](Self::MAX) become the nearer of the two.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        if micros.unsigned_abs() <= EXACT_MAX {
            Self(micros)
        } else if micros < 0 {
            Self::MIN
        } else {
            Self::MAX
        }
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The instant `micros` µs later, at most [`MAX`](Self::MAX).
    #[must_use]
    pub const fn after_micros(self, micros: u64) -> Self {
        let micros = if micros > i64::MAX as u64 {
            i64::MAX
        } else {
            micros as i64
        };
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// Microseconds from `earlier` to `self`, negative when `earlier` is in fact the later one.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }
}

impl core::ops::Add<Duration> for Timestamp {
    type Output = Self;

    /// The instant a duration later, rounded up to the next microsecond, at most
    /// [`Timestamp::MAX`].
    fn add(self, duration: Duration) -> Self {
        self.after_micros(micros_ceil(duration))
    }
}

impl fmt::Display for Timestamp {
    /// Seconds since the epoch with six decimals: `1790000000.000001`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let micros = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

/// Whole microseconds, a part of one counting as one; at most `u64::MAX`.
pub(crate) fn micros_ceil(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    u64::try_from(nanos.div_ceil(1_000)).unwrap_or(u64::MAX)
}

/// The clock of a backend.
///
/// ```
/// use throttle_core::{Clock, Timestamp};
///
/// /// Whole seconds only.
/// #[derive(Clone)]
/// struct Coarse<C>(C);
///
/// impl<C: Clock> Clock for Coarse<C> {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_micros(self.0.now().as_micros() / 1_000_000 * 1_000_000)
///     }
/// }
///
/// let clock = Coarse(throttle_core::ManualClock::new(Timestamp::from_micros(1_700_000)));
/// assert_eq!(clock.now(), Timestamp::from_micros(1_000_000));
/// ```
///
/// # Contract
///
/// ## Clones
///
/// Clones read the same clock.
///
/// ## Speed
///
/// Reading the clock neither blocks nor allocates: it happens in every decision.
///
/// ## Steps
///
/// The clock need not be monotonic: every algorithm holds its bounds when the clock steps in either
/// direction. When a clock steps back, requests may have to wait until it has caught up, with GCRA
/// as long as the step:
///
/// ```
/// use std::time::Duration;
/// use throttle_core::{
///     Gcra, Limiter, ManualClock, MemoryBackend, Policy, PolicySet, Rate, Timestamp,
/// };
///
/// let clock = ManualClock::new(Timestamp::EPOCH + Duration::from_secs(600));
/// let store = MemoryBackend::builder().clock(clock.clone()).build();
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_second(1)))?)?;
/// let limiter = Limiter::new(store, set)?;
/// assert!(limiter.check("ada", 1).is_admitted());
/// clock.set(Timestamp::EPOCH);
/// assert_eq!(
///     limiter.check("ada", 1).retry_after(),
///     Some(Duration::from_secs(601))
/// );
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
pub trait Clock: Clone + Send + Sync + 'static {
    /// The present instant.
    fn now(&self) -> Timestamp;
}
