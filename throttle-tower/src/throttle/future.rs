use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::request_guard::RequestGuard;
use super::response_body::{ResponseBody, passed, refused};
use super::response_builder::{RefusalFuture, RefusalResponse};
use super::steps::judge::{AdmittedRequest, Verdict};

pin_project! {
    /// The future of a [`Throttle`](crate::Throttle)'s response.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped while a key is looked up, the request is not charged. If it is
    /// dropped while the store decides, the request is charged once or not at all. If it is dropped
    /// later, the charge stays, unless the handler has settled its [`Usage`](crate::Usage) by then.
    ///
    /// A limit with [`Limit::refund_aborted`](crate::Limit::refund_aborted) gives its charge back
    /// in the last two cases. If the decision is still pending, the layer awaits it in the
    /// background, on the tokio runtime.
    ///
    /// If it is dropped while the response of a refusal is built, nothing changes: a refused
    /// request is charged by limits with [`charge_refused`](crate::Limit::charge_refused) only, and
    /// stays so.
    ///
    /// # Panics
    ///
    /// When it is polled again after it has returned the response.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::{Constant, InFlight, ResponseFuture, ThrottleLayer, limit};
    /// use tower::{Layer, Service, service_fn};
    ///
    /// let inner = service_fn(|_: Request<()>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new("hello"))
    /// });
    /// let throttle = ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant))?;
    /// let response: ResponseFuture<_, _> = throttle.layer(inner).call(Request::new(()));
    /// assert_eq!(throttle.in_flight("in-flight"), Some(1));
    /// drop(response);
    /// assert_eq!(throttle.in_flight("in-flight"), Some(0));
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub struct ResponseFuture<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        #[pin]
        state: State<S, ReqBody>,
    }
}

/// What becomes of a request that has to wait.
pub(super) type VerdictFuture = Pin<Box<dyn Future<Output = (Verdict, Parts)> + Send>>;

pin_project! {
    #[project = StateProj]
    enum State<S, ReqBody>
    where
        S: Service<Request<ReqBody>>,
    {
        Waiting { verdict: VerdictFuture, request: Option<(S, ReqBody)> },
        Calling { #[pin] response: S::Future, admitted: Option<AdmittedRequest> },
        Refusing { building: RefusalFuture },
        Refused { response: Option<Response<Bytes>> },
    }
}

impl<S, ReqBody> ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    /// `inner` is the service that `poll_ready` prepared.
    pub(super) fn waiting(verdict: VerdictFuture, inner: S, body: ReqBody) -> Self {
        Self {
            state: State::Waiting {
                verdict,
                request: Some((inner, body)),
            },
        }
    }

    #[inline(always)]
    pub(super) fn calling(response: S::Future, admitted: AdmittedRequest) -> Self {
        Self {
            state: State::Calling {
                response,
                admitted: Some(admitted),
            },
        }
    }

    pub(super) fn refused(response: RefusalResponse) -> Self {
        Self {
            state: State::refused(response),
        }
    }
}

impl<S, ReqBody> State<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    #[inline]
    fn refused(response: RefusalResponse) -> Self {
        match response {
            RefusalResponse::Now(response) => Self::Refused {
                response: Some(response),
            },
            RefusalResponse::Later(building) => Self::Refusing { building },
        }
    }
}

const POLLED_AGAIN: &str = "a ResponseFuture was polled after it had returned the response";

impl<S, ReqBody, ResBody> Future for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: ResponseBody,
{
    type Output = Result<Response<ResBody::Throttled>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project().state.project() {
            StateProj::Waiting { verdict, request } => {
                let (verdict, parts) = ready!(verdict.as_mut().poll(cx));
                let (inner, body) = request.take().expect(POLLED_AGAIN);
                let next = after(verdict, inner, parts, body);
                self.as_mut().project().state.set(next);
                // Once: no state leads back to this one.
                self.poll(cx)
            }
            StateProj::Calling { response, admitted } => {
                // Where it is: a response is large to be moved.
                let mut polled = response.poll(cx);
                let guard = match &mut polled {
                    Poll::Ready(Ok(response)) => {
                        admitted.as_mut().expect(POLLED_AGAIN).respond(response)
                    }
                    // Without a response, dropping it settles the charges.
                    Poll::Ready(Err(_)) => RequestGuard::default(),
                    Poll::Pending => return Poll::Pending,
                };
                *admitted = None;
                polled.map_ok(|response| passed(response, guard))
            }
            StateProj::Refusing { building } => {
                let response = ready!(building.as_mut().poll(cx));
                self.as_mut()
                    .project()
                    .state
                    .set(State::Refused { response: None });
                Poll::Ready(Ok(refused::<ResBody>(response)))
            }
            StateProj::Refused { response } => {
                let response = response.take().expect(POLLED_AGAIN);
                Poll::Ready(Ok(refused::<ResBody>(response)))
            }
        }
    }
}

#[inline(never)]
fn after<S, ReqBody>(
    verdict: Verdict,
    mut inner: S,
    parts: Parts,
    body: ReqBody,
) -> State<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    match verdict {
        Verdict::Pass(admitted) => {
            let response = inner.call(Request::from_parts(parts, body));
            State::Calling {
                response,
                admitted: Some(admitted),
            }
        }
        Verdict::Refuse(response) => State::refused(response),
    }
}

impl<S, ReqBody> fmt::Debug for ResponseFuture<S, ReqBody>
where
    S: Service<Request<ReqBody>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Waker;

    use http::StatusCode;
    use throttle_core::{Gcra, Rate};
    use tower::{Layer, service_fn};

    use super::*;
    use crate::{Constant, ThrottleLayer, limit};

    /// Whether the request was passed on or refused, whether that was decided at once or waited
    /// for, and whether the response of the refusal was.
    #[tokio::test]
    async fn response_is_returned_once() {
        let one = || limit("p", Gcra::new(Rate::per_hour(1)).burst(1));
        let waited = one().by_async(|_| std::future::ready(Some(1)));
        let built_later = |_: &crate::Refusal<'_>| {
            let response = Response::builder()
                .status(StatusCode::TOO_MANY_REQUESTS)
                .body(Bytes::new())
                .unwrap();
            std::future::ready(response)
        };
        let layer = |limits| ThrottleLayer::builder(limits);
        let layers = [
            layer(one().by(Constant)),
            layer(waited.clone()),
            layer(one().by(Constant)).response_async(built_later),
            layer(waited).response_async(built_later),
        ];
        for throttle in layers {
            // The inner service's future may be polled as often as one likes.
            let inner = service_fn(|_: Request<()>| {
                std::future::poll_fn(|_| Poll::Ready(Ok::<_, Infallible>(Response::new(()))))
            });
            let mut throttle = throttle.build().unwrap().layer(inner);
            for status in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
                let mut future = Box::pin(throttle.call(Request::new(())));
                assert_eq!(format!("{future:?}"), "ResponseFuture");
                let mut poll = || {
                    future
                        .as_mut()
                        .poll(&mut Context::from_waker(Waker::noop()))
                };
                assert!(matches!(poll(), Poll::Ready(Ok(response)) if response.status() == status));
                let message = catch_unwind(AssertUnwindSafe(|| drop(poll()))).unwrap_err();
                assert_eq!(
                    *message.downcast::<String>().unwrap_or_default(),
                    POLLED_AGAIN,
                    "{status}"
                );
            }
        }
    }
}
