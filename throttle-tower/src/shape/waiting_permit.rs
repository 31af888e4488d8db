use std::sync::Arc;

use throttle_core::Backend;
#[cfg(feature = "metrics")]
use tokio::time::Instant;

use super::schedule::Schedule;

/// Counts a call as waiting until it is dropped.
pub(super) struct WaitingPermit<B: Backend> {
    schedule: Arc<Schedule<B>>,
    #[cfg(feature = "metrics")]
    since: Option<Instant>,
}

impl<B: Backend> WaitingPermit<B> {
    /// `None` if as many calls wait as may.
    pub(super) fn of(schedule: &Arc<Schedule<B>>) -> Option<Self> {
        schedule.counters.begin_wait(schedule.max_waiting).then(|| Self {
            schedule: Arc::clone(schedule),
            #[cfg(feature = "metrics")]
            since: schedule.counters.start(),
        })
    }

    pub(super) fn schedule(&self) -> &Arc<Schedule<B>> {
        &self.schedule
    }
}

impl<B: Backend> Drop for WaitingPermit<B> {
    fn drop(&mut self) {
        self.schedule.counters.end_wait();
        #[cfg(feature = "metrics")]
        self.schedule.counters.waited(self.since);
    }
}
