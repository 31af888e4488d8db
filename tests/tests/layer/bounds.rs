//! What the compiler must accept: axum's bounds, and nameable types. These tests pass if they
//! compile.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::Route;
use throttle_core::{Backend, BoxBackend};
use throttle_tower::{
    Constant, Gcra, MemoryBackend, Rate, ResponseFuture, Throttle, ThrottleBody, ThrottleLayer,
    limit,
};
use tower::{Layer, Service};

const fn can_be_cloned_shared_and_kept<T: Clone + Send + Sync + 'static>() {}
const fn can_be_sent_and_kept<T: Send + 'static>() {}
const fn can_be_shown<T: std::fmt::Debug>() {}

/// The bounds of axum 0.8's `Router::layer`, word for word.
const fn axum_takes<L>()
where
    L: Layer<Route> + Clone + Send + Sync + 'static,
    L::Service: Service<Request> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request>>::Response: IntoResponse + 'static,
    <L::Service as Service<Request>>::Error: Into<Infallible> + 'static,
    <L::Service as Service<Request>>::Future: Send + 'static,
{
}

const fn axum_takes_the_layer_on<B: Backend>() {
    axum_takes::<ThrottleLayer<B>>();
    can_be_cloned_shared_and_kept::<Throttle<Route, B>>();
    can_be_sent_and_kept::<ResponseFuture<Route, Body>>();
}

const _: () = axum_takes_the_layer_on::<MemoryBackend>();
const _: () = axum_takes_the_layer_on::<BoxBackend>();

const _: () = can_be_shown::<ThrottleLayer>();
const _: () = can_be_shown::<Throttle<u8>>();
const _: () = can_be_shown::<ThrottleBody<u8>>();
const _: () = can_be_shown::<ResponseFuture<Route, Body>>();

/// hyper polls a body in place.
const _: () = {
    const fn unpin<T: Unpin>() {}
    unpin::<ThrottleBody<Body>>();
};

/// A layer that may be left out: with it and without it, the response has the same type.
#[allow(dead_code, reason = "it is done once it compiles")]
fn optional(throttle: Option<ThrottleLayer>) -> axum::Router {
    axum::Router::new().layer(tower::ServiceBuilder::new().option_layer(throttle))
}

/// Any backend works with axum: this function has no bound but `Backend`.
#[allow(dead_code, reason = "it is done once it compiles")]
fn routes<B: Backend>(throttle: ThrottleLayer<B>) -> axum::Router {
    axum::Router::new().layer(throttle)
}

/// An application that stores the layer, and a middleware that stores the service, name them
/// without a type parameter.
struct Application {
    throttle: ThrottleLayer,
    remote: Option<ThrottleLayer<BoxBackend>>,
    service: Throttle<Echo>,
}

#[derive(Clone)]
struct Echo;

impl Service<Request> for Echo {
    type Response = Response;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        std::future::ready(Ok(Response::new(request.into_body())))
    }
}

/// A custom middleware around the throttle, whose future has a name and no box.
struct Around {
    inner: Throttle<Echo>,
}

impl Service<Request> for Around {
    type Response = Response;
    type Error = Infallible;
    type Future = ResponseFuture<Echo, Body>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.inner.call(request)
    }
}

#[tokio::test]
async fn layers_services_and_futures_can_be_named() {
    let limits = limit("p", Gcra::new(Rate::per_minute(1)).burst(1)).by(Constant);
    let builder = ThrottleLayer::builder(limits);
    let throttle = builder.clone().build().unwrap();
    let remote = builder
        .backend(BoxBackend::new(MemoryBackend::new()))
        .build()
        .unwrap();
    let app = Application {
        service: throttle.layer(Echo),
        throttle,
        remote: Some(remote),
    };
    let mut around = Around { inner: app.service };
    assert_eq!(
        around
            .call(Request::new(Body::empty()))
            .await
            .unwrap()
            .status(),
        200
    );
    assert_eq!(
        app.throttle
            .layer(Echo)
            .call(Request::new(Body::empty()))
            .await
            .unwrap()
            .status(),
        429
    );
    assert_eq!(
        app.remote
            .unwrap()
            .layer(Echo)
            .call(Request::new(Body::empty()))
            .await
            .unwrap()
            .status(),
        200
    );
}
