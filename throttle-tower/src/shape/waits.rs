use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key};
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::driver;
use super::error::ShapeError;
use super::queue::Polled;
use super::schedule::Schedule;

/// A call is looked at by its own future so long after its turn should have come, if the driver of
/// its key has a runtime that does not run.
const PATIENCE: Duration = Duration::from_millis(20);

/// A call that waits in the queue of its key. Ready when it leaves, with what it was charged if
/// that can be settled.
///
/// Dropping it frees its place.
pub(super) struct Waits<B: Backend> {
    schedule: Arc<Schedule<B>>,
    key: Key,
    /// Until it has left or is refused.
    ticket: Option<u64>,
    /// Boxed, because it is created by the first poll, which happens in the runtime.
    sleep: Option<Pin<Box<Sleep>>>,
    #[cfg(feature = "metrics")]
    since: Option<Instant>,
}

impl<B: Backend> Waits<B> {
    /// A call that was counted as waiting.
    pub(super) fn new(schedule: &Arc<Schedule<B>>, key: Key, ticket: u64) -> Self {
        Self {
            schedule: Arc::clone(schedule),
            key,
            ticket: Some(ticket),
            sleep: None,
            #[cfg(feature = "metrics")]
            since: schedule.counters.start(),
        }
    }

    fn end_wait(&mut self) {
        self.ticket = None;
        self.schedule.counters.end_wait();
        #[cfg(feature = "metrics")]
        self.schedule.counters.waited(self.since.take());
    }
}

impl<B: Backend> Future for Waits<B> {
    type Output = Result<Option<Box<Receipt>>, ShapeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else {
            panic!("a call was polled after it had left")
        };
        loop {
            let now = Instant::now();
            let (look_at, needs_driver) =
                match self.schedule.poll_call(&self.key, ticket, cx.waker()) {
                    Polled::Left(receipt) => {
                        self.end_wait();
                        self.schedule.counters.sent();
                        self.schedule.look_for_pauses(&self.key);
                        return Poll::Ready(Ok(receipt));
                    }
                    Polled::Refused(error) => {
                        self.end_wait();
                        if matches!(error, ShapeError::QueueFull(_)) {
                            self.schedule.counters.refused(&error);
                        }
                        return Poll::Ready(Err(error));
                    }
                    Polled::Waits {
                        look_at,
                        needs_driver,
                    } => (look_at, needs_driver),
                };
            if needs_driver {
                driver::begin(&self.schedule, &self.key, &Handle::current());
            }
            let look_at = look_at.max(now) + PATIENCE;
            let sleep = self
                .sleep
                .get_or_insert_with(|| Box::pin(sleep_until(look_at)));
            if sleep.is_elapsed() || sleep.deadline() > look_at {
                sleep.as_mut().reset(look_at);
            }
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl<B: Backend> Drop for Waits<B> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.end_wait();
            self.schedule.give_up(&self.key, ticket);
            self.schedule.counters.cancelled();
        }
    }
}
