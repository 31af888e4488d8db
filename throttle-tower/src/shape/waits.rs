use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use throttle_core::Key;
use throttle_core::backend::Receipt;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};

use super::driver;
use super::error::ShapeError;
use super::queue::CallState;
use super::schedule::Schedule;

/// A call is looked at by its own future so long after its turn should have come, if the driver of
/// its key has a runtime that does not run.
const PATIENCE: Duration = Duration::from_millis(20);

/// A call that waits in the queue of its key. Ready when it leaves, with what it was charged if
/// that can be settled.
///
/// Dropping it frees its position.
pub(super) struct TurnWait {
    schedule: Arc<Schedule>,
    key: Key,
    /// Until it has left or is refused.
    ticket: Option<u64>,
    /// Boxed, because it is created by the first poll, which happens in the runtime.
    sleep: Option<Pin<Box<Sleep>>>,
    since: Instant,
}

impl TurnWait {
    /// A call that was counted as waiting.
    pub(super) fn new(schedule: &Arc<Schedule>, key: Key, ticket: u64) -> Self {
        Self {
            schedule: Arc::clone(schedule),
            key,
            ticket: Some(ticket),
            sleep: None,
            since: Instant::now(),
        }
    }

    fn end_wait(&mut self) {
        self.ticket = None;
        self.schedule.counters.end_wait(self.since);
    }
}

impl Future for TurnWait {
    type Output = Result<Option<Box<Receipt>>, ShapeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(ticket) = self.ticket else {
            panic!("a call was polled after it had left")
        };
        loop {
            let now = Instant::now();
            let (look_at, needs_driver) =
                match self.schedule.poll_call(&self.key, ticket, cx.waker()) {
                    CallState::Left(receipt) => {
                        self.end_wait();
                        self.schedule.counters.sent();
                        self.schedule.look_for_pauses(&self.key);
                        return Poll::Ready(Ok(receipt));
                    }
                    CallState::Refused(error) => {
                        self.end_wait();
                        if matches!(error, ShapeError::QueueFull(_)) {
                            self.schedule.counters.refused(&error);
                        }
                        return Poll::Ready(Err(error));
                    }
                    CallState::Waits {
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

impl Drop for TurnWait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.end_wait();
            self.schedule.give_up(&self.key, ticket);
            self.schedule.counters.cancelled();
        }
    }
}
