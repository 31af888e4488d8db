use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key, LocalShare};
use tokio::time::Instant;

use super::error::Paused;
use super::one_key::OneKey;
use super::pauses::Pauses;
use super::pauses::shared::SharedPauses;
use super::queue::{Afterwards, Queue};
use super::queues::Queues;
use super::stats::Counters;
use super::units::UnitPaces;
use crate::limit::OnError;
#[cfg(feature = "tracing")]
use crate::observe::trace::EventBudget;
use crate::time::micros;
use crate::usage::{Background, Settling};

/// What the clones of a shaper share: the backend that keeps the schedule, its bounds, and the
/// calls that wait.
pub(super) struct Schedule<B: Backend> {
    pub(super) backend: B,
    pub(super) prepared: Arc<B::Prepared>,
    /// Keeps the constant key in the place of the backend, if nothing else can use that.
    pub(super) one_key: Option<OneKey>,
    /// Decides in this process while the store fails, if the shaper is configured so.
    pub(super) share: Option<LocalShare>,
    pub(super) on_error: OnError,
    pub(super) paces: UnitPaces,
    /// Turns that are later than this are lost, so that they are not caught up all at once; `None`
    /// if none is lost.
    pub(super) tolerance: Option<Duration>,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) counters: Counters,
    #[cfg(feature = "tracing")]
    pub(super) events: EventBudget,
    /// Sends charges back to the store.
    pub(super) background: Background,
    pub(super) queues: Queues,
    /// What a fleet keeps together of its pauses, if it does.
    pub(super) shared_pauses: Option<SharedPauses<B>>,
    /// Whether the backend decides without being waited for, once that is known.
    pub(super) answers_at_once: AtomicBool,
    /// µs of a round trip.
    pub(super) trip: AtomicU64,
}

impl<B: Backend> Schedule<B> {
    /// The place of a key that the backend does not keep.
    #[inline]
    pub(super) fn one_key(&self, key: &Key) -> Option<&OneKey> {
        self.one_key
            .as_ref()
            .filter(|_| key.expose_bytes().is_empty())
    }

    /// Whether calls of a key are decided without being waited for, as far as is known.
    pub(super) fn is_at_once(&self, key: &Key) -> bool {
        self.one_key(key).is_some() || self.answers_at_once.load(Ordering::Relaxed)
    }

    pub(super) fn trip(&self) -> Duration {
        Duration::from_micros(self.trip.load(Ordering::Relaxed))
    }

    /// A single quick round trip does not make the next one quick.
    pub(super) fn note_trip(&self, trip: Duration) {
        let before = self.trip.load(Ordering::Relaxed);
        self.trip
            .store(micros(trip).max(before - before / 8), Ordering::Relaxed);
    }

    /// When a turn begins that was due then.
    pub(super) fn not_too_late(&self, due: Instant, now: Instant) -> Instant {
        let earliest = self
            .tolerance
            .and_then(|tolerance| now.checked_sub(tolerance));
        earliest.map_or(due, |earliest| earliest.max(due))
    }

    /// Changes the queue of a key, which begins one if there is none and `begins` says so.
    pub(super) fn change<R>(
        &self,
        key: &Key,
        begins: bool,
        by: impl FnOnce(&mut Queue, Instant) -> R,
    ) -> Option<R> {
        let (result, afterwards) = self.queues.change(key, begins, by)?;
        self.counters.show_paused(&self.queues);
        let Afterwards {
            wakers,
            driver,
            replaced,
            unused,
            removed,
        } = afterwards;
        // First, so that a call that is woken does not wait for what no call uses.
        self.give_back(unused);
        wakers.into_iter().for_each(Waker::wake);
        driver.iter().for_each(|driver| driver.notify_one());
        drop((replaced, removed));
        Some(result)
    }

    pub(super) fn settle(&self, receipt: Receipt, settled: impl FnOnce() + Send + 'static) {
        let (backend, prepared, share) = (&self.backend, &self.prepared, self.share.as_ref());
        self.background.settle(
            Settling {
                backend,
                prepared,
                share,
                receipt,
            },
            None,
            settled,
        );
    }

    /// The next turn of a key may be due earlier or later than was known.
    pub(super) fn look_again(&self, key: &Key) {
        self.change(key, false, Queue::look_again);
    }

    /// Forgets when the next turn of a key is due, and what its upstream has asked.
    pub(super) fn forget(&self, key: &Key) {
        self.change(key, false, |queue, now| {
            queue.pauses = Pauses::new(now);
            queue.look_again(now);
        });
    }

    /// No call of a key leaves before the pause is over, in this process.
    pub(super) fn pause_here(&self, key: &Key, now: Instant, pause: Paused) {
        if pause.until > now {
            let begins = self.change(key, true, |queue, now| {
                let begins = queue.pause(pause, now);
                queue.go_on(now);
                begins
            });
            if begins == Some(true) {
                self.report_pause(pause, now);
            }
        }
    }
}
