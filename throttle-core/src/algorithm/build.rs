//! From the builders that users write to an [`Algorithm`].

use super::calendar_quota::{CalendarQuota, Cut};
use super::dispatch::{Algorithm, Kind};
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::interval_bucket::IntervalBucket;
use super::leaky_bucket::LeakyBucket;
use super::leaky_meter::LeakyMeter;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::token_bucket::TokenBucket;
use crate::error::ConfigError;

/// Something that builds an algorithm: the builders of this module, or an [`Algorithm`] itself.
///
/// ```
/// use throttle_core::{Gcra, IntoAlgorithm, Rate};
///
/// assert_eq!(Gcra::new(Rate::per_second(10)).burst(2).into_algorithm()?.capacity(), 2);
/// assert!(Gcra::new(Rate::per_second(10)).burst(0).into_algorithm().is_err());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
///
/// # Contract
///
/// Builders that are equal give equal algorithms: nothing else, such as the time, has an influence. A setting out of
/// its bounds is an error that names the setting, the value and the bound, and never a panic.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an algorithm",
    label = "expected an algorithm such as `Gcra::new(Rate::per_second(10))`",
    note = "write one of Gcra, TokenBucket, LeakyMeter, IntervalBucket, FixedWindow, SlidingWindow, SlidingLog, \
            CalendarQuota or LeakyBucket around a `Rate`; a bare rate does not say how it is enforced"
)]
pub trait IntoAlgorithm {
    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// As the builder's own `build` does.
    fn into_algorithm(self) -> Result<Algorithm, ConfigError>;
}

impl IntoAlgorithm for Algorithm {
    fn into_algorithm(self) -> Result<Algorithm, ConfigError> {
        Ok(self)
    }
}

macro_rules! builders {
    ($($(#[doc = $errors:literal])+ $builder:ident)*) => {$(
        impl $builder {
            /// Checks the configuration.
            ///
            /// # Errors
            ///
            $(#[doc = $errors])+
            pub fn build(self) -> Result<Algorithm, ConfigError> {
                let (kernel, rate) = self.kernel()?;
                Ok(Algorithm::from_kind(Kind::$builder(kernel), rate))
            }
        }

        impl IntoAlgorithm for $builder {
            fn into_algorithm(self) -> Result<Algorithm, ConfigError> {
                self.build()
            }
        }
    )*};
}

builders! {
    /// If the count, period or burst is 0 or cannot be counted exactly below 2^53; the message states the bound.
    Gcra

    /// If the count, period or burst is 0 or cannot be counted exactly below 2^53; the message states the bound.
    TokenBucket

    /// If the count, period or capacity is 0 or cannot be counted exactly below 2^53; the message states the bound.
    LeakyMeter

    /// If capacity, refill or interval is 0 or above 2^53 − 1, or if an empty bucket takes 2^53 µs or more to fill.
    IntervalBucket

    /// If the count or the period in microseconds is 0 or above 2^53 − 1.
    FixedWindow

    /// If the count or period is 0 or too large, the number of buckets is not 1 to 1024 or does not divide the period,
    /// or count × sub-window in µs reaches 2^53.
    SlidingWindow

    /// If the count or the period in microseconds is 0 or above 2^53 − 1.
    SlidingLog

    /// If the rate's count or period is 0, or the longest wait cannot be counted exactly below 2^53; the message states
    /// the bound.
    LeakyBucket
}

impl CalendarQuota {
    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// If the limit or a period in microseconds is 0 or above 2^53 − 1, or the offset exceeds 14 hours.
    pub fn build(self) -> Result<Algorithm, ConfigError> {
        let (cut, rate) = self.kernel()?;
        let kind = match cut {
            Cut::Civil(counter) => Kind::CalendarQuota(counter),
            Cut::Fixed(counter) => Kind::FixedWindow(counter),
            Cut::Rolling(portions) => Kind::IntervalBucket(portions),
        };
        Ok(Algorithm::from_kind(kind, rate))
    }
}

impl IntoAlgorithm for CalendarQuota {
    fn into_algorithm(self) -> Result<Algorithm, ConfigError> {
        self.build()
    }
}
