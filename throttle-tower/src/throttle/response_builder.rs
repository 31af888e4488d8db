//! How the response of a refusal is built: at once, or by a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::refusal::Refusal;

/// A response that is being built.
pub(super) type RefusalFuture = Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>;

/// The user's closure.
#[derive(Clone)]
pub(super) enum ResponseBuilder {
    AtOnce(Build<Response<Bytes>>),
    Later(Build<RefusalFuture>),
}

type Build<T> = Arc<dyn Fn(&Refusal<'_>) -> T + Send + Sync>;

impl ResponseBuilder {
    pub(super) fn build(&self, refusal: &Refusal<'_>) -> RefusalResponse {
        match self {
            Self::AtOnce(build) => RefusalResponse::Now(build(refusal)),
            Self::Later(build) => RefusalResponse::Later(build(refusal)),
        }
    }
}

/// The response of a refused request.
pub(super) enum RefusalResponse {
    Now(Response<Bytes>),
    Later(RefusalFuture),
}

impl RefusalResponse {
    /// Changes the response, as soon as there is one.
    #[inline]
    pub(super) fn changed(
        mut self,
        change: impl FnOnce(&mut Response<Bytes>) + Send + 'static,
    ) -> Self {
        match self {
            Self::Now(ref mut response) => {
                change(response);
                self
            }
            Self::Later(building) => Self::Later(Box::pin(async move {
                let mut response = building.await;
                change(&mut response);
                response
            })),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    use http::request::Parts;
    use http::{Request, StatusCode};
    use throttle_core::{Backend, Gcra, ManualClock, MemoryBackend, Rate};
    use tower::{Layer, Service, ServiceExt, service_fn};

    use super::*;
    use crate::extract::from_fn;
    use crate::failing_backend::FailingBackend;
    use crate::limit::Unkeyed;
    use crate::{
        Constant, InFlight, Limit, LimitReport, OnError, OnMissing, Throttle, ThrottleBody,
        ThrottleBuilder, ThrottleLayer, limit,
    };

    type Answer = Response<ThrottleBody<()>>;

    /// Admits one request.
    fn one() -> Unkeyed {
        limit("one", Gcra::new(Rate::per_hour(1)).burst(1))
    }

    /// On a clock that stands still.
    fn builder(limit: Limit) -> ThrottleBuilder<MemoryBackend<ManualClock>> {
        let store = MemoryBackend::builder()
            .clock(ManualClock::default())
            .build();
        let builder = ThrottleLayer::builder(limit).backend(store);
        builder.report_in(crate::ReportIn::Both)
    }

    /// Tells what it has read of the request.
    fn echo(refusal: &Refusal<'_>) -> Response<Bytes> {
        let mut response = refusal.default_response();
        let Parts {
            method,
            uri,
            headers,
            ..
        } = refusal.parts;
        let id = headers
            .get("x-request-id")
            .and_then(|id| id.to_str().ok())
            .unwrap_or("none");
        response
            .headers_mut()
            .insert("x-read", format!("{method} {uri} {id}").parse().unwrap());
        response
    }

    /// The same builder at once, or as a future that is not ready at first.
    fn echoing<B: Backend>(builder: ThrottleBuilder<B>, later: bool) -> ThrottleLayer<B> {
        let builder = match later {
            false => builder.response(echo),
            true => builder.response_async(|refusal| {
                let response = echo(refusal);
                async {
                    tokio::task::yield_now().await;
                    response
                }
            }),
        };
        builder.build().unwrap()
    }

    fn request() -> Request<()> {
        Request::post("/orders")
            .header("x-request-id", "7")
            .body(())
            .unwrap()
    }

    type Inner = tower::util::BoxCloneSyncService<Request<()>, Response<()>, Infallible>;

    fn service<B: Backend>(layer: &ThrottleLayer<B>) -> Throttle<Inner, B> {
        layer.layer(Inner::new(service_fn(async |_| Ok(Response::new(())))))
    }

    async fn ask<B: Backend>(layer: &ThrottleLayer<B>) -> Answer {
        service(layer).oneshot(request()).await.unwrap()
    }

    fn told<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
        answer
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap())
    }

    /// Whether the builder answers at once or later, and whether the decision does.
    #[tokio::test]
    async fn every_refusal_is_built_from_the_head_of_its_request() {
        let check = |answer: Answer, status: u16| {
            assert_eq!(
                (answer.status().as_u16(), told(&answer, "x-read")),
                (status, Some("POST /orders 7"))
            );
            assert_eq!(told(&answer, "cache-control"), Some("no-store"));
            let (is_decided, wait) = (
                answer.extensions().get::<LimitReport>().is_some(),
                told(&answer, "retry-after"),
            );
            assert_eq!(
                (is_decided, wait),
                (status == 429, (status == 429).then_some("3600"))
            );
        };
        for later in [false, true] {
            for looked_up in [false, true] {
                let keyed = |key: Option<u64>| {
                    let limit = if looked_up {
                        one().by_async(move |_| ready(key))
                    } else {
                        one().by(from_fn(move |_: &Parts| key))
                    };
                    echoing(
                        builder(limit.on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED))),
                        later,
                    )
                };
                let with_key = keyed(Some(1));
                assert_eq!(
                    told(&ask(&with_key).await, "x-read"),
                    None,
                    "it is admitted"
                );
                check(ask(&with_key).await, 429);
                check(ask(&keyed(None)).await, 401);
            }
            let full = echoing(
                ThrottleLayer::builder(limit("in-flight", InFlight::new(1)).by(Constant)),
                later,
            );
            let held = service(&full).call(request());
            check(ask(&full).await, 503);
            drop(held);
            assert_eq!(ask(&full).await.status(), StatusCode::OK);
            let down = builder(one().by(Constant))
                .on_error(OnError::Closed)
                .backend(FailingBackend);
            check(ask(&echoing(down, later)).await, 503);
        }
    }

    #[tokio::test]
    async fn refusal_whose_response_is_being_built_holds_nothing_and_may_be_dropped() {
        let started = Arc::new(AtomicUsize::new(0));
        let starts = Arc::clone(&started);
        let charges = builder(one().by(Constant));
        let layer = charges.clone().response_async(move |_| {
            starts.fetch_add(1, Ordering::Relaxed);
            pending()
        });
        let [charges, layer] = [charges, layer].map(|one| one.build().unwrap());
        assert_eq!(ask(&layer).await.status(), StatusCode::OK);
        for _ in 0..3 {
            let mut asking = service(&layer).call(request());
            let polled = Pin::new(&mut asking).poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        assert_eq!(started.load(Ordering::Relaxed), 3);
        let refused = ask(&charges).await;
        assert_eq!(
            told(&refused, "retry-after"),
            Some("3600"),
            "the wait is that of one charge"
        );
    }

    #[test]
    fn panic_of_a_builder_charges_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let charges = builder(one().by(Constant));
        let panicking = [
            charges.clone().response(|_| panic!("built at once")),
            charges
                .clone()
                .response_async(|_| async { panic!("built later") }),
        ];
        let panicking = panicking.map(|panicking| panicking.build().unwrap());
        let charges = charges.build().unwrap();
        assert_eq!(runtime.block_on(ask(&charges)).status(), StatusCode::OK);
        for (layer, message) in panicking.iter().zip(["built at once", "built later"]) {
            let panic =
                catch_unwind(AssertUnwindSafe(|| drop(runtime.block_on(ask(layer))))).unwrap_err();
            assert_eq!(*panic.downcast::<&str>().unwrap(), message);
        }
        assert_eq!(
            told(&runtime.block_on(ask(&charges)), "retry-after"),
            Some("3600")
        );
    }

    #[tokio::test]
    async fn last_builder_counts() {
        let empty = |_: &Refusal<'_>| Response::new(Bytes::new());
        for (builder, status) in [
            (
                builder(one().by(Constant))
                    .response(echo)
                    .response_async(move |refusal| ready(empty(refusal))),
                200,
            ),
            (
                builder(one().by(Constant))
                    .response_async(move |refusal| ready(empty(refusal)))
                    .response(echo),
                429,
            ),
        ] {
            let layer = builder.build().unwrap();
            assert_eq!(ask(&layer).await.status(), StatusCode::OK);
            assert_eq!(ask(&layer).await.status().as_u16(), status);
        }
    }
}
