use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use throttle_core::backend::{BoxPrepared, Receipt};
use throttle_core::{Backend, BoxBackend, Key, LocalShare};
use tokio::time::Instant;

use super::error::Pause;
use super::pauses::Pauses;
use super::queue::CallQueue;
use super::queues::CallQueues;
use super::shared_pauses::SharedPauses;
use super::stats::ShapeCounters;
use super::unit_paces::UnitPaces;
use crate::limit::OnError;
#[cfg(feature = "tracing")]
use crate::observe::trace::EventBudget;
use crate::time::micros;
use crate::usage::Background;

/// What the clones of a shaper share: the backend that keeps the schedule, its bounds, and the
/// calls that wait.
pub(super) struct Schedule {
    pub(super) backend: BoxBackend,
    pub(super) prepared: Arc<BoxPrepared>,
    /// Decides in this process while the store fails, if the shaper is configured so.
    pub(super) share: Option<LocalShare>,
    pub(super) on_error: OnError,
    pub(super) paces: UnitPaces,
    /// Turns that are later than this are lost, so that they are not caught up all together; `None`
    /// if none is lost.
    pub(super) tolerance: Option<Duration>,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
    pub(super) counters: ShapeCounters,
    #[cfg(feature = "tracing")]
    pub(super) events: EventBudget,
    /// Sends charges back to the store.
    pub(super) background: Background,
    pub(super) queues: CallQueues,
    /// What a fleet keeps together of its pauses, if it does.
    pub(super) shared_pauses: Option<Arc<SharedPauses>>,
    /// µs of a round trip.
    pub(super) trip: AtomicU64,
}

impl Schedule {
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
        by: impl FnOnce(&mut CallQueue, Instant) -> R,
    ) -> Option<R> {
        let (result, aftermath) = self.queues.change(key, begins, by)?;
        self.counters.show_paused(&self.queues);
        // First, so that a call that is woken does not wait for what no call uses.
        self.give_back(aftermath.unused);
        aftermath.wakers.into_iter().for_each(Waker::wake);
        if let Some(driver) = aftermath.driver {
            driver.notify_one();
        }
        Some(result)
    }

    pub(super) fn settle(&self, receipt: Receipt, settled: impl FnOnce() + Send + 'static) {
        let share = self.share.as_ref();
        let background = &self.background;
        let settle = |receipt| self.backend.settle(&self.prepared, receipt);
        background.settle(
            settle,
            self.backend.can_fail(),
            share,
            receipt,
            None,
            settled,
        );
    }

    /// The next turn of a key may be due earlier or later than was known.
    pub(super) fn look_again(&self, key: &Key) {
        self.change(key, false, CallQueue::look_again);
    }

    /// Forgets when the next turn of a key is due, and what its upstream has asked.
    pub(super) fn forget(&self, key: &Key) {
        self.change(key, false, |queue, now| {
            queue.pauses = Pauses::new(now);
            queue.look_again(now);
        });
    }

    /// No call of a key leaves before the pause is over, in this process.
    pub(super) fn pause_here(&self, key: &Key, now: Instant, pause: Pause) {
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
