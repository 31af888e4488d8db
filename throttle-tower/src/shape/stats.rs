#[cfg(feature = "metrics")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(feature = "metrics")]
use throttle_core::metrics::Registered;
use tokio::time::Instant;

use super::error::ShapeError;
use super::pauses::Reply;
use super::queues::CallQueues;
#[cfg(feature = "metrics")]
use crate::observe::metrics::ShapeMetrics;

/// What a shaper and its clones have done since they were created.
///
/// ```
/// use throttle_tower::shape::Shaper;
/// use throttle_tower::{Pace, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = Shaper::new(Pace::new(Rate::per_second(10)))?;
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
    /// Calls that were refused, because they would have waited too long (a pause is one cause) or
    /// too many were waiting.
    pub refused: u64,
    /// Calls that were dropped while they waited, by a timeout for example. Later calls get their
    /// turns.
    pub cancelled: u64,
    /// Calls that the store failed to decide: paced by this process's share, sent unpaced, or
    /// failed.
    pub degraded: u64,
    /// Corrections that the store did not take, because it failed: turns that no call used, and
    /// [settlements](super::ShapeUsage).
    pub lost: u64,
    /// Keys that are paused.
    pub paused: usize,
    /// Responses that refused their calls, as far as the upstream is
    /// [obeyed](crate::ShapeLayer::obey_upstream).
    pub refusals: u64,
}

#[derive(Default)]
pub(super) struct ShapeCounters {
    sent: AtomicU64,
    waiting: AtomicUsize,
    refused: AtomicU64,
    cancelled: AtomicU64,
    degraded: AtomicU64,
    refusals: AtomicU64,
    #[cfg(feature = "metrics")]
    metrics: OnceLock<Registered<ShapeMetrics>>,
}

/// Reports to the metrics, if the program wants them.
macro_rules! report {
    ($counters:expr, $metrics:ident => $report:expr) => {
        #[cfg(feature = "metrics")]
        if let Some(metrics) = $counters.metrics.get() {
            metrics.with(|$metrics| $report);
        }
    };
}

impl ShapeCounters {
    #[cfg(feature = "metrics")]
    pub(super) fn report_metrics(&self, metrics: Registered<ShapeMetrics>) {
        let _ = self.metrics.set(metrics);
    }

    pub(super) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => metrics.sent.increment(1));
    }

    pub(super) fn refused(&self, error: &ShapeError) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let _is_paused = error.queue_full().is_some_and(|full| full.pause.is_some());
        report!(self, metrics => metrics.refused(_is_paused).increment(1));
    }

    /// An upstream has refused a call.
    pub(super) fn heard_refusal(&self, _reply: &Reply) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => {
            let is_reset = _reply.allowance.is_some_and(|allowance| allowance.remaining == 0);
            metrics.refusal(_reply.wait.is_some(), is_reset).increment(1);
        });
    }

    /// The number of paused keys may have changed.
    pub(super) fn show_paused(&self, _queues: &CallQueues) {
        report!(self, metrics => metrics.show_paused(|| _queues.counted_as_paused() as u64));
    }

    pub(super) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => metrics.cancelled.increment(1));
    }

    pub(super) fn degraded(&self) {
        self.degraded.fetch_add(1, Ordering::Relaxed);
        report!(self, metrics => metrics.degraded.increment(1));
    }

    fn show_waiting(&self) {
        report!(self, metrics => metrics.show_waiting(|| self.waiting.load(Ordering::Acquire) as u64));
    }

    /// Counts one more waiting call, unless `most` calls wait already.
    pub(super) fn begin_wait(&self, most: usize) -> bool {
        let free = |waiting: usize| (waiting < most).then_some(waiting + 1);
        let begins = self
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, free)
            .is_ok();
        if begins {
            self.show_waiting();
        }
        begins
    }

    /// A call waits no more that has waited since then.
    pub(super) fn end_wait(&self, _since: Instant) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        report!(self, metrics => metrics.wait.record(_since.elapsed()));
        self.show_waiting();
    }

    pub(super) fn snapshot(&self, lost: u64, paused: usize) -> ShapeStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShapeStats {
            sent: count(&self.sent),
            waiting: self.waiting.load(Ordering::Relaxed),
            refused: count(&self.refused),
            cancelled: count(&self.cancelled),
            degraded: count(&self.degraded),
            lost,
            paused,
            refusals: count(&self.refusals),
        }
    }
}
