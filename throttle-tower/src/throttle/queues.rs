//! The queues of a layer, one for each key that a request waits for.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::Duration;

use throttle_core::{Algorithm, Key, Timestamp};
use tokio::time::{Instant, sleep_until};

use super::forecast::{Forecast, made_up_for};
use super::line::{GRACE, Line, LineEntry, TurnState};
use crate::event::{Activity, Observers};
use crate::lock::lock;
use crate::time::FAR;

/// Only the first request of a queue asks the backend. The others wait for their turn, and so do
/// new requests, so no request overtakes an earlier one of its key that is polled.
#[derive(Default)]
pub(crate) struct Queues {
    /// The requests in all queues.
    waiting: AtomicUsize,
    /// The requests that ever joined one.
    joined: AtomicU64,
    by_key: Mutex<HashMap<QueueKey, Queue>>,
}

/// A policy by its index in the set, the key, and the reserve of the class: each class waits by
/// itself, so that a higher one passes a lower one.
pub(super) type QueueKey = (usize, Key, u64);

struct Queue {
    line: Line,
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

    /// Takes the last position of a queue; `None` if it would wait in vain there, or too many
    /// requests wait in all queues.
    pub(super) fn join(
        self: &Arc<Self>,
        key: QueueKey,
        joining: &JoinRequest<'_>,
    ) -> Option<QueueTicket> {
        let now = Instant::now();
        self.change(&key, joining.late, |queue| queue.line.pass_overdue(now));
        let entry = LineEntry {
            number: self.joined.fetch_add(1, Ordering::Relaxed),
            units: joining.units,
        };
        let ticket = QueueTicket {
            queues: Arc::clone(self),
            key,
            entry,
            late: joining.late,
            seen: None,
        };
        let reserve = ticket.key.2;
        let joins = ticket.change(|queue| {
            let joins = joining.is_admitted_in_time_behind(queue, reserve)
                && self.waiting.load(Ordering::Acquire) < joining.most;
            if joins {
                queue.line.enter(entry, now);
            }
            joins
        });
        joins.then_some(ticket)
    }

    /// The instant at which a request behind all others of a queue is admitted.
    pub(super) fn admits_by(
        &self,
        key: &QueueKey,
        algorithm: &Algorithm,
        units: u64,
    ) -> Option<Instant> {
        let queues = self.lock();
        let queue = queues.get(key)?;
        Some(
            queue
                .progress
                .forecast?
                .admits_by(algorithm, queue.line.units().saturating_add(units)),
        )
    }

    /// Changes the queue of a key, which is created and forgotten as needed, and wakes the requests
    /// that this concerns.
    fn change<R>(&self, key: &QueueKey, late: Duration, change: impl FnOnce(&mut Queue) -> R) -> R {
        let mut queues = self.lock();
        let progress = Progress {
            late,
            ..Progress::default()
        };
        let new = || Queue {
            line: Line::default(),
            progress,
        };
        let queue = queues.entry(key.clone()).or_insert_with(new);
        let before = queue.line.len();
        let result = change(queue);
        let (after, woken) = (queue.line.len(), queue.line.take_woken());
        if after == 0 {
            queues.remove(key);
        }
        // Adds a negative number, too.
        self.waiting
            .fetch_add(after.wrapping_sub(before), Ordering::AcqRel);
        drop(queues);
        woken.into_iter().for_each(Waker::wake);
        result
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueKey, Queue>> {
        lock(&self.by_key)
    }
}

/// A request that may join a queue.
pub(super) struct JoinRequest<'a> {
    pub(super) algorithm: &'a Algorithm,
    pub(super) units: u64,
    pub(super) deadline: Instant,
    /// Most requests in all queues.
    pub(super) most: usize,
    /// How late turns are taken until that is measured.
    pub(super) late: Duration,
}

impl JoinRequest<'_> {
    fn is_admitted_in_time_behind(&self, queue: &Queue, reserve: u64) -> bool {
        let Some(units) = queue.line.units().checked_add(self.units) else {
            return false;
        };
        let lost = queue.progress.late.saturating_sub(made_up_for(
            self.algorithm,
            self.units.saturating_add(reserve),
        ));
        let turns = u32::try_from(queue.line.len())
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        let late = lost.saturating_mul(turns).min(FAR);
        let forecast = queue.progress.forecast;
        forecast.is_none_or(|forecast| {
            forecast.admits_by(self.algorithm, units) + late <= self.deadline
        })
    }
}

