//! Properties that tower expects of a layer: true readiness, errors that pass unchanged, clones
//! that share.

use std::task::Poll;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_tower::shape::{ShapeError, Shaper};
use throttle_tower::{OnError, Pace, Rate, ShapeLayer};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_test::mock;

use crate::support::{MS, Notes, Remote, layer, over, poll, ten, waiting};

type Handle = mock::Handle<u64, u64>;

#[tokio::test(start_paused = true)]
async fn shape_readiness_is_that_of_the_inner_service() {
    let (mut service, mut inner): (_, Handle) = mock::spawn_layer(layer(ten(1_000)));
    inner.allow(0);
    assert!(service.poll_ready().is_pending());
    inner.allow(1);
    assert!(service.is_woken());
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    let response = service.call(1);
    let (request, send) = inner.next_request().await.unwrap();
    assert_eq!(request, 1);
    send.send_response(10);
    assert_eq!(response.await.unwrap(), 10);
    assert!(
        service.poll_ready().is_pending(),
        "the readiness was used up"
    );
}

#[tokio::test(start_paused = true)]
async fn shape_ready_service_is_called_after_the_wait() {
    async fn check(layer: ShapeLayer<u64, u64>) {
        // The mock panics if a clone is called whose readiness was not polled.
        let (service, mut inner): (_, Handle) = mock::pair();
        let mut service = layer.layer(service);
        inner.allow(3);
        let answers = tokio::spawn(async move {
            while let Some((request, send)) = inner.next_request().await {
                send.send_response(request * 10);
            }
        });
        let mut calls = Vec::new();
        for call in 0..3 {
            calls.push(service.ready().await.unwrap().call(call));
        }
        for (call, answer) in calls.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap(), call as u64 * 10);
        }
        drop(service);
        answers.await.unwrap();
    }
    check(layer(ten(1_000))).await;
    check(layer(ten(1_000)).cost(|_| 0)).await;
    check(ShapeLayer::of(over(
        &Remote::new(MS),
        ten(1_000),
        OnError::Closed,
    )))
    .await;
}

#[tokio::test(start_paused = true)]
async fn shape_refused_call_leaves_the_inner_service_ready() {
    let (service, mut inner): (_, Handle) = mock::pair();
    let mut service = layer(ten(0)).layer(service);
    inner.allow(2);
    drop(service.ready().await.unwrap().call(0));
    assert!(
        service
            .ready()
            .await
            .unwrap()
            .call(1)
            .await
            .unwrap_err()
            .queue_full()
            .is_some()
    );
    tokio::time::timeout(MS, service.ready())
        .await
        .expect("as before")
        .unwrap();
}

