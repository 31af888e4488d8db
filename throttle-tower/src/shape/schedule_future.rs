use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use throttle_core::{Backend, MemoryBackend};

use super::clock::TokioClock;
use super::error::ShapeError;
use super::reserve::Reservation;
use super::schedule::Schedule;
use super::slot_request::SlotRequest;
use super::waiting::Waiting;

pin_project! {
    /// The future of [`Shaper::schedule`](super::Shaper::schedule). The first poll reserves the slot.
    ///
    /// # Cancel safety
    ///
    /// If it is dropped before it is ready, its slot is given back.
    ///
    /// # Panics
    ///
    /// When polled after completion, and when it has to wait outside of a tokio runtime that has its timers enabled.
    ///
    /// ```
    /// use throttle_tower::shape::{ScheduleFuture, Shaper};
    /// use throttle_tower::{LeakyBucket, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mails = Shaper::new(LeakyBucket::new(Rate::per_second(10)))?;
    /// let turn: ScheduleFuture<'_> = mails.schedule("smtp.example", 1);
    /// assert_eq!(mails.stats().sent, 0);
    /// turn.await?;
    /// assert_eq!(mails.stats().sent, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "nothing is scheduled until it is awaited"]
    pub struct ScheduleFuture<'a, B = MemoryBackend<TokioClock>>
    where
        B: Backend,
    {
        #[pin]
        state: State<'a, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<'a, B>
    where
        B: Backend,
    {
        Unpolled { schedule: &'a Arc<Schedule<B>>, request: SlotRequest },
        Waiting { #[pin] waiting: Waiting<B> },
        Done,
    }
}

impl<'a, B: Backend> ScheduleFuture<'a, B> {
    #[inline]
    pub(super) fn new(schedule: &'a Arc<Schedule<B>>, request: SlotRequest) -> Self {
        Self { state: State::Unpolled { schedule, request } }
    }
}

impl<B: Backend> Future for ScheduleFuture<'_, B> {
    type Output = Result<(), ShapeError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        if let StateProj::Unpolled { schedule, request } = state.as_mut().project() {
            let waiting = match schedule.reserve_at_once(request) {
                Some(Ok(Reservation::LeaveNow)) => {
                    state.set(State::Done);
                    return Poll::Ready(Ok(()));
                }
                Some(Ok(Reservation::Wait(slot))) => slot.into(),
                Some(Err(refused)) => {
                    state.set(State::Done);
                    return Poll::Ready(Err(refused));
                }
                None => schedule.reserve(request.clone()).into(),
            };
            state.set(State::Waiting { waiting });
        }
        State::poll_waiting(state, cx)
    }
}

impl<B: Backend> State<'_, B> {
    fn poll_waiting(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ShapeError>> {
        let StateProj::Waiting { waiting } = self.as_mut().project() else {
            panic!("a ScheduleFuture was polled after completion");
        };
        let result = ready!(waiting.poll(cx));
        self.set(Self::Done);
        Poll::Ready(result)
    }
}

impl<B: Backend> fmt::Debug for ScheduleFuture<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScheduleFuture")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_waiting_call_takes_at_most_300_bytes() {
        assert!(size_of::<ScheduleFuture<'_>>() <= 300, "{}", size_of::<ScheduleFuture<'_>>());
    }
}
