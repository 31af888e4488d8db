use std::sync::Arc;

use throttle_core::Backend;

use super::schedule::Schedule;

/// Counts a call as waiting until it is dropped.
pub(super) struct WaitingPermit<B: Backend>(Arc<Schedule<B>>);

impl<B: Backend> WaitingPermit<B> {
    /// `None` if as many calls wait as may.
    pub(super) fn of(schedule: &Arc<Schedule<B>>) -> Option<Self> {
        schedule.counters.begin_wait(schedule.max_waiting).then(|| Self(Arc::clone(schedule)))
    }

    pub(super) fn schedule(&self) -> &Schedule<B> {
        &self.0
    }
}

impl<B: Backend> Drop for WaitingPermit<B> {
    fn drop(&mut self) {
        self.0.counters.end_wait();
    }
}