/// A call that is ready takes no second turn, whatever its future does afterwards.
#[tokio::test(start_paused = true)]
async fn shape_future_that_is_polled_after_completion_panics() {
    let shaper = ten(100).build().unwrap();
    let mut calls = [(); 3].map(|()| Box::pin(shaper.schedule("key", 1)));
    (&mut calls[0]).await.unwrap();
    (&mut calls[1]).await.unwrap();
    assert_eq!(
        shaper.stats().waiting,
        0,
        "a call that has left does not wait"
    );
    let waits = waiting(&shaper, "key").await;
    assert!((&mut calls[2]).await.is_err());
    waits.abort();
    tokio::task::yield_now().await;
    for call in &mut calls {
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(call)));
        let message = again.map(drop).unwrap_err();
        assert_eq!(
            *message.downcast::<&str>().unwrap(),
            "`async fn` resumed after completion"
        );
    }
    assert_eq!((shaper.stats().sent, shaper.stats().refused), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn shape_errors_of_the_service_are_unchanged() {
    #[derive(Debug, PartialEq)]
    struct Own(u64);
    let failing = service_fn(|call: u64| async move { Err::<(), _>(Own(call)) });
    let mut service = layer(ten(1_000)).layer(failing);
    let (at_once, later) = (service.call(1), service.call(2));
    assert!(matches!(at_once.await, Err(ShapeError::Inner(Own(1)))));
    assert!(matches!(later.await, Err(ShapeError::Inner(Own(2)))));

    let (mut service, mut inner): (_, Handle) = mock::spawn_layer(layer(ten(1_000)));
    inner.send_error("out of order");
    let Poll::Ready(Err(error)) = service.poll_ready() else {
        panic!("readiness fails as the service's does")
    };
    assert_eq!(error.into_inner().unwrap().to_string(), "out of order");
}

#[tokio::test(start_paused = true)]
async fn shape_slow_upstream_delays_no_departure() {
    let start = Instant::now();
    let slow = service_fn(|_: u64| async {
        sleep(Duration::from_secs(5)).await;
        Ok::<_, std::convert::Infallible>(())
    });
    let mut service = layer(ten(10_000)).layer(slow);
    let calls: Vec<_> = (0..10)
        .map(|call| tokio::spawn(service.call(call)))
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert!(
        start.elapsed() <= Duration::from_millis(5_902),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn shape_http_answers_a_refused_call_with_a_response() {
    let inner = service_fn(|_: Request<()>| async {
        Ok::<_, std::io::Error>(Response::new(String::from("hello")))
    });
    let pace = Pace::new(Rate::per_second(2)).max_wait(Duration::from_millis(600));
    let layer = ShapeLayer::new(pace).unwrap().http();
    let mut service = layer.layer(inner);
    let mut calls: Vec<_> = (0..3).map(|_| service.call(Request::new(()))).collect();
    let refused = calls.pop().unwrap().await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1", "rounded up");
    assert_eq!(
        refused.headers()["content-type"],
        "application/problem+json"
    );
    assert_eq!(refused.headers()["cache-control"], "no-store");
    for call in calls {
        assert_eq!(call.await.unwrap().status(), StatusCode::OK);
    }

    let remote = Remote::new(MS);
    remote.fail(true);
    let closed = ShapeLayer::of(over(&remote, ten(0), OnError::Closed)).http();
    let unavailable = closed.layer(inner).oneshot(Request::new(())).await.unwrap();
    assert_eq!(unavailable.status(), StatusCode::SERVICE_UNAVAILABLE);

    let nobody_waits = ShapeLayer::of(ten(1_000).max_waiting(0).build().unwrap()).http();
    let mut service = nobody_waits.layer(inner);
    assert_eq!(
        service.call(Request::new(())).await.unwrap().status(),
        StatusCode::OK
    );
    let full = service.call(Request::new(())).await.unwrap();
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        !full.headers().contains_key("retry-after"),
        "the wait is unknown"
    );
}

#[test]
fn shape_types_can_be_named_and_sent() {
    struct Client {
        _http: throttle_tower::shape::Shape<Notes, u64, u64>,
        _layer: ShapeLayer<u64, u64>,
        _shaper: Shaper,
    }
    fn is_send_and_sync<T: Send + Sync>() {}
    fn is_send<T: Send>() {}
    is_send_and_sync::<Client>();
    is_send::<throttle_tower::shape::ShapeFuture<Notes, u64>>();
}

fn layer_of_requests(
    builder: throttle_tower::shape::ShaperBuilder,
) -> ShapeLayer<Request<()>, Response<String>> {
    ShapeLayer::of(builder.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn shape_http_readiness_is_that_of_the_inner_service() {
    type Handle = mock::Handle<Request<()>, Response<String>>;
    let (mut service, mut inner): (_, Handle) =
        mock::spawn_layer(layer_of_requests(ten(1_000)).http());
    inner.allow(0);
    assert!(service.poll_ready().is_pending());
    inner.allow(1);
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
    inner.send_error("out of order");
    assert!(
        matches!(service.poll_ready(), Poll::Ready(Err(error)) if error.to_string() == "out of \
            order")
    );
}
