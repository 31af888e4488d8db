//! One lookup that several requests wait for.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::directory::Landing;
use super::told::Told;
use crate::lock::lock;

pub(super) type Work = Pin<Box<dyn Future<Output = Told> + Send>>;

/// A lookup under way. Each request that waits for it drives it: it goes on as long as one of them waits, also without
/// the request that began it, and is dropped with the last.
pub(super) struct Flight {
    course: Mutex<Course>,
    waiting: Arc<Waiting>,
    /// What it is worth if the lookup panics.
    otherwise: Told,
    landing: Landing,
}

enum Course {
    Flying(Work),
    Landed(Told),
    /// It panicked, in the request that polled it.
    Lost,
}

/// The wakers of the requests that wait, by their seats: there may be thousands, and each request finds its own.
#[derive(Default)]
struct Waiting(Mutex<BTreeMap<u64, Waker>>);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let woken = std::mem::take(&mut *lock(&self.0));
        woken.into_values().for_each(Waker::wake);
    }
}

impl Flight {
    pub(super) fn new(work: Work, otherwise: Told, landing: Landing) -> Arc<Self> {
        let course = Mutex::new(Course::Flying(work));
        Arc::new(Self { course, waiting: Arc::default(), otherwise, landing })
    }

    /// A future of the answer, for one more request.
    pub(super) fn join(self: &Arc<Self>, seat: u64) -> Joined {
        Joined { flight: Arc::clone(self), seat }
    }
}

/// The tier, once the lookup is done.
pub(super) struct Joined {
    flight: Arc<Flight>,
    seat: u64,
}

impl Future for Joined {
    type Output = Told;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Told> {
        let flight = &self.flight;
        // Held while the lookup is polled, never across an await.
        let mut course = lock(&flight.course);
        // Before it is polled: what wakes it meanwhile wakes this one too.
        lock(&flight.waiting.0).insert(self.seat, cx.waker().clone());
        match std::mem::replace(&mut *course, Course::Lost) {
            Course::Flying(mut work) => {
                let everybody = Waker::from(Arc::clone(&flight.waiting));
                // If it panics, the others must not wait for ever.
                let alarm = Alarm(Some((&flight.landing, everybody.clone())));
                let polled = work.as_mut().poll(&mut Context::from_waker(&everybody));
                alarm.off();
                *course = match polled {
                    Poll::Ready(told) => Course::Landed(told),
                    Poll::Pending => Course::Flying(work),
                };
                drop(course);
                if polled.is_ready() {
                    flight.landing.clear();
                    everybody.wake();
                }
                polled
            }
            Course::Landed(told) => {
                *course = Course::Landed(told);
                Poll::Ready(told)
            }
            Course::Lost => Poll::Ready(flight.otherwise),
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        lock(&self.flight.waiting.0).remove(&self.seat);
    }
}

/// Ends the lookup and wakes everybody unless it is switched off.
struct Alarm<'a>(Option<(&'a Landing, Waker)>);

impl Alarm<'_> {
    fn off(mut self) {
        self.0 = None;
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if let Some((landing, everybody)) = self.0.take() {
            landing.clear();
            everybody.wake();
        }
    }
}