/// A request's position in a queue. Dropping it makes the next request the first.
pub(super) struct QueueTicket {
    queues: Arc<Queues>,
    pub(super) key: QueueKey,
    entry: LineEntry,
    /// See [`JoinRequest::late`].
    late: Duration,
    /// Those who are told when the request leaves, and when it joined.
    seen: Option<(Observers, Instant, usize)>,
}

impl QueueTicket {
    /// Tells the observers of the request, now and when it leaves.
    pub(super) fn observed(mut self, observers: &Observers, limit: usize) -> Self {
        observers.happened(Activity::Queued { limit });
        let joined = observers.start();
        self.seen = joined.map(|joined| (observers.clone(), joined, limit));
        self
    }

    pub(super) fn units(&self) -> u64 {
        self.entry.units
    }

    /// Becomes the first if no other request is; whether it is the first.
    pub(super) fn try_become_first(&self) -> bool {
        self.look(None) == TurnState::Now
    }

    /// Waits to be the first, until an instant at most; whether it is the first. A request that was
    /// passed because it was not polled waits again.
    pub(super) async fn become_first(&self, until: Instant) -> bool {
        let mut timer = pin!(sleep_until(until));
        poll_fn(|context| {
            loop {
                let is_over = Instant::now() >= until;
                // A request that was passed and comes too late takes no turn from the others.
                if is_over && !self.stands() {
                    return Poll::Ready(false);
                }
                let looks = match self.look(Some(context.waker())) {
                    TurnState::Now => return Poll::Ready(true),
                    TurnState::NotYet(_) if is_over => return Poll::Ready(false),
                    TurnState::NotYet(looks) => looks.min(until),
                };
                if timer.deadline() != looks {
                    timer.as_mut().reset(looks);
                }
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Sleeps until an instant with the turn; whether the request still has it then.
    pub(super) async fn sleep_until(&self, due: Instant) -> bool {
        self.keep_turn(due + GRACE);
        sleep_until(due).await;
        self.change(|queue| queue.line.is_first(self.entry))
    }

    /// Sets until when the first request keeps the turn although it is not polled.
    pub(super) fn keep_turn(&self, until: Instant) {
        self.change(|queue| queue.line.keep_turn(self.entry, until));
    }

    pub(super) fn progress(&self) -> Progress {
        self.queues
            .lock()
            .get(&self.key)
            .map_or_else(Progress::default, |queue| queue.progress)
    }

    /// When the first request is due: here, and by the backend's clock. `None` if only the backend
    /// knows.
    pub(super) fn due(&self, algorithm: &Algorithm) -> Option<(Instant, Timestamp)> {
        let Progress {
            decided, forecast, ..
        } = self.progress();
        let ((at, as_of), forecast) = decided.zip(forecast.filter(|_| algorithm.drains()))?;
        let due = forecast.admits_by(algorithm, self.entry.units);
        Some((due, as_of + due.saturating_duration_since(at)))
    }

    /// Notes what is known by a decision about this request, unless it was passed and later
    /// requests were decided.
    pub(super) fn advance(&self, change: impl FnOnce(&mut Progress)) {
        self.change(|queue| {
            if queue.line.contains(self.entry) {
                change(&mut queue.progress);
            }
        });
    }

    /// Whether it was not passed.
    fn stands(&self) -> bool {
        self.change(|queue| queue.line.contains(self.entry))
    }

    fn look(&self, waker: Option<&Waker>) -> TurnState {
        self.change(|queue| queue.line.look(self.entry, waker, Instant::now()))
    }

    fn change<R>(&self, change: impl FnOnce(&mut Queue) -> R) -> R {
        self.queues.change(&self.key, self.late, change)
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.change(|queue| queue.line.leave(self.entry, Instant::now()));
        if let Some((observers, joined, limit)) = &self.seen {
            observers.happened(Activity::LeftQueue {
                limit: *limit,
                after: joined.elapsed(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::backend::Call;
    use throttle_core::{Backend, Gcra, ManualClock, MemoryBackend, Policy, PolicySet, Rate};

    use super::*;

    /// How many requests of so many units a queue takes of which the last one is admitted in two
    /// seconds, if each turn is taken so late.
    fn longest(burst: u64, units: u64, late: Duration) -> usize {
        let policy = Policy::new("p", Gcra::new(Rate::per_second(10)).burst(burst)).unwrap();
        let store = MemoryBackend::builder()
            .clock(ManualClock::default())
            .build();
        let set = store
            .prepare(PolicySet::new(policy.clone()).unwrap())
            .unwrap();
        let decide = || store.decide_now(&set, &[Call::from(Key::from("key"))]);
        let refused = std::iter::repeat_with(decide)
            .find(|decision| !decision.is_admitted())
            .unwrap();
        let (queues, key, now) = (
            Arc::new(Queues::default()),
            (0, Key::from("key"), 0),
            Instant::now(),
        );
        let (algorithm, deadline) = (policy.algorithm(), now + Duration::from_secs(2));
        let join = || {
            queues.join(
                key.clone(),
                &JoinRequest {
                    algorithm,
                    units,
                    deadline,
                    most: 100,
                    late,
                },
            )
        };
        let first = join().unwrap();
        first.advance(|progress| {
            progress.forecast = Some(Forecast::new(&policy, &refused.statuses()[0], now, (1, 0)));
        });
        1 + std::iter::from_fn(join).collect::<Vec<_>>().len()
    }

    /// A queue that stays would keep its key and what was forecast for it.
    #[tokio::test(start_paused = true)]
    async fn queue_is_forgotten_with_its_last_request() {
        let (queues, key) = (Arc::new(Queues::default()), (0, Key::from("key"), 0));
        let policy = Policy::new("p", Gcra::new(Rate::per_second(10))).unwrap();
        let (algorithm, deadline, late) = (policy.algorithm(), Instant::now(), Duration::ZERO);
        let join = |units| {
            queues.join(
                key.clone(),
                &JoinRequest {
                    algorithm,
                    units,
                    deadline,
                    most: 2,
                    late,
                },
            )
        };
        let (first, second) = (join(2).unwrap(), join(3).unwrap());
        let units = || queues.lock().get(&key).map(|queue| queue.line.units());
        assert!(join(1).is_none() && !queues.is_empty());
        assert_eq!(units(), Some(5));
        drop(first);
        assert!(queues.contains(&key));
        assert_eq!(units(), Some(3));
        drop(second);
        assert!(!queues.contains(&key) && queues.is_empty());
    }

    /// One that was passed would take a turn of requests that are in time.
    #[tokio::test(start_paused = true)]
    async fn request_takes_its_turn_at_its_deadline_unless_it_was_passed() {
        let (queues, key, now) = (
            Arc::new(Queues::default()),
            (0, Key::from("key"), 0),
            Instant::now(),
        );
        let policy = Policy::new("p", Gcra::new(Rate::per_second(10))).unwrap();
        let (algorithm, late) = (policy.algorithm(), Duration::ZERO);
        let join = || {
            queues
                .join(
                    key.clone(),
                    &JoinRequest {
                        algorithm,
                        units: 1,
                        deadline: now,
                        most: 2,
                        late,
                    },
                )
                .unwrap()
        };
        let (first, second) = (join(), join());
        assert!(first.become_first(now).await);
        assert!(
            second.become_first(now + 2 * GRACE).await,
            "the first one did not use its turn"
        );
        drop(second);
        assert!(!first.become_first(Instant::now()).await);
    }

    #[tokio::test(start_paused = true)]
    async fn late_turns_shorten_a_queue_unless_the_burst_makes_up_for_them() {
        let late = Duration::from_millis(10);
        assert_eq!(longest(1, 1, Duration::ZERO), 20, "one each 100 ms");
        assert_eq!(longest(1, 1, late), 18, "one each 110 ms");
        assert_eq!(
            longest(1, 1, Duration::from_micros(11_500)),
            17,
            "one each 111.5 ms, the first one too"
        );
        assert_eq!(longest(2, 1, late), 20, "the burst makes up for 100 ms");
        assert_eq!(
            longest(3, 2, 15 * late),
            8,
            "one each 250 ms: beside two units the burst makes up for 100 of 150 ms"
        );
    }
}
