use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use throttle_core::{Backend, MemoryBackend};
use tower_service::Service;

use super::future::ResponseFuture;
use super::shared::{Asked, Judged, Shared};
use super::slow::Slow;
use super::{ThrottleBody, ThrottleLayer};

/// A service whose requests are limited: what a [`ThrottleLayer`] makes of one.
///
/// Clones share the limiter. The limit is checked in `call`, where the request is; `poll_ready` only asks the inner
/// service.
#[derive(Clone)]
pub struct Throttle<S, B: Backend = MemoryBackend> {
    inner: S,
    shared: Arc<Shared<B>>,
}

impl<S, B: Backend> Throttle<S, B> {
    pub(super) fn new(inner: S, shared: Arc<Shared<B>>) -> Self {
        Self { inner, shared }
    }

    /// The inner service.
    #[must_use]
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change.
    #[must_use]
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, taken out.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// A layer that limits other services together with this one.
    pub fn to_layer(&self) -> ThrottleLayer<B> {
        ThrottleLayer::from_shared(Arc::clone(&self.shared))
    }
}

impl<S, B, ReqBody, ResBody> Service<Request<ReqBody>> for Throttle<S, B>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    B: Backend,
{
    type Response = Response<ThrottleBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let mut asked = Asked::default();
        if let Err(refusal) = self.shared.ask(&parts, &mut asked) {
            return ResponseFuture::refused(*refusal);
        }
        if asked.waiting.is_empty()
            && !self.shared.stands_in_line(&asked.calls)
            && let Some(answer) = self.shared.answer_at_once(&asked.calls, &asked.needs)
            && !self.shared.is_worth_holding(&answer)
        {
            return match self.shared.conclude(answer, &asked.calls, &asked.needs, &mut parts) {
                Judged::Pass(report) => {
                    ResponseFuture::calling(self.inner.call(Request::from_parts(parts, body)), report)
                }
                Judged::Refuse(refusal) => ResponseFuture::refused(refusal),
            };
        }
        // The decision has to be waited for. It takes along the service that was found ready, not a clone of it.
        let clone = self.inner.clone();
        let inner = mem::replace(&mut self.inner, clone);
        ResponseFuture::waiting(Slow::new(Arc::clone(&self.shared), asked, (inner, parts, body)))
    }
}

impl<S: fmt::Debug, B: Backend> fmt::Debug for Throttle<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("inner", &self.inner).field("policies", &self.shared.answers.policies).finish()
    }
}
