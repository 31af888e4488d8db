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
use super::rules::Judged;
use super::slow::{POLLED_AGAIN, Slow};
use super::stamp::Stamp;

pin_project! {
    /// The answer of a [`Throttle`](crate::Throttle).
    ///
    /// # Cancel safety
    ///
    /// Dropped while a key is looked up, the request was charged nothing; while the store decides, once or not at all;
    /// after that, it was charged and stays so.
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
        Calling { #[pin] response: S::Future, stamp: Option<Stamp<B>> },
        Refused { response: Option<Box<Response<Bytes>>> },
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

    pub(super) fn calling(response: S::Future, stamp: Option<Stamp<B>>) -> Self {
        Self { state: State::Calling { response, stamp } }
    }

    pub(super) fn refused(response: Box<Response<Bytes>>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<S, B, ReqBody, ResBody> Future for ResponseFuture<S, B, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    B: Backend,
{
    type Output = Result<Response<ThrottleBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Waiting { slow } => match ready!(slow.as_mut().poll(cx)) {
                    (Judged::Pass(stamp), mut inner, request) => {
                        State::Calling { response: inner.call(request), stamp }
                    }
                    (Judged::Refuse(response), ..) => State::Refused { response: Some(Box::new(response)) },
                },
                StateProj::Calling { response, stamp } => {
                    let mut response = ready!(response.poll(cx))?;
                    if let Some(stamp) = stamp.take() {
                        stamp.press(&mut response);
                    }
                    return Poll::Ready(Ok(response.map(ThrottleBody::inner)));
                }
                StateProj::Refused { response } => {
                    let response = response.take().expect(POLLED_AGAIN);
                    return Poll::Ready(Ok(response.map(ThrottleBody::refusal)));
                }
            };
            state.set(next);
        }
    }
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
