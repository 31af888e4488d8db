use super::drain::Drain;
use super::level::{LevelBucket, Water};
use crate::error::ConfigError;
use crate::rate::Rate;

/// A leaky bucket used as a meter: each request adds water, the water drains at the rate, and a
/// request that would overflow the bucket is refused.
///
/// The mirror image of the [`TokenBucket`](super::TokenBucket), with the same decisions: it stores
/// the level of the water, and the token bucket stores the tokens left. To delay requests that do
/// not fit, see [`LeakyBucket`](super::LeakyBucket).
///
/// State: 16 bytes, the level and the time of the last admitted request.
///
/// ```
/// use throttle_core::{LeakyMeter, Rate, Timestamp};
///
/// let algorithm = LeakyMeter::new(Rate::per_second(10)).capacity(20).build()?;
/// let (state, verdict) = algorithm.decide(algorithm.fresh(), Timestamp::EPOCH, 20);
/// assert!(verdict.is_admitted());
/// assert!(!algorithm.decide(state, Timestamp::EPOCH, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyMeter {
    rate: Rate,
    capacity: Option<u64>,
}

impl LeakyMeter {
    /// Water that drains at `rate`. The capacity defaults to the rate's count.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            capacity: None,
        }
    }

    /// Most units the bucket holds. Defaults to the rate's count.
    #[must_use]
    pub const fn capacity(mut self, units: u64) -> Self {
        self.capacity = Some(units);
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(LevelBucket<Water>, Rate), ConfigError> {
        let drain = Drain::with_burst(self.rate, self.capacity.unwrap_or(self.rate.count()))?;
        Ok((LevelBucket::<Water>::new(drain), self.rate))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(_: u8, numbers: &[i64]) -> Option<Self> {
        let (rate, capacity) = Drain::burst_origin(numbers)?;
        Some(Self::new(rate).capacity(capacity))
    }
}
