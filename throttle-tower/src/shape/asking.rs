use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use throttle_core::Backend;
use tokio::runtime::Handle;

use super::pace::Answered;

/// The question to a store that has to be waited for. It is boxed: what it waits for takes far longer.
///
/// Dropped on the way, it is waited for by a task instead, so that a slot that the store hands out all the same comes into
/// somebody's hands, and is given back.
pub(crate) struct Asking<B: Backend> {
    asking: Option<Boxed<B>>,
    /// Before that nobody was asked.
    has_begun: bool,
}

type Boxed<B> = Pin<Box<dyn Future<Output = Answered<B>> + Send>>;

impl<B: Backend> Asking<B> {
    pub(super) fn new(asking: impl Future<Output = Answered<B>> + Send + 'static) -> Self {
        Self { asking: Some(Box::pin(asking)), has_begun: false }
    }
}

impl<B: Backend> Future for Asking<B> {
    type Output = Answered<B>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.has_begun = true;
        let asking = self.asking.as_mut().expect("a question was polled after it was answered");
        let answered = std::task::ready!(asking.as_mut().poll(cx));
        self.asking = None;
        Poll::Ready(answered)
    }
}

impl<B: Backend> Drop for Asking<B> {
    fn drop(&mut self) {
        let Some(asking) = self.asking.take().filter(|_| self.has_begun) else { return };
        if let Ok(runtime) = Handle::try_current() {
            drop(runtime.spawn(async move { drop(asking.await) }));
        }
    }
}
