//! Requests that are dropped while the store decides.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, Decision};
use tokio::runtime::Handle;

use super::ask::Calls;
use super::{correct_charges, give_back_unserved};
use crate::throttle::shared_layer::SharedLayer;

/// A decision that is under way, where a limit refunds [aborted](crate::Limit::refund_aborted)
/// requests.
///
/// A store that was asked may charge a request that was dropped since. So if this future is
/// dropped, the decision is waited for in the background, and the charges of such limits are given
/// back.
pub(super) struct RefundOnDrop<B: Backend> {
    shared: Arc<SharedLayer<B>>,
    calls: Calls,
    /// `None` once it is made.
    deciding: Option<Pin<Box<B::Decide>>>,
    /// Where the decision goes on, because the request may be dropped outside of a runtime.
    runtime: Option<Handle>,
}

impl<B: Backend> RefundOnDrop<B> {
    pub(super) fn new(shared: &Arc<SharedLayer<B>>, calls: &[Call], deciding: B::Decide) -> Self {
        let runtime = Handle::try_current().ok();
        Self {
            shared: Arc::clone(shared),
            calls: calls.into(),
            deciding: Some(Box::pin(deciding)),
            runtime,
        }
    }
}

impl<B: Backend> Future for RefundOnDrop<B> {
    type Output = Result<Decision, BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let deciding = self
            .deciding
            .as_mut()
            .expect("a decision was polled after it was made");
        let decided = ready!(deciding.as_mut().poll(cx));
        self.deciding = None;
        Poll::Ready(decided)
    }
}

impl<B: Backend> Drop for RefundOnDrop<B> {
    fn drop(&mut self) {
        let Some(deciding) = self.deciding.take() else {
            return;
        };
        let (shared, calls) = (Arc::clone(&self.shared), mem::take(&mut self.calls));
        let refund = async move {
            give_back_unserved::refund_aborted(&shared, deciding.await, &calls).await
        };
        correct_charges::in_background(&self.shared, refund, self.runtime.as_ref());
    }
}
