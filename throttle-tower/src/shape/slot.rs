use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use throttle_core::{Backend, MemoryBackend};
use tokio::time::{Instant, Sleep, sleep_until};

use super::clock::TokioClock;
use super::pause_queue::QueuePosition;
use super::slot_charge::SlotCharge;
use super::units::{Accounts, Turn};
use super::waiting_permit::WaitingPermit;

/// A reserved place in the schedule. Await it, then make the call.
///
/// A slot that is dropped before it is ready is given back. If nothing was scheduled behind it, the schedule closes up;
/// otherwise its time passes unused, because the calls behind it already have their times.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::{Shaper, Slot};
/// use throttle_tower::{LeakyBucket, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails = Shaper::new(LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(60)))?;
/// let first: Slot = mails.reserve("smtp.example", 1).await?;
/// let second: Slot = mails.reserve("smtp.example", 1).await?;
/// assert_eq!(first.delay(), Duration::ZERO);
/// assert!(second.delay() >= Duration::from_millis(99));
/// second.await;
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a slot gives it back"]
pub struct Slot<B: Backend = MemoryBackend<TokioClock>> {
    permit: WaitingPermit<B>,
    /// What the schedule charged for the slot, until the call leaves.
    charge: Option<SlotCharge>,
    departs: Instant,
    /// Its position in the queue of a paused key. Boxed, because few calls have one.
    position: Option<Box<QueuePosition>>,
}

impl<B: Backend> Slot<B> {
    pub(super) fn new(permit: WaitingPermit<B>, charge: SlotCharge, departs: Instant) -> Self {
        Self { permit, charge: Some(charge), departs, position: None }
    }

    /// The slot is that of a call of several units.
    pub(super) fn count_by_units(&mut self, accounts: &Accounts, turn: Arc<Turn>) {
        if let Some(charge) = self.charge.take() {
            accounts.enter(&turn, charge, self.departs);
            self.charge = Some(SlotCharge::Units(turn));
        }
    }

    /// How long from now until the call may leave. A pause of its key may lengthen that.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.departs.saturating_duration_since(Instant::now())
    }

    /// Whether the call may leave now. If not, `departs` is the next instant to try.
    fn try_leave(&mut self) -> bool {
        let Some(charge) = &self.charge else { return true };
        let schedule = self.permit.schedule();
        let position = self.position.as_deref().copied();
        match schedule.paused_keys.leave(charge.key(), charge.cost(), self.departs, position, Instant::now()) {
            Ok(()) => {
                if let SlotCharge::Units(turn) = charge {
                    turn.leave();
                }
                schedule.counters.sent();
                schedule.look_for_pauses(charge.key());
                self.charge = None;
                true
            }
            Err(position) => {
                (self.departs, self.position) = (position.at, Some(Box::new(position)));
                false
            }
        }
    }
}

impl<B: Backend> Drop for Slot<B> {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take() else { return };
        let schedule = self.permit.schedule();
        if let Some(position) = &self.position {
            schedule.paused_keys.give_back(charge.key(), **position);
        }
        schedule.give_back(charge);
        schedule.counters.cancelled();
    }
}

impl<B: Backend> IntoFuture for Slot<B> {
    type Output = ();
    type IntoFuture = SlotFuture<B>;

    fn into_future(self) -> SlotFuture<B> {
        SlotFuture { sleep: None, slot: self }
    }
}

impl<B: Backend> fmt::Debug for Slot<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("departs", &self.departs).finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of a [`Slot`]: ready when the call may leave, never earlier, and up to about a millisecond later,
    /// which is the resolution of tokio's timers. It sleeps until an instant, so lateness does not add up.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it is ready, the slot is given back.
    ///
    /// # Panics
    ///
    /// When polled outside of a tokio runtime that has its timers enabled.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_tower::shape::{Shaper, SlotFuture};
    /// use throttle_tower::{LeakyBucket, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mails = Shaper::new(LeakyBucket::new(Rate::per_second(1)).max_wait(Duration::from_secs(60)))?;
    /// mails.schedule("smtp.example", 1).await?;
    /// let began = tokio::time::Instant::now();
    /// let turn: SlotFuture<_> = mails.reserve("smtp.example", 1).await?.into_future();
    /// turn.await;
    /// assert!(began.elapsed() > Duration::from_millis(900));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "dropping it gives its slot back"]
    pub struct SlotFuture<B>
    where
        B: Backend,
    {
        slot: Slot<B>,
        // Created by the first poll, which happens in the runtime.
        #[pin]
        sleep: Option<Sleep>,
    }
}

impl<B: Backend> Future for SlotFuture<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        loop {
            match this.sleep.as_mut().as_pin_mut() {
                Some(sleep) => ready!(sleep.poll(cx)),
                // A call that may leave now needs no timer.
                None if this.slot.departs > Instant::now() => {
                    this.sleep.set(Some(sleep_until(this.slot.departs)));
                    continue;
                }
                None => {}
            }
            if this.slot.try_leave() {
                return Poll::Ready(());
            }
            this.sleep.set(Some(sleep_until(this.slot.departs)));
        }
    }
}

impl<B: Backend> fmt::Debug for SlotFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotFuture").field("slot", &self.slot).finish_non_exhaustive()
    }
}
