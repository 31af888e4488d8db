use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use throttle_core::{Backend, MemoryBackend};

use super::clock::TokioClock;
use super::error::ShapeError;
use super::schedule::Schedule;
use super::start::Start;
use super::waits::Waits;
use super::wanted::{Class, Wanted};

/// The future of [`Shaper::schedule`](super::Shaper::schedule). With the first poll it takes its
/// place among the calls that wait, if it has to wait.
///
/// # Cancel safety
///
/// It may be dropped at any time: before it is ready it holds nothing but its place, and the next
/// call has that at once. If it is not polled, its turns go to the calls behind it.
///
/// # Panics
///
/// When polled after completion, and when it has to wait outside of a tokio runtime that has its
/// timers enabled.
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
pub struct ScheduleFuture<'a, B: Backend = MemoryBackend<TokioClock>> {
    schedule: &'a Arc<Schedule<B>>,
    wanted: Wanted,
    state: State<B>,
}

enum State<B: Backend> {
    Unpolled,
    Waiting(Waits<B>),
    Done,
}

impl<'a, B: Backend> ScheduleFuture<'a, B> {
    #[inline]
    pub(super) fn new(schedule: &'a Arc<Schedule<B>>, wanted: Wanted) -> Self {
        Self {
            schedule,
            wanted,
            state: State::Unpolled,
        }
    }
}

impl<B: Backend> Future for ScheduleFuture<'_, B> {
    type Output = Result<(), ShapeError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Unpolled = self.state {
            self.state = State::Done;
            match self.schedule.start(&self.wanted, Class::default)? {
                Start::Left(_) => return Poll::Ready(Ok(())),
                Start::Waits(waits) => self.state = State::Waiting(waits),
            }
        }
        let State::Waiting(waits) = &mut self.state else {
            panic!("a ScheduleFuture was polled after completion");
        };
        let result = ready!(Pin::new(waits).poll(cx));
        self.state = State::Done;
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
        let (future, waiting) = (
            size_of::<ScheduleFuture<'_>>(),
            size_of::<Waiting>() + size_of::<tokio::time::Sleep>(),
        );
        assert!(future + waiting <= 600, "{future} and {waiting}");
    }
}
