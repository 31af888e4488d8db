use super::drain::Drain;
use super::level::{LevelBucket, Tokens};
use crate::error::ConfigError;
use crate::rate::Rate;

/// A bucket of tokens that refills continuously: the classic token bucket.
///
/// A request of cost `c` takes `c` tokens if they are there. The bucket starts full and gains
/// count/period tokens each µs, in exact fractions, up to `burst`. Its decisions are those of
/// [`Gcra`](super::Gcra) as long as the clock does not step back; when it does, the bucket refills
/// no further until the clock has caught up.
///
/// For a bucket that is refilled in whole portions, see [`IntervalBucket`](super::IntervalBucket).
///
/// State: 16 bytes, the level and the time of the last admitted request.
///
/// ```
/// use throttle_core::{TokenBucket, Rate, Timestamp};
///
/// let algorithm = TokenBucket::new(Rate::per_second(10)).burst(20).build()?;
/// let (state, verdict) = algorithm.decide(algorithm.fresh(), Timestamp::EPOCH, 20);
/// assert!(verdict.is_admitted());
/// assert!(!algorithm.decide(state, Timestamp::EPOCH, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    burst: Option<u64>,
}

impl TokenBucket {
    /// Tokens refilled at `rate`. The burst defaults to the rate's count.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate, burst: None }
    }

    /// Most tokens the bucket holds. Defaults to the rate's count.
    #[must_use]
    pub const fn burst(mut self, tokens: u64) -> Self {
        self.burst = Some(tokens);
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(LevelBucket<Tokens>, Rate), ConfigError> {
        let drain = Drain::with_burst(self.rate, self.burst.unwrap_or(self.rate.count()))?;
        Ok((LevelBucket::<Tokens>::new(drain), self.rate))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(_: u8, numbers: &[i64]) -> Option<Self> {
        let (rate, burst) = Drain::burst_origin(numbers)?;
        Some(Self::new(rate).burst(burst))
    }
}
