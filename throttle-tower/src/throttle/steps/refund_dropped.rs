//! Requests that are dropped while the store decides.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use throttle_core::{Backend, BackendError, Decision};
use tokio::runtime::Handle;

use crate::throttle::shared::{Calls, Shared};

/// The store's decision about a request, where a limit refunds [aborted](crate::Limit::refund_aborted) ones.
///
/// A store that has been asked may charge a request that is not there any more. Dropped on the way, the decision is therefore
/// waited for behind the request, and what such limits took is given back.
pub(in crate::throttle) struct RefundedIfDropped<B: Backend> {
    shared: Arc<Shared<B>>,
    calls: Calls,
    /// `None` once it is made.
    deciding: Option<Pin<Box<B::Decide>>>,
    /// Where it goes on, for the request may be dropped in a thread that has none.
    runtime: Option<Handle>,
}

impl<B: Backend> RefundedIfDropped<B> {
    pub(in crate::throttle) fn new(shared: &Arc<Shared<B>>, calls: Calls, deciding: B::Decide) -> Self {
        let runtime = Handle::try_current().ok();
        Self { shared: Arc::clone(shared), calls, deciding: Some(Box::pin(deciding)), runtime }
    }
}

impl<B: Backend> Future for RefundedIfDropped<B> {
    type Output = Result<Decision, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let deciding = self.deciding.as_mut().expect("a decision was polled after it was made");
        let decided = ready!(deciding.as_mut().poll(cx));
        self.deciding = None;
        Poll::Ready(decided)
    }
}

impl<B: Backend> Drop for RefundedIfDropped<B> {
    fn drop(&mut self) {
        let Some(deciding) = self.deciding.take() else { return };
        let (shared, calls) = (Arc::clone(&self.shared), mem::take(&mut self.calls));
        self.shared.send(async move { shared.refund_aborted(deciding.await, &calls).await }, self.runtime.as_ref());
    }
}
