use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use throttle_core::Key;
use tokio::time::Instant;

use super::queue::{Aftermath, CallQueue};
use crate::lock::lock;

const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// The keys for which calls wait, or of which an upstream has asked something.
#[derive(Default)]
pub(super) struct CallQueues {
    /// The number of keys, so that calls take no lock while there is none.
    count: AtomicUsize,
    state: Mutex<QueueMap>,
}

#[derive(Default)]
struct QueueMap {
    by_key: HashMap<Key, CallQueue>,
    /// The number of those whose pauses were not over when they were last used or swept.
    paused: usize,
    /// The number of keys at which the next sweep removes idle ones, and the instant after which it
    /// does so anyhow.
    sweep_at: usize,
    sweep_after: Option<Instant>,
}

impl CallQueues {
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Changes the queue of a key, which begins one if there is none and `begins` says so. A queue
    /// that is idle afterwards is removed. Returns the result and what is left to be done, or
    /// `None` if there was no queue.
    pub(super) fn change<R>(
        &self,
        key: &Key,
        begins: bool,
        by: impl FnOnce(&mut CallQueue, Instant) -> R,
    ) -> Option<(R, Aftermath)> {
        if self.is_empty() && !begins {
            return None;
        }
        let now = Instant::now();
        let mut locked = self.lock();
        let state = &mut *locked;
        if state.is_sweep_due(now) {
            state.sweep(now);
        }
        if begins && !state.by_key.contains_key(key) {
            state.by_key.insert(key.clone(), CallQueue::new(now));
        }
        let queue = state.by_key.get_mut(key)?;
        let result = by(queue, now);
        queue.count_pause(&mut state.paused, now);
        let aftermath = mem::take(&mut queue.aftermath);
        if queue.is_idle(now) {
            state.by_key.remove(key);
        }
        self.count.store(state.by_key.len(), Ordering::Release);
        Some((result, aftermath))
    }

    /// How many keys are paused, as of the last change of each.
    #[cfg(feature = "metrics")]
    pub(super) fn counted_as_paused(&self) -> usize {
        self.lock().paused
    }

    /// How many keys are paused.
    pub(super) fn paused(&self, now: Instant) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut state = self.lock();
        state.sweep(now);
        state.paused
    }

    fn lock(&self) -> MutexGuard<'_, QueueMap> {
        lock(&self.state)
    }
}

impl QueueMap {
    /// Whether the number of queues has doubled or a minute has passed, so that not each change
    /// looks through all of them.
    fn is_sweep_due(&self, now: Instant) -> bool {
        self.by_key.len() >= self.sweep_at || self.sweep_after.is_none_or(|after| now > after)
    }

    /// Removes idle queues: those of keys without further calls would stay for ever.
    fn sweep(&mut self, now: Instant) {
        self.by_key.retain(|_, queue| {
            queue.count_pause(&mut self.paused, now);
            !queue.is_idle(now)
        });
        self.sweep_at = (2 * self.by_key.len()).max(64);
        self.sweep_after = Some(now + SWEEP_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::{Pause, PauseCause};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_idle_queues_are_removed() {
        let (queues, second) = (CallQueues::default(), Duration::from_secs(1));
        for number in 0..10_000_u64 {
            tokio::time::advance(second / 100).await;
            queues.change(&Key::from(number), true, |queue, now| {
                let until = now + second;
                let cause = PauseCause::Program;
                queue.pause(Pause { until, cause }, now)
            });
        }
        assert!(
            queues.lock().by_key.len() <= 256,
            "{}",
            queues.lock().by_key.len()
        );
        assert_eq!(queues.paused(Instant::now() + second), 0);
    }
}
