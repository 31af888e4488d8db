//! Tells the other processes of a fleet of pauses, and looks for theirs, behind the calls.

use std::sync::Arc;

use throttle_core::{Backend, Key};
use tokio::time::Instant;

use super::super::error::{Paused, PausedBy};
use super::super::schedule::Schedule;

impl<B: Backend> Schedule<B> {
    /// No call of a key leaves before the pause is over, here and in the other processes of the
    /// fleet.
    pub(in super::super) fn pause(self: &Arc<Self>, key: &Key, now: Instant, pause: Paused) {
        self.pause_here(key, now, pause);
        self.share_pause(key, now, pause.until);
    }

    /// No call of a key leaves before `until` in the other processes of the fleet.
    pub(in super::super) fn share_pause(self: &Arc<Self>, key: &Key, now: Instant, until: Instant) {
        if let Some(shared) = &self.shared_pauses
            && let Some(sharing) = shared.known.share(key, now, until)
        {
            let (schedule, key) = (Arc::clone(self), key.clone());
            let step = async move {
                let Some(shared) = &schedule.shared_pauses else {
                    return Ok(());
                };
                while let Some(until) = shared.known.unshared(&sharing) {
                    if !shared.write(&schedule.backend, &key, until).await? {
                        break;
                    }
                    shared.known.note_shared(&sharing, until);
                }
                Ok(())
            };
            shared
                .background
                .send(Box::pin(step), None, self.backend.can_fail());
        }
    }

    /// Looks whether another process has heard of a pause, if it is time to.
    pub(in super::super) fn look_for_pauses(self: &Arc<Self>, key: &Key) {
        if let Some(shared) = &self.shared_pauses
            && let Some(look) = shared.known.look(key, Instant::now())
        {
            let (schedule, key) = (Arc::clone(self), key.clone());
            let step = async move {
                let Some(shared) = &schedule.shared_pauses else {
                    return Ok(());
                };
                let pause = shared.read(&schedule.backend, &key).await?;
                let now = Instant::now();
                if shared.known.heard(&look, now + pause) {
                    let until = now + pause.min(shared.longest);
                    let by = PausedBy::Fleet;
                    schedule.pause_here(&key, now, Paused { until, by });
                }
                Ok(())
            };
            shared
                .background
                .send(Box::pin(step), None, self.backend.can_fail());
        }
    }
}
