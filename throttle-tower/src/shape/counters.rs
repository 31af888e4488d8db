use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What a shaper and its clones have done since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapeStats {
    /// Calls that have left.
    pub sent: u64,
    /// Calls that wait now: for their turn, or for the store that tells them when it is.
    pub waiting: usize,
    /// Calls that were refused, because they would have waited too long or too many were waiting.
    pub refused: u64,
    /// Calls that were dropped while they waited for their turn.
    pub cancelled: u64,
    /// Calls that the store could not decide about: paced by this process's share, let through, or failed.
    pub degraded: u64,
    /// Slots of cancelled calls that could not be given back, because the store failed. They pass unused.
    pub lost: u64,
    /// Keys that are paused or slowed down, or catch up after a pause.
    pub paused: usize,
}

#[derive(Default)]
pub(crate) struct Counters {
    sent: AtomicU64,
    waiting: AtomicUsize,
    refused: AtomicU64,
    cancelled: AtomicU64,
    degraded: AtomicU64,
}

impl Counters {
    pub(crate) fn sent(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn degraded(&self) {
        self.degraded.fetch_add(1, Ordering::Relaxed);
    }

    /// A place among those who wait, if there is one.
    pub(crate) fn wait(self: &Arc<Self>, most: usize) -> Option<Waiting> {
        let free = |waiting: usize| (waiting < most).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).ok()?;
        Some(Waiting(Arc::clone(self)))
    }

    pub(crate) fn snapshot(&self, lost: u64, paused: usize) -> ShapeStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShapeStats {
            sent: count(&self.sent),
            waiting: self.waiting.load(Ordering::Relaxed),
            refused: count(&self.refused),
            cancelled: count(&self.cancelled),
            degraded: count(&self.degraded),
            lost,
            paused,
        }
    }
}

/// A place among those who wait.
pub(crate) struct Waiting(Arc<Counters>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
