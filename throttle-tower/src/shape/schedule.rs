use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key, LocalShare};
use tokio::time::Instant;

use super::backoff::Backoff;
use super::one_key::OneKey;
use super::pauses::{Pauses, Steps};
use super::queue::{Afterwards, Due, Queue};
use super::queues::Queues;
use super::shared_pauses::SharedPauses;
use super::stats::Counters;
use super::units::Paces;
use crate::limit::OnError;
use crate::time::{micros, time_for};
use crate::usage::{Background, Settling};

/// What the clones of a shaper share: the backend that keeps the schedule, its bounds, and the calls that wait.
pub(super) struct Schedule<B: Backend> {
    pub(super) backend: B,
    pub(super) prepared: Arc<B::Prepared>,
    /// Keeps the constant key in the place of the backend, if nothing else can use that.
    pub(super) one_key: Option<OneKey>,
    /// Decides in this process while the store fails, if the shaper is configured so.
    pub(super) share: Option<LocalShare>,
    pub(super) on_error: OnError,
    pub(super) paces: Paces,
    /// Turns that are later than this are lost, so that they are not caught up all at once; `None` if none is lost.
    pub(super) tolerance: Option<Duration>,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) counters: Counters,
    /// Sends charges back to the store.
    pub(super) background: Background,
    pub(super) queues: Queues,
    pub(super) backoff: Backoff,
    /// What a fleet keeps together of its pauses, if it does.
    pub(super) shared_pauses: Option<SharedPauses<B>>,
    pub(super) known: Known,
}

/// What is learnt about the backend.
#[derive(Default)]
pub(super) struct Known {
    answers_at_once: AtomicBool,
    /// µs of a round trip.
    trip: AtomicU64,
}

impl<B: Backend> Schedule<B> {
    /// The place of a key that the backend does not keep.
    #[inline]
    pub(super) fn one_key(&self, key: &Key) -> Option<&OneKey> {
        self.one_key.as_ref().filter(|_| key.expose_bytes().is_empty())
    }

    /// Whether calls of a key are decided without being waited for, as far as is known.
    pub(super) fn is_at_once(&self, key: &Key) -> bool {
        self.one_key(key).is_some() || self.known.answers_at_once.load(Ordering::Relaxed)
    }

    pub(super) fn answers_at_once(&self) {
        // Written once, because calls on other cores read it.
        if !self.known.answers_at_once.load(Ordering::Relaxed) {
            self.known.answers_at_once.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn trip(&self) -> Duration {
        Duration::from_micros(self.known.trip.load(Ordering::Relaxed))
    }

    /// A single quick round trip does not make the next one quick.
    pub(super) fn note_trip(&self, trip: Duration) {
        let before = self.known.trip.load(Ordering::Relaxed);
        self.known.trip.store(micros(trip).max(before - before / 8), Ordering::Relaxed);
    }

    /// When a turn begins that was due then.
    pub(super) fn not_too_late(&self, due: Instant, now: Instant) -> Instant {
        let earliest = self.tolerance.and_then(|tolerance| now.checked_sub(tolerance));
        earliest.map_or(due, |earliest| earliest.max(due))
    }

    /// Does what had to wait until nothing was locked.
    pub(super) fn finish(&self, afterwards: Afterwards) {
        let Afterwards { wakers, replaced, unused, removed } = afterwards;
        // First, so that a call that is woken does not wait for what no call uses.
        self.give_back(unused);
        wakers.into_iter().for_each(std::task::Waker::wake);
        drop((replaced, removed));
    }

    pub(super) fn settle(&self, receipt: Receipt, settled: impl FnOnce() + Send + 'static) {
        let (backend, prepared, share) = (&self.backend, &self.prepared, self.share.as_ref());
        self.background.settle(Settling { backend, prepared, share, receipt }, None, settled);
    }

    /// The next turn of a key may be due earlier or later than was known.
    pub(super) fn look_again(&self, key: &Key) {
        let (now, mut afterwards) = (Instant::now(), Afterwards::default());
        self.queues.change(key, |queue| {
            queue.is_due(Due { at: now, by_backend: None });
            queue.go_on(now, &mut afterwards);
        });
        self.finish(afterwards);
    }

    /// Forgets when the next turn of a key is due, and what its upstream has asked.
    pub(super) fn forget(&self, key: &Key) {
        let now = Instant::now();
        self.queues.change(key, |queue| queue.pauses = Pauses::new(now));
        self.look_again(key);
    }

    /// Before `until`, requests of a key leave `spacing` apart, or at the pace if that is slower.
    pub(super) fn slow(&self, key: &Key, now: Instant, spacing: Duration, until: Instant) {
        let usual = time_for(self.paces.requests, 1);
        let mut afterwards = Afterwards::default();
        // The calls that wait may leave earlier now.
        let slow = |queue: &mut Queue| {
            queue.pauses.slow(spacing, usual, until, now);
            queue.go_on(now, &mut afterwards);
        };
        if spacing > usual {
            self.queues.change_or_begin(key, now, slow);
        } else {
            self.queues.change(key, slow);
        }
        self.finish(afterwards);
    }

    /// An upstream has announced a wait, in the response to a call that left then: the steps of a long one, or `None`.
    pub(super) fn announce(&self, key: &Key, now: Instant, left: Instant, steps: Option<Steps>) {
        if steps.is_some() {
            self.queues.change_or_begin(key, now, |queue| queue.pauses.announce(left, steps));
        } else {
            self.queues.change(key, |queue| queue.pauses.announce(left, None));
        }
    }

    /// No call of a key leaves before then, in this process.
    pub(super) fn pause_here(&self, key: &Key, now: Instant, until: Instant) {
        if until > now {
            let mut afterwards = Afterwards::default();
            self.queues.change_or_begin(key, now, |queue| {
                queue.pause(until, now);
                queue.go_on(now, &mut afterwards);
            });
            self.finish(afterwards);
        }
    }
}
