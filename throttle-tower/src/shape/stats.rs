#[cfg(feature = "metrics")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(feature = "metrics")]
use tokio::time::Instant;

#[cfg(feature = "metrics")]
use crate::observe::metrics::ShapeMetrics;

/// What a shaper and its clones have done since they were created.
///
/// ```
/// use throttle_tower::shape::Shaper;
/// use throttle_tower::{LeakyBucket, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = Shaper::new(LeakyBucket::new(Rate::per_second(10)))?;
/// shaper.schedule("key", 1).await?;
/// assert_eq!((shaper.stats().sent, shaper.stats().waiting), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapeStats {
    /// Calls that have left.
    pub sent: u64,
    /// Calls that wait now, for their turn or for the store.
    pub waiting: usize,
    /// Calls that were refused, because they would have waited too long or too many were waiting.
    pub refused: u64,
    /// Calls that were dropped while they waited, by a timeout for example. Their turns go to the calls behind them.
    pub cancelled: u64,
    /// Calls that the store failed to decide: paced by this process's share, sent unpaced, or failed.
    pub degraded: u64,
    /// Corrections that the store did not take, because it failed: turns that no call used, and
    /// [settlements](super::ShapeUsage).
    pub lost: u64,
    /// Keys that are paused or slowed down.
    pub paused: usize,
}

#[derive(Default)]
pub(super) struct Counters {
    sent: AtomicU64,
    waiting: AtomicUsize,
    refused: AtomicU64,
    cancelled: AtomicU64,
    degraded: AtomicU64,
    #[cfg(feature = "metrics")]
    metrics: OnceLock<ShapeMetrics>,
}

/// Reports to the metrics, if the program wants them.
macro_rules! report {
    ($counters:expr, $metrics:ident => $report:expr) => {
        #[cfg(feature = "metrics")]
        if let Some($metrics) = $counters.metrics.get() {
            $report;
        }
    };
}

impl Counters {
    #[cfg(feature = "metrics")]
    pub(super) fn report_metrics(&self, metrics: ShapeMetrics) {
        let _ = self.metrics.set(metrics);
    }

    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => metrics.sent());
    }

    /// A call has left that is counted elsewhere.
    #[inline]
    pub(super) fn sent_at_once(&self) {
        report!(self, metrics => metrics.sent());
    }

    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => metrics.refused());
    }

    pub(super) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => metrics.cancelled());
    }

    pub(super) fn degraded(&self) {
        self.degraded.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => metrics.degraded());
    }

    /// The present instant, if it is reported how long calls wait.
    #[cfg(feature = "metrics")]
    pub(super) fn start(&self) -> Option<Instant> {
        self.metrics.get().map(|_| Instant::now())
    }

    /// A call has waited since then.
    #[cfg(feature = "metrics")]
    pub(super) fn waited(&self, since: Option<Instant>) {
        report!(self, metrics => since.into_iter().for_each(|since| metrics.waited(since.elapsed())));
    }

    fn show_waiting(&self) {
        report!(self, metrics => metrics.waiting(|| self.waiting.load(Ordering::Acquire) as u64));
    }

    /// Counts one more waiting call, unless `most` calls wait already.
    pub(super) fn begin_wait(&self, most: usize) -> bool {
        let free = |waiting: usize| (waiting < most).then_some(waiting + 1);
        let begins = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_ok();
        if begins {
            self.show_waiting();
        }
        begins
    }

    pub(super) fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.show_waiting();
    }

    /// With the calls that were counted as sent elsewhere.
    pub(super) fn snapshot(&self, sent_elsewhere: u64, lost: u64, paused: usize) -> ShapeStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShapeStats {
            sent: sent_elsewhere + count(&self.sent),
            waiting: self.waiting.load(Ordering::Relaxed),
            refused: count(&self.refused),
            cancelled: count(&self.cancelled),
            degraded: count(&self.degraded),
            lost,
            paused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_counters_are_read_each_for_itself() {
        let counters = Counters::default();
        let count = |times: usize, count: fn(&Counters)| (0..times).for_each(|_| count(&counters));
        count(1, Counters::sent);
        count(9, Counters::sent_at_once);
        count(2, Counters::refused);
        count(3, Counters::cancelled);
        count(4, Counters::degraded);
        assert_eq!([5, 5, 5].map(|most| counters.begin_wait(most)), [true; 3]);
        assert_eq!((counters.begin_wait(3), counters.begin_wait(4), counters.begin_wait(4)), (false, true, false));
        counters.end_wait();
        let expected = ShapeStats { sent: 101, waiting: 3, refused: 2, cancelled: 3, degraded: 4, lost: 5, paused: 6 };
        assert_eq!(counters.snapshot(100, 5, 6), expected);
        assert_eq!(Counters::default().snapshot(0, 0, 0), ShapeStats::default());
    }

    #[cfg(feature = "metrics")]
    #[tokio::test(start_paused = true)]
    async fn shape_counters_report_each_for_itself() {
        use throttle_core::{LeakyBucket, Rate};

        use crate::ShapeLayer;

        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let installed = ::metrics::set_default_local_recorder(&recorder);
        let layer: ShapeLayer<()> =
            ShapeLayer::new(LeakyBucket::new(Rate::per_second(10))).unwrap().metrics("upstream");
        let counters = &layer.shaper.schedule.counters;
        assert!(counters.start().is_some() && Counters::default().start().is_none());
        let count = |times: usize, count: fn(&Counters)| (0..times).for_each(|_| count(counters));
        count(1, Counters::sent);
        count(2, Counters::sent_at_once);
        count(4, Counters::refused);
        count(5, Counters::cancelled);
        count(6, Counters::degraded);
        let since = counters.start();
        tokio::time::advance(std::time::Duration::from_secs(2)).await;
        counters.waited(since);
        counters.waited(None);
        drop(installed);
        let text = recorder.handle().render();
        for line in [
            r#"throttle_shape_calls_total{layer="upstream",outcome="sent"} 3"#,
            r#"throttle_shape_calls_total{layer="upstream",outcome="refused"} 4"#,
            r#"throttle_shape_calls_total{layer="upstream",outcome="cancelled"} 5"#,
            r#"throttle_shape_degraded_total{layer="upstream"} 6"#,
            r#"throttle_shape_wait_seconds_sum{layer="upstream"} 2"#,
            r#"throttle_shape_wait_seconds_count{layer="upstream"} 1"#,
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
    }
}
