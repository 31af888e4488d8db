use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A reservation that waits for a store. It is boxed, because a round trip takes far longer than an allocation.
///
/// If it is dropped before it is ready, a task finishes it and drops the result: the store may have handed out a slot,
/// and dropping that slot gives it back.
pub(super) struct PendingReservation<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    /// Before the first poll nothing was sent to the store.
    was_polled: bool,
}

impl<T: Send + 'static> PendingReservation<T> {
    pub(super) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)), was_polled: false }
    }
}

impl<T: Send + 'static> Future for PendingReservation<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.was_polled = true;
        let future = self.future.as_mut().expect("a reservation was polled after completion");
        let result = std::task::ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for PendingReservation<T> {
    fn drop(&mut self) {
        let Some(future) = self.future.take().filter(|_| self.was_polled) else { return };
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move { drop(future.await) }));
        }
    }
}
