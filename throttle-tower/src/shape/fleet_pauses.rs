//! Shares the pauses of this process with its fleet, and reads those of the fleet. No call waits
//! for either.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use throttle_core::{Backend, Key};
use tokio::time::Instant;

use super::error::{Pause, PauseCause};
use super::schedule::Schedule;

impl Schedule {
    /// Pauses a key, here and in the other processes of the fleet.
    pub(super) fn pause(self: &Arc<Self>, key: &Key, now: Instant, pause: Pause) {
        self.pause_here(key, now, pause);
        if let Some(shared) = self.shared_pauses.clone()
            && self.is_news(key, pause.until)
        {
            let schedule = Arc::clone(self);
            let key = key.clone();
            let background = shared.background.clone();
            let share = async move {
                let written = shared.write(&key, pause.until).await;
                if !matches!(written, Ok(true)) {
                    // It is shared when it is heard again.
                    schedule.change(&key, false, |queue, now| queue.pauses.fleet.forget(now));
                }
                written.map(drop)
            };
            background.send(Box::pin(share), None, self.backend.can_fail());
        }
    }

    /// Looks whether another process has paused a key, if it is time to.
    pub(super) fn look_for_pauses(self: &Arc<Self>, key: &Key) {
        if let Some(shared) = self.shared_pauses.clone()
            && self.change(key, true, |queue, now| queue.pauses.fleet.begin_look(now)) == Some(true)
        {
            let schedule = Arc::clone(self);
            let key = key.clone();
            let background = shared.background.clone();
            let resets = shared.resets.load(Ordering::Acquire);
            let look = async move {
                let wait = shared.read(&key).await?;
                let now = Instant::now();
                let is_current = shared.resets.load(Ordering::Acquire) == resets;
                if is_current && schedule.is_news(&key, now + wait) {
                    let until = now + wait.min(shared.longest);
                    let cause = PauseCause::Fleet;
                    schedule.pause_here(&key, now, Pause { until, cause });
                }
                Ok(())
            };
            background.send(Box::pin(look), None, self.backend.can_fail());
        }
    }

    /// Notes the end of a pause. Returns whether it was not known.
    fn is_news(&self, key: &Key, until: Instant) -> bool {
        self.change(key, false, |queue, _| queue.pauses.fleet.note(until)) == Some(true)
    }
}
