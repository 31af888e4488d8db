//! Shares the pauses of this process with its fleet, and reads those of the fleet. No call waits
//! for either.

use std::sync::Arc;

use throttle_core::{Backend, Key};
use tokio::time::Instant;

use super::super::error::{Pause, PauseCause};
use super::super::schedule::Schedule;

impl Schedule {
    /// Pauses a key, here and in the other processes of the fleet.
    pub(in super::super) fn pause(self: &Arc<Self>, key: &Key, now: Instant, pause: Pause) {
        self.pause_here(key, now, pause);
        if let Some(shared) = self.shared_pauses.clone()
            && let Some(step) = shared.known.share(key, now, pause.until)
        {
            let key = key.clone();
            let background = shared.background.clone();
            let share = async move {
                while let Some(until) = shared.known.unshared(&step) {
                    if !shared.write(&key, until).await? {
                        break;
                    }
                    shared.known.note_shared(&step, until);
                }
                Ok(())
            };
            background.send(Box::pin(share), None, self.backend.can_fail());
        }
    }

    /// Looks whether another process has paused a key, if it is time to.
    pub(in super::super) fn look_for_pauses(self: &Arc<Self>, key: &Key) {
        if let Some(shared) = self.shared_pauses.clone()
            && let Some(step) = shared.known.look(key, Instant::now())
        {
            let schedule = Arc::clone(self);
            let key = key.clone();
            let background = shared.background.clone();
            let look = async move {
                let wait = shared.read(&key).await?;
                let now = Instant::now();
                if shared.known.heard(&step, now + wait) {
                    let until = now + wait.min(shared.longest);
                    let cause = PauseCause::Fleet;
                    schedule.pause_here(&key, now, Pause { until, cause });
                }
                Ok(())
            };
            background.send(Box::pin(look), None, self.backend.can_fail());
        }
    }
}
