//! The queues of a layer, one for each key that a request waits for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use throttle_core::{Algorithm, Key, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::forecast::{Forecast, made_up_for};
use crate::lock::lock;
use crate::observe::Observers;
use crate::time::FAR;

/// Only the first request of a queue asks the backend. The others wait for their turn, and so do new requests, so no
/// request overtakes an earlier one of its key.
#[derive(Default)]
pub(crate) struct Queues {
    /// The requests in all queues.
    waiting: AtomicUsize,
    by_key: Mutex<HashMap<QueueKey, Queue>>,
}

/// A policy by its place in the set, and the key.
pub(super) type QueueKey = (usize, Key);

struct Queue {
    /// The request that holds the one permit is first. Requests get it in the order in which they ask for it.
    first: Arc<Semaphore>,
    waiting: usize,
    /// The units of all its requests.
    units: u64,
    progress: Progress,
}

/// How far a queue is.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    /// The instant as of which the last decision was made, here and by the backend's clock.
    pub(super) decided: Option<(Instant, Timestamp)>,
    pub(super) forecast: Option<Forecast>,
    /// How late requests are admitted. Zero where they are decided as of their turn.
    pub(super) late: Duration,
}

impl Queues {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    pub(super) fn contains(&self, key: &QueueKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Takes the last place of a queue; `None` if it would wait in vain there, or too many requests wait in all queues.
    pub(super) fn join(self: &Arc<Self>, key: QueueKey, joining: &Joining<'_>) -> Option<Place> {
        let mut queues = self.lock();
        if let Some(queue) = queues.get(&key) {
            joining.is_admitted_in_time_behind(queue).then_some(())?;
        }
        if self.waiting.load(Ordering::Acquire) >= joining.most {
            return None;
        }
        let progress = Progress { late: joining.late, ..Progress::default() };
        let new = || Queue { first: Arc::new(Semaphore::new(1)), waiting: 0, units: 0, progress };
        let queue = queues.entry(key.clone()).or_insert_with(new);
        (queue.waiting, queue.units) = (queue.waiting + 1, queue.units.saturating_add(joining.units));
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let first = Arc::clone(&queue.first);
        drop(queues);
        Some(Place { queues: Arc::clone(self), key, units: joining.units, first, first_turn: None, seen: None })
    }

    /// The instant at which a request behind all others of a queue is admitted.
    pub(super) fn admits_by(&self, key: &QueueKey, algorithm: &Algorithm, units: u64) -> Option<Instant> {
        let queues = self.lock();
        let queue = queues.get(key)?;
        Some(queue.progress.forecast?.admits_by(algorithm, queue.units.saturating_add(units)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueKey, Queue>> {
        lock(&self.by_key)
    }
}

/// A request that may join a queue.
pub(super) struct Joining<'a> {
    pub(super) algorithm: &'a Algorithm,
    pub(super) units: u64,
    pub(super) deadline: Instant,
    /// Most requests in all queues.
    pub(super) most: usize,
    /// How late turns are taken until that is measured.
    pub(super) late: Duration,
}

impl Joining<'_> {
    fn is_admitted_in_time_behind(&self, queue: &Queue) -> bool {
        let Some(units) = queue.units.checked_add(self.units) else { return false };
        let lost = queue.progress.late.saturating_sub(made_up_for(self.algorithm, self.units));
        let turns = u32::try_from(queue.waiting).unwrap_or(u32::MAX).saturating_add(1);
        let late = lost.saturating_mul(turns).min(FAR);
        let forecast = queue.progress.forecast;
        forecast.is_none_or(|forecast| forecast.admits_by(self.algorithm, units) + late <= self.deadline)
    }
}

/// A request's place in a queue. Dropping it makes the next request the first.
pub(super) struct Place {
    queues: Arc<Queues>,
    pub(super) key: QueueKey,
    pub(super) units: u64,
    first: Arc<Semaphore>,
    first_turn: Option<OwnedSemaphorePermit>,
    /// Those who are told when the request leaves, and when it joined.
    seen: Option<(Observers, Instant)>,
}

impl Place {
    /// Tells the observers of the request, now and when it leaves.
    pub(super) fn observed(mut self, observers: &Observers) -> Self {
        observers.each(|observer| observer.queued(self.key.0));
        self.seen = observers.start().map(|joined| (observers.clone(), joined));
        self
    }

    pub(super) fn is_first(&self) -> bool {
        self.first_turn.is_some()
    }

    /// Becomes the first if no other request is; whether it is the first.
    pub(super) fn try_become_first(&mut self) -> bool {
        if self.first_turn.is_none() {
            self.first_turn = Arc::clone(&self.first).try_acquire_owned().ok();
        }
        self.is_first()
    }

    /// Waits to be the first, until an instant at most; whether it is the first.
    pub(super) async fn become_first(&mut self, until: Instant) -> bool {
        let turn = timeout_at(until, Arc::clone(&self.first).acquire_owned()).await;
        self.first_turn = turn.ok().and_then(Result::ok);
        self.is_first()
    }

    pub(super) fn progress(&self) -> Progress {
        self.queues.lock().get(&self.key).map_or_else(Progress::default, |queue| queue.progress)
    }

    /// When the first request is due: here, and by the backend's clock. `None` if only the backend knows.
    pub(super) fn due(&self, algorithm: &Algorithm) -> Option<(Instant, Timestamp)> {
        let Progress { decided, forecast, .. } = self.progress();
        let ((at, as_of), forecast) = decided.zip(forecast.filter(|_| algorithm.drains()))?;
        let due = forecast.admits_by(algorithm, self.units);
        Some((due, as_of + due.saturating_duration_since(at)))
    }

    pub(super) fn advance(&self, change: impl FnOnce(&mut Progress)) {
        if let Some(queue) = self.queues.lock().get_mut(&self.key) {
            change(&mut queue.progress);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        if let Some(queue) = queues.get_mut(&self.key) {
            (queue.waiting, queue.units) = (queue.waiting - 1, queue.units - self.units);
            if queue.waiting == 0 {
                queues.remove(&self.key);
            }
        }
        self.queues.waiting.fetch_sub(1, Ordering::AcqRel);
        drop(queues);
        if let Some((observers, joined)) = &self.seen {
            observers.each(|observer| observer.left_queue(self.key.0, joined.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::backend::Call;
    use throttle_core::{Backend, Gcra, ManualClock, MemoryBackend, Policy, PolicySet, Rate};

    use super::*;

    /// How many requests of so many units a queue takes of which the last one is admitted in two seconds, if each turn is
    /// taken so late.
    fn longest(burst: u64, units: u64, late: Duration) -> usize {
        let policy = Policy::new("p", Gcra::new(Rate::per_second(10)).burst(burst)).unwrap();
        let store = MemoryBackend::builder().clock(ManualClock::default()).build();
        let set = store.prepare(PolicySet::new(policy.clone()).unwrap()).unwrap();
        let decide = || store.decide_now(&set, &[Call::from(Key::from("key"))]);
        let refused = std::iter::repeat_with(decide).find(|decision| !decision.is_admitted()).unwrap();
        let (queues, key, now) = (Arc::new(Queues::default()), (0, Key::from("key")), Instant::now());
        let (algorithm, deadline) = (policy.algorithm(), now + Duration::from_secs(2));
        let join = || queues.join(key.clone(), &Joining { algorithm, units, deadline, most: 100, late });
        let first = join().unwrap();
        first.advance(|progress| {
            progress.forecast = Some(Forecast::new(&policy, &refused.statuses()[0], now, 1));
        });
        1 + std::iter::from_fn(join).collect::<Vec<_>>().len()
    }

    /// A queue that stays would keep its key and what was forecast for it.
    #[tokio::test(start_paused = true)]
    async fn queue_is_forgotten_with_its_last_request() {
        let (queues, key) = (Arc::new(Queues::default()), (0, Key::from("key")));
        let policy = Policy::new("p", Gcra::new(Rate::per_second(10))).unwrap();
        let (algorithm, deadline, late) = (policy.algorithm(), Instant::now(), Duration::ZERO);
        let join = |units| queues.join(key.clone(), &Joining { algorithm, units, deadline, most: 2, late });
        let (first, second) = (join(2).unwrap(), join(3).unwrap());
        let units = || queues.lock().get(&key).map(|queue| queue.units);
        assert!(join(1).is_none() && !queues.is_empty());
        assert_eq!(units(), Some(5));
        drop(first);
        assert!(queues.contains(&key));
        assert_eq!(units(), Some(3));
        drop(second);
        assert!(!queues.contains(&key) && queues.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn late_turns_shorten_a_queue_unless_the_burst_makes_up_for_them() {
        let late = Duration::from_millis(10);
        assert_eq!(longest(1, 1, Duration::ZERO), 20, "one each 100 ms");
        assert_eq!(longest(1, 1, late), 18, "one each 110 ms");
        assert_eq!(longest(1, 1, Duration::from_micros(11_500)), 17, "one each 111.5 ms, the first one too");
        assert_eq!(longest(2, 1, late), 20, "the burst makes up for 100 ms");
        assert_eq!(
            longest(3, 2, 15 * late),
            8,
            "one each 250 ms: beside two units the burst makes up for 100 of 150 ms"
        );
    }
}
