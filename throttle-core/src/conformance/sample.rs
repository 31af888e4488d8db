use std::num::NonZeroU32;
use std::time::Duration;

use super::Harness;
use super::replay::START;
use crate::algorithm::{
    Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, LeakyBucket, LeakyMeter,
    SlidingLog, SlidingWindow, TokenBucket,
};
use crate::error::ConfigError;
use crate::rate::Rate;

/// The algorithms that the cases run, in all their variants.
///
/// Capacities are 6 to 12 units, so that the cases ask a remote store no more often than they need.
/// Periods last a minute or more, so that a store that expires keys by its own clock does not
/// expire them too early while a case runs. The rates do not divide their periods.
pub(super) fn samples() -> Vec<Algorithm> {
    const MINUTE: Duration = Duration::from_secs(60);
    let rate = Rate::new(7, MINUTE);
    let portions = IntervalBucket::new(10).refill(3, MINUTE);
    let queue = LeakyBucket::new(rate).max_wait(Duration::from_secs(65));
    let offset = Duration::from_secs(7);
    let samples: [Result<Algorithm, ConfigError>; 14] = [
        Gcra::new(rate).burst(10).build(),
        TokenBucket::new(rate).burst(10).build(),
        LeakyMeter::new(rate).capacity(10).build(),
        portions.build(),
        portions.aligned().build(),
        FixedWindow::new(Rate::per_minute(10))
            .offset(offset)
            .build(),
        SlidingWindow::new(Rate::per_minute(12)).build(),
        SlidingWindow::new(Rate::per_minute(12)).buckets(1).build(),
        SlidingLog::new(Rate::per_minute(10)).build(),
        // Kathmandu, and west of Greenwich.
        CalendarQuota::daily(10).utc_offset_minutes(345).build(),
        CalendarQuota::weekly(10).build(),
        CalendarQuota::monthly(10).utc_offset_minutes(-480).build(),
        queue.build(),
        queue.without_delay().build(),
    ];
    let built = samples.into_iter().collect::<Result<_, _>>();
    built.expect("the samples are valid")
}

/// The samples that a case of traces runs on this harness.
pub(super) fn samples_for<H: Harness>() -> Vec<Algorithm> {
    let mut samples = samples();
    if H::IS_ADAPTER {
        // Its charges have windows, so no case is trivial.
        samples.retain(|sample| sample.name() == "fixed_window");
    }
    samples
}

/// The samples of which a key that is not used holds its whole capacity: all but the queue that
/// refuses what it would delay.
pub(super) fn unit_samples<H: Harness>() -> impl Iterator<Item = Algorithm> {
    let holds_all = |sample: &Algorithm| sample.name() != "leaky_bucket" || sample.delays();
    samples_for::<H>().into_iter().filter(holds_all)
}

/// The same algorithm with a lower limit.
pub(super) fn lowered(algorithm: &Algorithm) -> Algorithm {
    algorithm.share(const { NonZeroU32::new(2).unwrap() })
}

/// µs after which an exhausted key cannot be distinguished from an unused one, whenever it was
/// exhausted, or a little more.
pub(super) fn span(algorithm: &Algorithm) -> u64 {
    let (_, verdict) = algorithm.decide(algorithm.fresh(), START, algorithm.capacity());
    let period = algorithm.rate().period_micros();
    verdict.reset_after_micros().max(period)
}
