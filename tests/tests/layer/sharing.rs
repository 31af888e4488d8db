//! Clones are the same limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::StatusCode;
use throttle_core::BoxBackend;
use throttle_tower::headers::Dialect;
use throttle_tower::{
    ClientIp, Constant, Gcra, InFlight, LimitReport, OnError, Rate, Throttle, ThrottleLayer, all,
    limit,
};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, get, memory, poll, shared};

async fn status<B: throttle_core::Backend>(service: &Throttle<Strict, B>) -> u16 {
    service
        .clone()
        .oneshot(get())
        .await
        .unwrap()
        .status()
        .as_u16()
}

#[tokio::test]
async fn a_layer_of_a_service_shares_its_budget() {
    let one = ThrottleLayer::new(shared("p", 1))
        .unwrap()
        .layer(Strict::default());
    let two = one.to_layer().layer(Strict::default());
    assert_eq!((status(&one).await, status(&two).await), (200, 429));
    assert_eq!(two.get_ref().calls(), 0);
}

#[tokio::test]
async fn layers_with_other_settings_on_one_store_share_the_budget() {
    let builder = ThrottleLayer::builder(shared("p", 1)).backend(memory());
    let quiet = builder.clone().headers(Dialect::None).build().unwrap();
    let quiet = quiet.layer(Strict::default());
    let loud = builder.build().unwrap().layer(Strict::default());
    let admitted = quiet.oneshot(get()).await.unwrap();
    assert_eq!(
        (
            admitted.status(),
            admitted.headers().contains_key("ratelimit")
        ),
        (StatusCode::OK, false)
    );
    let refused = loud.oneshot(get()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn a_boxed_backend_is_the_backend_in_the_box() {
    let backend = memory();
    let boxed = ThrottleLayer::builder(shared("p", 2))
        .backend(BoxBackend::new(backend.clone()))
        .build()
        .unwrap();
    let plain = ThrottleLayer::builder(shared("p", 2))
        .backend(backend)
        .build()
        .unwrap();
    let (boxed, plain) = (
        boxed.layer(Strict::default()),
        plain.layer(Strict::default()),
    );
    assert_eq!((status(&boxed).await, status(&plain).await), (200, 200));
    assert_eq!((status(&boxed).await, status(&plain).await), (429, 429));
}

/// Calls, counted by a hook.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicUsize>);

impl Calls {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn total(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[tokio::test(start_paused = true)]
async fn options_set_before_the_backend_hold_on_it() {
    let (decisions, warnings) = (Calls::default(), Calls::default());
    let (decided, warned) = (decisions.clone(), warnings.clone());
    let one = limit("one", Gcra::new(Rate::per_minute(1)).burst(1)).by(ClientIp::peer());
    let refunded = shared("refunded", 9).refund_if(|_, _| true);
    let layer = ThrottleLayer::builder(all(
        [one, refunded].map(|limit| limit.wait_up_to(Duration::from_secs(600)))
    ))
    .headers(Dialect::Draft06)
    .hide_headers_if(|status, _| status.is_success())
    .report_in(throttle_tower::ReportIn::Both)
    .max_waiting(0)
    .on_decision(move |_| decided.count())
    .on_warning(move |_| warned.count())
    .backend(memory())
    .build()
    .unwrap();
    let service = layer.layer(Strict::default());

    let start = Instant::now();
    let admitted = service.clone().oneshot(get()).await.unwrap();
    assert_eq!(admitted.status(), StatusCode::OK);
    assert!(
        !admitted.headers().contains_key("ratelimit-limit"),
        "hidden: {:?}",
        admitted.headers()
    );
    assert!(admitted.extensions().get::<LimitReport>().is_some());
    assert_eq!(layer.settlements().settled, 1, "the layers count together");

    let refused = service.oneshot(get()).await.unwrap();
    assert_eq!(
        (refused.status(), start.elapsed()),
        (StatusCode::TOO_MANY_REQUESTS, Duration::ZERO),
        "none is held"
    );
    assert!(
        refused.headers().contains_key("ratelimit-limit"),
        "{:?}",
        refused.headers()
    );
    assert!(refused.extensions().get::<LimitReport>().is_some());
    assert_eq!((decisions.total(), warnings.total()), (2, 1));
}

#[test]
fn settle_hook_set_before_the_backend_hears_its_failures() {
    let failures = Calls::default();
    let failed = failures.clone();
    let limits = shared("p", 9)
        .refund_if(|_, _| true)
        .on_error(OnError::Closed);
    let layer = ThrottleLayer::builder(limits)
        .on_settle_error(move |_| failed.count())
        .backend(Remote::faltering(true))
        .build()
        .unwrap();
    // Without a runtime, a store that can fail is not called for the refund.
    let mut response = Box::pin(layer.layer(Strict::default()).oneshot(get()));
    assert!(
        matches!(poll(&mut response), Poll::Ready(Ok(response)) if response.status() == StatusCode::OK)
    );
    assert_eq!((failures.total(), layer.settlements().failed), (1, 1));
}

#[tokio::test]
async fn clones_share_the_permits() {
    let layer = ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant)).unwrap();
    let (one, two) = (
        layer.clone().layer(Strict::default()),
        layer.clone().layer(Strict::default()),
    );
    let held = one.clone().oneshot(get()).await.unwrap();
    assert_eq!((held.status(), status(&two).await), (StatusCode::OK, 503));
    assert_eq!(two.to_layer().in_flight("in-flight"), Some(1));
    drop(held);
    assert_eq!((status(&two).await, status(&one).await), (200, 200));
}

/// Requests of one key wait in one queue, whichever clone they reach.
#[tokio::test(start_paused = true)]
async fn clones_share_the_queues() {
    let store = throttle_tower::MemoryBackend::builder()
        .clock(throttle_tower::shape::TokioClock::new())
        .build();
    let held = limit("p", Gcra::new(Rate::per_second(1)).burst(1)).by(throttle_tower::Constant);
    let layer = ThrottleLayer::builder(held.wait_up_to(Duration::from_secs(9)))
        .backend(store)
        .build()
        .unwrap();
    let (one, two) = (
        layer.clone().layer(Strict::default()),
        layer.clone().layer(Strict::default()),
    );
    let start = Instant::now();
    assert_eq!(status(&one).await, 200);
    let mut first = Box::pin(one.oneshot(get()));
    assert!(poll(&mut first).is_pending());
    tokio::time::sleep(Duration::from_millis(1_002)).await;
    let mut second = Box::pin(two.oneshot(get()));
    assert!(
        poll(&mut second).is_pending(),
        "the room is that of the request before it"
    );
    assert_eq!(first.await.unwrap().status(), StatusCode::OK);
    assert_eq!(second.await.unwrap().status(), StatusCode::OK);
    assert!(
        start.elapsed() >= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}
