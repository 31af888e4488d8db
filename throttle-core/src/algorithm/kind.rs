//! One type for all algorithms, and the table of them.

use super::calendar_quota::{CalendarQuota, Civil, Cut};
use super::fixed_window::{Counter, FixedWindow, FixedWindows};
use super::gcra::{Arrival, Gcra};
use super::interval_bucket::{IntervalBucket, Portions};
use super::leaky_bucket::{LeakyBucket, Queue};
use super::leaky_meter::LeakyMeter;
use super::level::{LevelBucket, Tokens, Water};
use super::sliding_log::{SlidingLog, TrailingLog};
use super::sliding_window::{Estimate, SlidingWindow};
use super::token_bucket::TokenBucket;
use super::wire::{Wire, read};
use crate::error::ConfigError;
use crate::rate::Rate;

/// A validated algorithm, ready to decide.
///
/// ```
/// use throttle_core::algorithm::{Algorithm, Gcra};
/// use throttle_core::{Rate, Timestamp};
///
/// let gcra = Gcra::new(Rate::per_second(10)).burst(2).build()?;
/// let now = Timestamp::EPOCH;
/// let (state, first) = gcra.decide(gcra.fresh(), now, 2);
/// let (state, second) = gcra.decide(state, now, 1);
/// assert!(first.is_admitted() && !second.is_admitted());
/// assert_eq!(second.retry_after_micros(), Some(100_000));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm {
    pub(super) kind: Kind,
    pub(super) rate: Rate,
}

/// The table of algorithms. From it follow the type that holds any of them, the builders' `build`,
/// and the way back from the parameters in a tag to a builder.
macro_rules! algorithms {
    ($d:tt $($(#[doc = $errors:literal])+ $builder:ident($kernel:ty) $name:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub(super) enum Kind {
            $($builder($kernel)),*
        }

        /// Runs one expression for whichever algorithm it is.
        macro_rules! each {
            ($d kind:expr, $d algorithm:ident => $d run:expr) => {
                match $d kind {
                    $(Kind::$builder($d algorithm) => $d run),*
                }
            };
        }

        impl Algorithm {
            #[doc = concat!("The name of the algorithm:", $(" `", $name, "`",)* ".")]
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self.kind {
                    $(Kind::$builder(_) => $name),*
                }
            }

            /// The algorithm whose [tag](Self::tag) some bytes begin with. Of its rate only what
            /// decides is known.
            pub(crate) fn from_tag(bytes: &[u8]) -> Option<Self> {
                let (&[letter, variant], rest) = bytes.split_first_chunk()?;
                let built = match letter {
                    $(<$kernel>::LETTER => {
                        let numbers = read(rest.get(..8 * <$kernel>::PARAMETERS)?)?;
                        $builder::of_parameters(variant, &numbers)?.build().ok()?
                    })*
                    _ => return None,
                };
                // An algorithm that cannot be built again is not taken for a similar one.
                bytes.starts_with(&built.tag()).then_some(built)
            }
        }

        $(
            impl From<$kernel> for Kind {
                fn from(kernel: $kernel) -> Self {
                    Self::$builder(kernel)
                }
            }

            impl $builder {
                /// Checks the configuration.
                ///
                /// # Errors
                ///
                $(#[doc = $errors])+
                pub fn build(self) -> Result<Algorithm, ConfigError> {
                    let (kernel, rate) = self.kernel()?;
                    Ok(Algorithm { kind: kernel.into(), rate })
                }
            }

            impl IntoAlgorithm for $builder {
                fn into_algorithm(self) -> Result<Algorithm, ConfigError> {
                    self.build()
                }
            }
        )*
    };
}

// The macro writes another one, and is given the dollar sign for it.
algorithms! { $
    /// If the count, period or burst is 0 or cannot be counted exactly below 2^53; the message
    /// states the bound.
    Gcra(Arrival) "gcra"

    /// If the count, period or burst is 0 or cannot be counted exactly below 2^53; the message
    /// states the bound.
    TokenBucket(LevelBucket<Tokens>) "token_bucket"

    /// If the count, period or capacity is 0 or cannot be counted exactly below 2^53; the message
    /// states the bound.
    LeakyMeter(LevelBucket<Water>) "leaky_meter"

    /// If capacity, refill or interval is 0 or above 2^53 − 1, or if an empty bucket takes 2^53 µs
    /// or more to fill.
    IntervalBucket(Portions) "interval_bucket"

    /// If the count or the period in microseconds is 0 or above 2^53 − 1.
    FixedWindow(Counter<FixedWindows>) "fixed_window"

    /// If the count or period is 0 or too large, the number of buckets is not 1 to 1024 or does not
    /// divide the period, or count × sub-window in µs reaches 2^53.
    SlidingWindow(Estimate) "sliding_window"

    /// If the count or the period in microseconds is 0 or above 2^53 − 1.
    SlidingLog(TrailingLog) "sliding_log"

    /// If the limit or a period in microseconds is 0 or above 2^53 − 1, the offset exceeds 14
    /// hours, or not every period has the anchor.
    CalendarQuota(Counter<Civil>) "calendar_quota"

    /// If the rate's count or period is 0, or the longest wait cannot be counted exactly below
    /// 2^53; the message states the bound.
    LeakyBucket(Queue) "leaky_bucket"
}

impl From<Cut> for Kind {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Civil(counter) => counter.into(),
            Cut::Fixed(counter) => counter.into(),
            Cut::Rolling(portions) => portions.into(),
        }
    }
}

pub(super) use each;

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
/// Builders that are equal give equal algorithms: nothing else, such as the time, has an influence.
/// A setting out of its bounds is an error that names the setting, the value and the bound, and
/// never a panic.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an algorithm",
    label = "expected an algorithm such as `Gcra::new(Rate::per_second(10))`",
    note = "write one of Gcra, TokenBucket, LeakyMeter, IntervalBucket, FixedWindow, \
        SlidingWindow, SlidingLog, \
            CalendarQuota or LeakyBucket around a `Rate`; a bare rate does not say how it is \
            enforced"
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
