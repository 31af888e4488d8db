use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use throttle_core::{Backend, BackendError, Decision};
use tower_service::Service;

use super::ThrottleBody;
use super::rules::{Calls, Judged, Rules};
use super::stamp::Stamp;
use crate::limit::FutureKey;

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
        Keying { waiting: Option<Waiting<S, B, ReqBody>>, keys: Vec<(usize, u64, FutureKey)> },
        Deciding { waiting: Option<Waiting<S, B, ReqBody>>, #[pin] decision: B::Decide },
        Calling { #[pin] response: S::Future, stamp: Option<Stamp<B>> },
        Refused { response: Option<Response<Bytes>> },
    }
}

/// A request that waits for its keys or its decision.
pub(super) struct Waiting<S, B: Backend, ReqBody> {
    pub(super) inner: S,
    pub(super) rules: Arc<Rules<B>>,
    pub(super) parts: Parts,
    pub(super) body: ReqBody,
    pub(super) calls: Calls,
}

impl<S, B, ReqBody> ResponseFuture<S, B, ReqBody>
where
    S: Service<Request<ReqBody>>,
    B: Backend,
{
    pub(super) fn waiting(waiting: Waiting<S, B, ReqBody>, keys: Vec<(usize, u64, FutureKey)>) -> Self {
        Self { state: State::Keying { waiting: Some(waiting), keys } }
    }

    pub(super) fn calling(response: S::Future, stamp: Option<Stamp<B>>) -> Self {
        Self { state: State::Calling { response, stamp } }
    }

    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<S, B, ReqBody> Waiting<S, B, ReqBody>
where
    S: Service<Request<ReqBody>>,
    B: Backend,
{
    /// Takes over the keys that are known by now. All of them are looked up at the same time.
    ///
    /// # Errors
    ///
    /// The refusal, where a required key turns out to be missing.
    fn poll_keys(
        &mut self,
        keys: &mut Vec<(usize, u64, FutureKey)>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Box<Response<Bytes>>>> {
        let mut next = 0;
        while let Some((index, cost, future)) = keys.get_mut(next) {
            match future.as_mut().poll(cx) {
                Poll::Pending => next += 1,
                Poll::Ready(key) => {
                    self.calls[*index] = self.rules.call(*index, *cost, key, &self.parts)?;
                    drop(keys.remove(next));
                }
            }
        }
        if keys.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn proceed(mut self, decision: Result<Decision, BackendError>) -> State<S, B, ReqBody> {
        match self.rules.judge(decision, &self.calls, &mut self.parts) {
            Judged::Refuse(response) => State::Refused { response: Some(response) },
            Judged::Pass(stamp) => {
                let response = self.inner.call(Request::from_parts(self.parts, self.body));
                State::Calling { response, stamp }
            }
        }
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
                StateProj::Keying { waiting, keys } => {
                    let keyed = ready!(waiting.as_mut().expect(POLLED_AGAIN).poll_keys(keys, cx));
                    let waiting = waiting.take().expect(POLLED_AGAIN);
                    match keyed {
                        Err(response) => State::Refused { response: Some(*response) },
                        Ok(()) => {
                            let decision = waiting.rules.backend.decide(&waiting.rules.prepared, &waiting.calls);
                            State::Deciding { waiting: Some(waiting), decision }
                        }
                    }
                }
                StateProj::Deciding { waiting, decision } => {
                    let decision = ready!(decision.poll(cx));
                    waiting.take().expect(POLLED_AGAIN).proceed(decision)
                }
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

/// The one way to get here breaks the contract of `Future`.
const POLLED_AGAIN: &str = "a ResponseFuture was polled after it had answered";

impl<S, B, ReqBody> fmt::Debug for ResponseFuture<S, B, ReqBody>
where
    S: Service<Request<ReqBody>>,
    B: Backend,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}
