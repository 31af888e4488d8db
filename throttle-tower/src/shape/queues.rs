use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use throttle_core::Key;
use tokio::time::Instant;

use super::queue::Queue;
use crate::lock::lock;

/// The keys for which calls wait, or of which an upstream has asked something.
#[derive(Default)]
pub(super) struct Queues {
    /// The number of keys, so that calls take no lock while there is none.
    count: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_key: HashMap<Key, Queue>,
    /// The number of keys at which the next sweep removes idle ones.
    sweep_at: usize,
}

impl Queues {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Changes the queue of a key, if it has one. A queue that is idle afterwards is removed.
    pub(super) fn change<R>(&self, key: &Key, change: impl FnOnce(&mut Queue) -> R) -> Option<R> {
        if self.is_empty() {
            return None;
        }
        let mut state = self.lock();
        let queue = state.by_key.get_mut(key)?;
        let result = change(queue);
        if queue.is_idle(Instant::now()) {
            state.by_key.remove(key);
        }
        self.count.store(state.by_key.len(), Ordering::Release);
        Some(result)
    }

    /// Changes the queue of a key. It gets one, if it has none.
    pub(super) fn change_or_begin<R>(&self, key: &Key, now: Instant, change: impl FnOnce(&mut Queue) -> R) -> R {
        let mut state = self.lock();
        if !state.by_key.contains_key(key) {
            state.sweep(now);
        }
        let queue = state.by_key.entry(key.clone()).or_insert_with(|| Queue::new(now));
        let result = change(queue);
        if queue.is_idle(now) {
            state.by_key.remove(key);
        }
        self.count.store(state.by_key.len(), Ordering::Release);
        result
    }

    /// How many keys are paused or slowed down.
    pub(super) fn paused(&self, now: Instant) -> usize {
        if self.is_empty() {
            0
        } else {
            self.lock().by_key.values().filter(|queue| queue.pauses.is_active(now)).count()
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Removes idle queues: those of keys without further calls would stay for ever. A sweep only when the number of
    /// keys has doubled since the last one makes its cost constant per key.
    fn sweep(&mut self, now: Instant) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, queue| !queue.is_idle(now));
            self.sweep_at = (2 * self.by_key.len()).max(64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_idle_queues_are_removed() {
        let (queues, start) = (Queues::default(), Instant::now());
        let second = Duration::from_secs(1);
        for number in 0..10_000_u64 {
            let now = start + second * u32::try_from(number).expect("a few thousand") / 100;
            queues.change_or_begin(&Key::from(number), now, |queue| queue.pause(now + second, now));
        }
        assert!(queues.lock().by_key.len() <= 256, "{}", queues.lock().by_key.len());
        assert_eq!(queues.paused(start + 1_000 * second), 0);
    }
}
