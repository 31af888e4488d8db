use std::time::Duration;

use super::replay::START;
use crate::algorithm::{
    Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, LeakyBucket,
    LeakyMeter, SlidingLog, SlidingWindow, TokenBucket,
};
use crate::rate::Rate;

/// An algorithm that the cases run, and the same algorithm with a lower limit.
///
/// Capacities are 6 to 12 units, so that the cases ask a remote store no more often than they need.
/// Periods last a minute or more, so that a store that expires keys by its own clock does not
/// expire them too early while a case runs. The rates do not divide their periods.
///
/// ```
/// use throttle_core::conformance::Sample;
///
/// let sample = Sample::gcra();
/// assert!(sample.lowered().capacity() < sample.algorithm().capacity());
/// ```
#[derive(Clone, Debug)]
pub struct Sample {
    algorithm: Algorithm,
    lowered: Algorithm,
}

const MINUTE: Duration = Duration::from_secs(60);

macro_rules! samples {
    ($($(#[$doc:meta])* $name:ident: $algorithm:expr, lowered $lowered:expr;)*) => {
        impl Sample {
            $($(#[$doc])*
            #[must_use]
            pub fn $name() -> Self {
                Self::new($algorithm, $lowered)
            })*

            /// Every sample.
            pub(super) fn all() -> Vec<Self> {
                vec![$(Self::$name()),*]
            }
        }
    };
}

samples! {
    /// A burst above the rate.
    gcra: Gcra::new(Rate::new(7, MINUTE)).burst(10), lowered Gcra::new(Rate::new(3, MINUTE)).burst(4);
    /// Continuous refill.
    token_bucket: TokenBucket::new(Rate::new(7, MINUTE)).burst(10),
        lowered TokenBucket::new(Rate::new(3, MINUTE)).burst(4);
    /// A level that drains.
    leaky_meter: LeakyMeter::new(Rate::new(7, MINUTE)).capacity(10),
        lowered LeakyMeter::new(Rate::new(3, MINUTE)).capacity(4);
    /// Portions that do not divide the capacity.
    interval_bucket: IntervalBucket::new(10).refill(3, MINUTE), lowered IntervalBucket::new(5).refill(2, MINUTE);
    /// The same, at whole minutes.
    interval_bucket_aligned: IntervalBucket::new(10).refill(3, MINUTE).aligned(),
        lowered IntervalBucket::new(5).refill(2, MINUTE).aligned();
    /// Windows that do not start at whole minutes.
    fixed_window: FixedWindow::new(Rate::per_minute(10)).offset(Duration::from_secs(7)),
        lowered FixedWindow::new(Rate::per_minute(4)).offset(Duration::from_secs(7));
    /// Ten sub-windows.
    sliding_window: SlidingWindow::new(Rate::per_minute(12)), lowered SlidingWindow::new(Rate::per_minute(5));
    /// One sub-window and the one before it.
    sliding_window_of_two: SlidingWindow::new(Rate::per_minute(12)).buckets(1),
        lowered SlidingWindow::new(Rate::per_minute(5)).buckets(1);
    /// Every request remembered.
    sliding_log: SlidingLog::new(Rate::per_minute(10)), lowered SlidingLog::new(Rate::per_minute(4));
    /// Civil days in Kathmandu.
    calendar_day: CalendarQuota::daily(10).utc_offset_minutes(345),
        lowered CalendarQuota::daily(4).utc_offset_minutes(345);
    /// Weeks from Monday.
    calendar_week: CalendarQuota::weekly(10), lowered CalendarQuota::weekly(4);
    /// Civil months, west of Greenwich.
    calendar_month: CalendarQuota::monthly(10).utc_offset_minutes(-480),
        lowered CalendarQuota::monthly(4).utc_offset_minutes(-480);
    /// A queue.
    leaky_bucket: LeakyBucket::new(Rate::new(7, MINUTE)).max_wait(Duration::from_secs(65)),
        lowered LeakyBucket::new(Rate::new(3, MINUTE)).max_wait(Duration::from_secs(65));
    /// A queue that refuses what it would delay.
    leaky_bucket_without_delay: LeakyBucket::new(Rate::new(7, MINUTE)).max_wait(Duration::from_secs(65)).without_delay(),
        lowered LeakyBucket::new(Rate::new(3, MINUTE)).max_wait(Duration::from_secs(65)).without_delay();
}

impl Sample {
    fn new(algorithm: impl IntoAlgorithm, lowered: impl IntoAlgorithm) -> Self {
        let built = "a sample is a valid configuration";
        let (algorithm, lowered) = (
            algorithm.into_algorithm().expect(built),
            lowered.into_algorithm().expect(built),
        );
        Self { algorithm, lowered }
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// The same algorithm with a lower limit.
    #[must_use]
    pub const fn lowered(&self) -> &Algorithm {
        &self.lowered
    }

    pub(super) fn capacity(&self) -> u64 {
        self.algorithm.capacity()
    }

    /// µs after which an exhausted key cannot be distinguished from an unused one, whenever it was
    /// exhausted, or a little more.
    pub(super) fn span(&self) -> u64 {
        let full = |algorithm: &Algorithm| {
            let (_, verdict) = algorithm.decide(algorithm.fresh(), START, algorithm.capacity());
            verdict
                .reset_after_micros()
                .max(algorithm.rate().period_micros())
        };
        full(&self.algorithm).max(full(&self.lowered))
    }
}
