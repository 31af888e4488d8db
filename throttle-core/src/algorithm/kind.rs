//! One type for all algorithms, and what follows from the [table](super) of them.

use super::Kind;
use super::calendar_quota::Cut;
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
        enum Kind {
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

        use each;

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

pub(super) use algorithms;

impl From<Cut> for Kind {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Civil(counter) => counter.into(),
            Cut::Fixed(counter) => counter.into(),
            Cut::Rolling(portions) => portions.into(),
        }
    }
}

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

/// An algorithm that admits or refuses, and delays nothing, so that it can be a limit: each builder
/// of this module but [`LeakyBucket`](super::LeakyBucket). An [`Algorithm`] is one, too, although it
/// may delay: what takes limits checks it.
///
/// ```
/// use throttle_core::algorithm::RefusingAlgorithm;
/// use throttle_core::{ConfigError, Gcra, Policy, Rate};
///
/// fn limit(algorithm: impl RefusingAlgorithm) -> Result<Policy, ConfigError> {
///     Policy::new("limit", algorithm)
/// }
/// assert!(limit(Gcra::new(Rate::per_second(10))).is_ok());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an algorithm that refuses",
    label = "expected an algorithm such as `Gcra::new(Rate::per_second(10))`",
    note = "`LeakyBucket` delays: `LeakyMeter` and `Gcra` refuse"
)]
pub trait RefusingAlgorithm: IntoAlgorithm {}

impl RefusingAlgorithm for Algorithm {}
