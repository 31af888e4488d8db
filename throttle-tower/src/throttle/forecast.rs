//! When the last request of a queue will be admitted, so that one that cannot make it in time is refused at once.

use std::time::Duration;

use throttle_core::{Algorithm, Policy, Status};
use tokio::time::Instant;

use crate::time::FAR;

/// What the latest decision about a limit says about the requests that are queued for it: at one instant there is room
/// for so many units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forecast {
    at: Instant,
    units: u64,
    /// When the next whole window opens. Buckets that drain ignore it, because their units come one by one.
    opens: Instant,
}

impl Forecast {
    /// After a decision as of `now` that asked for `cost` units.
    pub(super) fn new(policy: &Policy, status: &Status, now: Instant, cost: u64) -> Self {
        let algorithm = policy.tier(status.tier()).algorithm();
        match status.retry_after().filter(|wait| !wait.is_zero()) {
            Some(wait) => {
                let at = later(now, wait);
                let units = if algorithm.drains() { cost } else { cost.max(algorithm.rate().count()) };
                Self { at, units, opens: later(at, Duration::from_micros(algorithm.rate().period_micros())) }
            }
            None => {
                // A bucket that refills in portions gets the next one long before it is full.
                let opens = later(now, status.effective_window(policy).min(status.reset_after()));
                Self { at: now, units: status.remaining(), opens }
            }
        }
    }

    /// The instant by which so many units are admitted in turn. Where units come back as they were used, in a sliding
    /// window or log, it is the earliest that is possible.
    pub(super) fn admits_by(&self, algorithm: &Algorithm, units: u64) -> Instant {
        let Some(more) = units.checked_sub(self.units).filter(|more| *more > 0) else { return self.at };
        let (count, period) =
            (u128::from(algorithm.rate().count().max(1)), u128::from(algorithm.rate().period_micros()));
        let more = u128::from(more);
        let (from, micros) = if algorithm.drains() {
            (self.at, (more * period).div_ceil(count))
        } else {
            (self.opens, (more - 1) / count * period)
        };
        later(from, Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }
}

/// How late a decision may be before a later one is delayed by it: as long as a burst makes up for.
pub(super) fn made_up_for(algorithm: &Algorithm, cost: u64) -> Duration {
    if !algorithm.drains() {
        return Duration::MAX;
    }
    let (count, period) = (algorithm.rate().count().max(1), algorithm.rate().period_micros());
    let micros = u128::from(algorithm.capacity().saturating_sub(cost)) * u128::from(period) / u128::from(count);
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// At most some thirty years later, which every `Instant` can be.
fn later(at: Instant, wait: Duration) -> Instant {
    at + wait.min(FAR)
}
