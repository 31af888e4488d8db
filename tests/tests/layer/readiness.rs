//! Only a service that returned ready is called, and only for admitted requests.

use std::task::Poll;

use http::{Request, Response, StatusCode};
use throttle_core::BoxBackend;
use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
use tower::{Layer, Service, ServiceExt};
use tower_test::mock;

use crate::common::{Remote, Strict, Text, get, memory, poll, shared};

type Handle = mock::Handle<Request<&'static str>, Response<Text>>;

fn ask(body: &'static str) -> Request<&'static str> {
    Request::new(body)
}

/// Waits for a call to the inner service, responds, and returns the request that it received.
async fn answer(inner: &mut Handle) -> &'static str {
    let (request, send) = inner.next_request().await.unwrap();
    send.send_response(Response::new(Text::from("hello")));
    request.into_body()
}

#[tokio::test]
async fn readiness_is_the_inner_services() {
    let layer = ThrottleLayer::new(shared("p", 1)).unwrap();
    let (mut service, mut inner): (_, Handle) = mock::spawn_layer(layer);

    inner.allow(0);
    assert!(service.poll_ready().is_pending());
    assert!(!service.is_woken());
    inner.allow(1);
    assert!(service.is_woken());
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));

    let response = service.call(ask("one"));
    assert_eq!(answer(&mut inner).await, "one");
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    assert!(
        service.poll_ready().is_pending(),
        "the readiness was used up"
    );
}

