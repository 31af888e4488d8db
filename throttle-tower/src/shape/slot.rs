use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use throttle_core::backend::ReceiptItem;
use throttle_core::{Backend, Key, MemoryBackend};
use tokio::time::{Instant, Sleep, sleep_until};

use super::clock::TokioClock;
use super::counters::Waiting;
use super::pace::{Ask, Pace};
use super::pauses::Taken;

/// A place in the schedule: when a call may leave. Await it, then make the call.
///
/// Dropped before it has been awaited to the end, the place is given back: if nothing was scheduled behind it, the
/// schedule closes up; otherwise its time passes unused, because those behind it were told when to leave.
#[must_use = "dropping a slot gives it back"]
pub struct Slot<B: Backend = MemoryBackend<TokioClock>> {
    pace: Arc<Pace<B>>,
    /// What the schedule took for it, until it is used.
    held: Option<Held>,
    cost: u64,
    departs: Instant,
    /// A turn that was taken because of a pause.
    turn: Option<Taken>,
    _waiting: Waiting,
}

/// What was taken tells whose it is; who has taken nothing must keep the key.
enum Held {
    Units(ReceiptItem),
    Nothing(Key),
}

impl Held {
    fn key(&self) -> &Key {
        match self {
            Self::Units(item) => item.key(),
            Self::Nothing(key) => key,
        }
    }
}

impl<B: Backend> Slot<B> {
    pub(super) fn new(
        pace: Arc<Pace<B>>,
        item: Option<ReceiptItem>,
        ask: &Ask,
        departs: Instant,
        waiting: Waiting,
    ) -> Self {
        let held = item.map_or_else(|| Held::Nothing(ask.key.clone()), Held::Units);
        Self { pace, held: Some(held), cost: ask.cost.get(), departs, turn: None, _waiting: waiting }
    }

    /// How long from now until the call may leave. A pause of its key may put that off.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.departs.saturating_duration_since(Instant::now())
    }

    /// Whether its time has come. If not, it is put off.
    fn leave(&mut self) -> bool {
        let Some(held) = &self.held else { return true };
        match self.pace.pauses.leave(held.key(), self.cost, self.departs, self.turn, Instant::now()) {
            Ok(()) => {
                self.held = None;
                self.pace.counters.sent();
                true
            }
            Err(turn) => {
                (self.departs, self.turn) = (turn.at, Some(turn));
                false
            }
        }
    }
}

impl<B: Backend> Drop for Slot<B> {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        if let Some(turn) = self.turn {
            self.pace.pauses.give_back(held.key(), self.cost, turn);
        }
        if let Held::Units(item) = held {
            self.pace.give_back(Some(item));
        }
        self.pace.counters.cancelled();
    }
}

impl<B: Backend> IntoFuture for Slot<B> {
    type Output = ();
    type IntoFuture = Turn<B>;

    fn into_future(self) -> Turn<B> {
        Turn { sleep: None, slot: self }
    }
}

impl<B: Backend> fmt::Debug for Slot<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("departs", &self.departs).finish_non_exhaustive()
    }
}

pin_project! {
    /// Waits for the time of a [`Slot`]: never shorter, and up to about a millisecond longer, which is as fine as tokio's
    /// timers are. It sleeps until an instant, so lateness does not add up.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is ready, the slot is given back.
    ///
    /// # Panics
    ///
    /// When polled outside of a tokio runtime that has its timers enabled.
    #[must_use = "dropping a turn gives its slot back"]
    pub struct Turn<B>
    where
        B: Backend,
    {
        slot: Slot<B>,
        // Made with the first poll, which is where the runtime is.
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl<B: Backend> Future for Turn<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            match this.sleep.as_mut().as_pin_mut() {
                Some(sleep) => ready!(sleep.poll(cx)),
                // What may leave now needs no timer.
                None if this.slot.departs > Instant::now() => {
                    this.sleep.set(Some(sleep_until(this.slot.departs)));
                    continue;
                }
                None => {}
            }
            if this.slot.leave() {
                return Poll::Ready(());
            }
            this.sleep.set(Some(sleep_until(this.slot.departs)));
        }
    }
}

impl<B: Backend> fmt::Debug for Turn<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("slot", &self.slot).finish_non_exhaustive()
    }
}
