//! Requests that are dropped while the store decides.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use throttle_core::backend::{Answer, Call};
use throttle_core::{BackendError, Decision};
use tokio::runtime::Handle;

use super::ask::Calls;
use super::{correct_charges, give_back_unserved};
use crate::throttle::shared_layer::ErasedLayer;

/// A decision that is under way, where a limit refunds [aborted](crate::Limit::refund_aborted)
/// requests.
///
/// A store that was asked may charge a request that was dropped since. So if this future is
/// dropped, the decision is waited for in the background, and the charges of such limits are given
/// back.
pub(super) struct RefundOnDrop {
    shared: Arc<dyn ErasedLayer>,
    calls: Calls,
    /// `None` once it is made.
    deciding: Option<Answer<Decision>>,
    /// Where the decision goes on, because the request may be dropped outside of a runtime.
    runtime: Option<Handle>,
}

impl RefundOnDrop {
    pub(super) fn start(
        shared: &Arc<dyn ErasedLayer>,
        calls: &[Call],
        deciding: Answer<Decision>,
    ) -> Answer<Decision> {
        Box::pin(Self {
            shared: Arc::clone(shared),
            calls: calls.into(),
            deciding: Some(deciding),
            runtime: Handle::try_current().ok(),
        })
    }
}

impl Future for RefundOnDrop {
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

impl Drop for RefundOnDrop {
    fn drop(&mut self) {
        let Some(deciding) = self.deciding.take() else {
            return;
        };
        let (shared, calls) = (Arc::clone(&self.shared), mem::take(&mut self.calls));
        let refund = async move {
            give_back_unserved::refund_aborted(&*shared, deciding.await, &calls).await
        };
        correct_charges::in_background(&*self.shared, refund, self.runtime.as_ref());
    }
}
