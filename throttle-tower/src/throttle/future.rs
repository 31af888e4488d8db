use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use throttle_core::Backend;
use tower_service::Service;

use super::ThrottleBody;
use super::shared::{Admitted, Judged};
use super::slow::{POLLED_AGAIN, Slow};

pin_project! {
    /// The answer of a [`Throttle`](crate::Throttle).
    ///
    /// # Cancel safety
    ///
    /// Dropped while a key is looked up, the request is charged nothing. Dropped while the store decides, it is charged once
    /// or not at all. Dropped later, it stays charged, unless the handler has said what it used by then
    /// ([`Usage`](crate::Usage)).
    ///
    /// A limit with [`Limit::refund_aborted`](crate::Limit::refund_aborted) gives its charge back in both cases: a decision
    /// that is under way is waited for in the background, on the tokio runtime.
    ///
    /// # Panics
    ///
    /// When polled again after it has answered, as futures do.
    pub struct ResponseFuture<S, B, ReqBody>
    where
        S: Service<Request<ReqBody>>,
        B: Backend,
    {
        #[pin]
        state: State<S, B, ReqBody>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, ReqBody>
    where
        S: Service<Request<ReqBody>>,
        B: Backend,
    {
        /// Boxed, because it is large and seldom: futures of this type are moved about on every request.
        Waiting { slow: Pin<Box<Slow<S, B, ReqBody>>> },
        Calling { #[pin] response: S::Future, admitted: Option<Admitted> },
        Refused { response: Option<Response<Bytes>> },
    }
}

impl<S, B, ReqBody> ResponseFuture<S, B, ReqBody>
where
    S: Service<Request<ReqBody>>,
    B: Backend,
{
    pub(super) fn waiting(slow: Slow<S, B, ReqBody>) -> Self {
        Self { state: State::Waiting { slow: Box::pin(slow) } }
    }

    #[inline(always)]
    pub(super) fn calling(response: S::Future, admitted: Option<Admitted>) -> Self {
        Self { state: State::Calling { response, admitted } }
    }

    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<S, B, ReqBody, ResBody> Future for ResponseFuture<S, B, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    B: Backend,
{
    type Output = Result<Response<ThrottleBody<ResBody>>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project().state.project() {
            StateProj::Waiting { slow } => {
                let next = ready!(decided(slow.as_mut(), cx));
                self.as_mut().project().state.set(next);
                // Once: no state leads back to this one.
                self.poll(cx)
            }
            StateProj::Calling { response, admitted } => {
                let result = ready!(response.poll(cx));
                // Without a response, dropping it settles what is to be settled then.
                let admitted = admitted.take();
                let mut response = result?;
                let held = admitted.map(|admitted| admitted.press(&mut response)).unwrap_or_default();
                Poll::Ready(Ok(response.map(|body| ThrottleBody::inner(body, held))))
            }
            StateProj::Refused { response } => {
                let response = response.take().expect(POLLED_AGAIN);
                Poll::Ready(Ok(response.map(ThrottleBody::refusal)))
            }
        }
    }
}

/// What follows on a decision that was waited for.
#[inline(never)]
fn decided<S, B, ReqBody>(slow: Pin<&mut Slow<S, B, ReqBody>>, cx: &mut Context<'_>) -> Poll<State<S, B, ReqBody>>
where
    S: Service<Request<ReqBody>>,
    B: Backend,
{
    Poll::Ready(match ready!(slow.poll(cx)) {
        (Judged::Pass(admitted), mut inner, request) => State::Calling { response: inner.call(request), admitted },
        (Judged::Refuse(response), ..) => State::Refused { response: Some(response) },
    })
}

impl<S, B, ReqBody> fmt::Debug for ResponseFuture<S, B, ReqBody>
where
    S: Service<Request<ReqBody>>,
    B: Backend,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
