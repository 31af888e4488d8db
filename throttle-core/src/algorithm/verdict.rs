//! The outcome of one request against one algorithm, and what it charged.

use crate::time::Timestamp;

/// The wait of a cost that no wait can help.
pub(crate) const NEVER: u64 = u64::MAX;

/// The outcome of one request against one algorithm. Times are µs.
///
/// ```
/// use throttle_core::{Gcra, Rate, Timestamp};
///
/// let gcra = Gcra::new(Rate::per_second(10)).burst(2).build()?;
/// let (_, verdict) = gcra.decide(gcra.fresh(), Timestamp::EPOCH, 1);
/// assert_eq!((verdict.is_admitted(), verdict.remaining()), (true, 1));
/// assert_eq!(verdict.reset_after_micros(), 100_000);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub(crate) standing: Standing,
    pub(crate) wait: u64,
    pub(crate) delay: u64,
}

impl Verdict {
    /// Whether the request is admitted.
    #[inline]
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        self.wait == 0
    }

    /// The largest cost that would be admitted at this instant, after this decision.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.standing.remaining
    }

    /// µs after which the same request is admitted if nothing else happens, and not one earlier. 0
    /// when it was admitted, `None` when no wait helps because the cost exceeds the capacity.
    #[inline]
    #[must_use]
    pub const fn retry_after_micros(&self) -> Option<u64> {
        if self.wait == NEVER {
            None
        } else {
            Some(self.wait)
        }
    }

    /// µs until the key equals an unused one if nothing else happens.
    #[inline]
    #[must_use]
    pub const fn reset_after_micros(&self) -> u64 {
        self.standing.reset
    }

    /// µs to wait before going on; more than 0 only for the
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket).
    #[inline]
    #[must_use]
    pub const fn delay_micros(&self) -> u64 {
        self.delay
    }
}

/// Where a key stands at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Largest cost that would be admitted at this instant.
    pub(crate) remaining: u64,
    /// µs until the key cannot be told from an unused one.
    pub(crate) reset: u64,
    /// µs until something more is available; for windows, until the window ends. It may be 0 where
    /// it is less than the time of the units that remain, which the effective window is then.
    pub(crate) next: u64,
}

/// Where in its algorithm's time a charge was put, so that it can be undone there and nowhere else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at: i64,
    pub(crate) frac: u64,
}

impl Mark {
    pub(crate) fn at(at: Timestamp) -> Self {
        Self {
            at: at.as_micros(),
            frac: 0,
        }
    }
}

/// A charge: how much, and where in the algorithm's time. No charge has a cost of 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateCharge {
    pub(crate) cost: u64,
    pub(crate) mark: Mark,
}

/// What a request did to a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// µs until the cost is admitted.
    pub(crate) wait: u64,
    /// µs to wait before going on.
    pub(crate) delay: u64,
    pub(crate) taken: StateCharge,
}

impl Outcome {
    /// Of a request that is charged nothing.
    pub(crate) fn uncharged(wait: u64) -> Self {
        Self {
            wait,
            ..Self::default()
        }
    }

    /// Of a request that is charged, and goes on at once.
    pub(crate) fn charged(cost: u64, mark: Mark) -> Self {
        Self {
            taken: StateCharge { cost, mark },
            ..Self::default()
        }
    }
}
