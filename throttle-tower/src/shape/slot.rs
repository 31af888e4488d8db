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
use super::pause_queue::QueuePosition;
use super::schedule::Schedule;
use super::slot_request::SlotRequest;
use super::stats::WaitingPermit;

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
    schedule: Arc<Schedule<B>>,
    /// What the schedule charged for the slot, until the call leaves.
    reserved: Option<Reserved>,
    cost: u64,
    departs: Instant,
    /// Its position in the queue of a paused key.
    position: Option<QueuePosition>,
    _waiting: WaitingPermit,
}

/// A charge names its key. A slot without a charge, which a failing store left open, keeps the key itself.
enum Reserved {
    Units(ReceiptItem),
    Uncharged(Key),
}

impl Reserved {
    fn key(&self) -> &Key {
        match self {
            Self::Units(item) => item.key(),
            Self::Uncharged(key) => key,
        }
    }
}

impl<B: Backend> Slot<B> {
    pub(super) fn new(
        schedule: Arc<Schedule<B>>,
        item: Option<ReceiptItem>,
        request: &SlotRequest,
        departs: Instant,
        waiting: WaitingPermit,
    ) -> Self {
        let reserved = item.map_or_else(|| Reserved::Uncharged(request.key.clone()), Reserved::Units);
        let cost = request.cost.get();
        Self { schedule, reserved: Some(reserved), cost, departs, position: None, _waiting: waiting }
    }

    /// How long from now until the call may leave. A pause of its key may lengthen that.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.departs.saturating_duration_since(Instant::now())
    }

    /// Whether the call may leave now. If not, `departs` is the next instant to try.
    fn try_leave(&mut self) -> bool {
        let Some(reserved) = &self.reserved else { return true };
        let paused_keys = &self.schedule.paused_keys;
        match paused_keys.leave(reserved.key(), self.cost, self.departs, self.position, Instant::now()) {
            Ok(()) => {
                self.reserved = None;
                self.schedule.counters.sent();
                true
            }
            Err(position) => {
                (self.departs, self.position) = (position.at, Some(position));
                false
            }
        }
    }
}

impl<B: Backend> Drop for Slot<B> {
    fn drop(&mut self) {
        let Some(reserved) = self.reserved.take() else { return };
        if let Some(position) = self.position {
            self.schedule.paused_keys.give_back(reserved.key(), self.cost, position);
        }
        if let Reserved::Units(item) = reserved {
            self.schedule.give_back(Some(item));
        }
        self.schedule.counters.cancelled();
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