#[tokio::test]
async fn readiness_does_not_depend_on_the_limit() {
    let layer = ThrottleLayer::new(shared("p", 1)).unwrap();
    let (mut service, mut inner): (_, Handle) = mock::spawn_layer(layer);
    inner.allow(1);

    assert!(service.poll_ready().is_ready());
    let admitted = service.call(ask("one"));
    answer(&mut inner).await;
    admitted.await.unwrap();
    assert!(
        service.poll_ready().is_pending(),
        "the inner service is busy"
    );
    inner.allow(1);
    assert!(
        service.poll_ready().is_ready(),
        "the limit is exhausted, and that is for `call` to say"
    );
    assert_eq!(
        service.call(ask("two")).await.unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[tokio::test]
async fn readiness_does_not_wait_for_the_backend() {
    let backend = Remote::slow(0, 0);
    let layer = ThrottleLayer::builder(shared("p", 1))
        .backend(backend.clone())
        .build()
        .unwrap();
    let (mut service, mut inner): (_, Handle) = mock::spawn_layer(layer);
    inner.allow(2);

    assert!(service.poll_ready().is_ready());
    let mut waiting = Box::pin(service.call(ask("one")));
    assert!(poll(&mut waiting).is_pending());
    assert!(
        service.poll_ready().is_ready(),
        "one request's decision holds up no other request"
    );
}

#[tokio::test]
async fn inner_service_is_not_called_for_a_refused_request() {
    let builder = || ThrottleLayer::builder(shared("p", 1));
    for backend in [
        BoxBackend::new(memory()),
        BoxBackend::new(Remote::slow(2, 2)),
    ] {
        let service = builder()
            .backend(backend)
            .build()
            .unwrap()
            .layer(Strict::default());
        assert_eq!(
            service.clone().oneshot(get()).await.unwrap().status(),
            StatusCode::OK
        );
        assert_eq!(
            service.clone().oneshot(get()).await.unwrap().status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(service.get_ref().calls(), 1);
    }
}

/// The clone trap: a future that takes a fresh clone calls a service that was never polled ready.
#[tokio::test]
async fn a_decision_that_is_waited_for_calls_the_service_that_was_ready() {
    let backend = Remote::slow(0, 1);
    let layer = ThrottleLayer::builder(shared("p", 2))
        .backend(backend.clone())
        .build()
        .unwrap();
    let mut service = layer.layer(Strict::default());

    service.ready().await.unwrap();
    let mut response = Box::pin(service.call(get()));
    assert!(poll(&mut response).is_pending());
    assert_eq!(service.get_ref().calls(), 0);
    backend.let_in();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK);
    assert_eq!(service.get_ref().calls(), 1);
}

/// When a request takes the ready service, the service that remains must be polled ready again
/// before it is called.
#[tokio::test]
#[should_panic = "called without having been found ready"]
async fn readiness_is_used_once_when_the_decision_is_waited_for() {
    let layer = ThrottleLayer::builder(shared("p", 2))
        .backend(Remote::slow(2, 2))
        .build()
        .unwrap();
    let mut service = layer.layer(Strict::default());
    service.ready().await.unwrap();
    let first = service.call(get());
    assert_eq!(
        first.await.unwrap().status(),
        StatusCode::OK,
        "the first call is in order"
    );
    let _ = service.call(get()).await;
}

#[tokio::test]
#[should_panic = "called without having been found ready"]
async fn a_clone_has_to_be_found_ready_by_itself() {
    let mut service = ThrottleLayer::new(shared("p", 2))
        .unwrap()
        .layer(Strict::default());
    service.ready().await.unwrap();
    let mut clone = service.clone();
    let _ = service.call(get()).await;
    let _ = clone.call(get()).await;
}

#[tokio::test]
async fn errors_of_the_inner_service_pass_untouched() {
    let layer = ThrottleLayer::builder(shared("p", 5))
        .backend(memory())
        .build()
        .unwrap();
    let (mut service, mut inner): (_, Handle) = mock::spawn_layer(layer);

    inner.send_error("not ready");
    let Poll::Ready(Err(error)) = service.poll_ready() else {
        panic!("poll_ready hides the error")
    };
    assert_eq!(error.to_string(), "not ready");

    inner.allow(1);
    assert!(service.poll_ready().is_ready());
    let response = service.call(ask("one"));
    let (_, send) = inner.next_request().await.unwrap();
    send.send_error("broken");
    let error = response.await.map(drop).unwrap_err();
    assert_eq!(error.to_string(), "broken");
}

#[tokio::test]
async fn errors_pass_untouched_after_a_decision_that_was_waited_for() {
    #[derive(Debug, PartialEq)]
    struct Broken(u8);
    let inner = tower::service_fn(|_: Request<Text>| async { Err::<Response<Text>, _>(Broken(7)) });
    let builder = ThrottleLayer::builder(shared("p", 5));
    for result in [
        builder
            .clone()
            .backend(Remote::slow(1, 1))
            .build()
            .unwrap()
            .layer(inner)
            .oneshot(get())
            .await
            .map(drop),
        builder
            .clone()
            .backend(BoxBackend::new(Remote::slow(1, 1)))
            .build()
            .unwrap()
            .layer(inner)
            .oneshot(get())
            .await
            .map(drop),
    ] {
        assert_eq!(result, Err(Broken(7)));
    }
}

/// The request reaches the inner service unchanged, except for the report in its extensions.
#[tokio::test]
async fn the_request_is_passed_on_unchanged() {
    let (service, mut inner): (_, Handle) = mock::spawn_layer(
        ThrottleLayer::new(limit("p", Gcra::new(Rate::per_second(1))).by(Constant)).unwrap(),
    );
    inner.allow(1);
    let mut request = Request::put("http://example.org/a?b=c")
        .header("x-one", "1")
        .body("body")
        .unwrap();
    request.extensions_mut().insert(7_u8);
    let response = tokio::spawn(service.into_inner().oneshot(request));
    let (seen, send) = inner.next_request().await.unwrap();
    assert_eq!(
        (seen.method().as_str(), seen.uri().to_string()),
        ("PUT", "http://example.org/a?b=c".to_owned())
    );
    assert_eq!(
        (seen.headers()["x-one"].as_bytes(), seen.headers().len()),
        (&b"1"[..], 1)
    );
    assert_eq!(
        (seen.extensions().get::<u8>(), seen.body()),
        (Some(&7), &"body")
    );
    send.send_response(Response::new(Text::default()));
    response.await.unwrap().unwrap();
}
