use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use throttle_core::{Backend, MemoryBackend};

use super::clock::TokioClock;
use super::error::ShapeError;
use super::schedule::Schedule;
use super::start::Start;
use super::waits::Waits;
use super::wanted::Wanted;

pin_project! {
    /// The future of [`Shaper::schedule`](super::Shaper::schedule). With the first poll it takes its place among the calls
    /// that wait, if it has to wait.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time: before it is ready it holds nothing but its place, and the next call has that at
    /// once. If it is not polled, its turns go to the calls behind it.
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
        Unpolled { schedule: &'a Arc<Schedule<B>>, wanted: Option<Wanted> },
        Waiting { #[pin] waits: Waits<B> },
        Done,
    }
}

impl<'a, B: Backend> ScheduleFuture<'a, B> {
    #[inline]
    pub(super) fn new(schedule: &'a Arc<Schedule<B>>, wanted: Wanted) -> Self {
        Self { state: State::Unpolled { schedule, wanted: Some(wanted) } }
    }
}

impl<B: Backend> Future for ScheduleFuture<'_, B> {
    type Output = Result<(), ShapeError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        if let StateProj::Unpolled { schedule, wanted } = state.as_mut().project()
            && let Some(wanted) = wanted.take()
        {
            match schedule.start(wanted) {
                Ok(Start::Left(_)) => {
                    state.set(State::Done);
                    return Poll::Ready(Ok(()));
                }
                Ok(Start::Waits(waits)) => state.set(State::Waiting { waits }),
                Err(refused) => {
                    state.set(State::Done);
                    return Poll::Ready(Err(refused));
                }
            }
        }
        State::poll_waiting(state, cx)
    }
}

impl<B: Backend> State<'_, B> {
    fn poll_waiting(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), ShapeError>> {
        let StateProj::Waiting { waits } = self.as_mut().project() else {
            panic!("a ScheduleFuture was polled after completion");
        };
        let result = ready!(waits.poll(cx));
        self.set(Self::Done);
        Poll::Ready(result.map(drop))
    }
}

impl<B: Backend> fmt::Debug for ScheduleFuture<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScheduleFuture")
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Waiting;
    use super::*;

    #[test]
    fn shape_waiting_call_takes_at_most_600_bytes() {
        let (future, waiting) =
            (size_of::<ScheduleFuture<'_>>(), size_of::<Waiting>() + size_of::<tokio::time::Sleep>());
        assert!(future + waiting <= 600, "{future} and {waiting}");
    }
}
