//! Clones are the same limiter.

use http::StatusCode;
use throttle_core::BoxBackend;
use throttle_tower::headers::Dialect;
use throttle_tower::{Throttle, ThrottleLayer};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Strict, get, memory, shared};

async fn status<B: throttle_core::Backend>(service: &Throttle<Strict, B>) -> u16 {
    service.clone().oneshot(get()).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn clones_of_a_service_share_the_budget() {
    let service = ThrottleLayer::new(shared("p", 2)).unwrap().layer(Strict::default());
    let clone = service.clone();
    assert_eq!((status(&service).await, status(&clone).await), (200, 200));
    assert_eq!((status(&service).await, status(&clone).await), (429, 429));
}

#[tokio::test]
async fn clones_of_a_layer_and_their_services_share_the_budget() {
    let layer = ThrottleLayer::new(shared("p", 2)).unwrap();
    let (one, two) = (layer.clone().layer(Strict::default()), layer.layer(Strict::default()));
    assert_eq!((status(&one).await, status(&two).await), (200, 200));
    assert_eq!((status(&one).await, status(&two).await), (429, 429));
}

#[tokio::test]
async fn a_layer_of_a_service_shares_its_budget() {
    let one = ThrottleLayer::new(shared("p", 1)).unwrap().layer(Strict::default());
    let two = one.to_layer().layer(Strict::default());
    assert_eq!((status(&one).await, status(&two).await), (200, 429));
    assert_eq!(two.get_ref().calls(), 0);
}

/// Options belong to the clone that they are set on; the budget is shared.
#[tokio::test]
async fn a_clone_with_other_options_shares_the_budget_and_leaves_the_original_alone() {
    let layer = ThrottleLayer::new(shared("p", 1)).unwrap();
    let quiet = layer.clone().headers(Dialect::None).layer(Strict::default());
    let loud = layer.layer(Strict::default());
    let admitted = quiet.oneshot(get()).await.unwrap();
    assert_eq!((admitted.status(), admitted.headers().contains_key("ratelimit")), (StatusCode::OK, false));
    let refused = loud.oneshot(get()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("ratelimit"));
}

#[tokio::test]
async fn layers_on_one_backend_share_the_budget_of_a_name() {
    let backend = memory();
    let layer = |name| ThrottleLayer::new(shared(name, 1)).unwrap().backend(backend.clone()).unwrap();
    let (one, same, other) = (layer("p"), layer("p"), layer("q"));
    assert_eq!(status(&one.layer(Strict::default())).await, 200);
    assert_eq!(status(&same.layer(Strict::default())).await, 429);
    assert_eq!(status(&other.layer(Strict::default())).await, 200);
}

#[tokio::test]
async fn layers_apart_share_nothing() {
    let layer = || ThrottleLayer::new(shared("p", 1)).unwrap();
    assert_eq!(status(&layer().layer(Strict::default())).await, 200);
    assert_eq!(status(&layer().layer(Strict::default())).await, 200);
}

#[tokio::test]
async fn a_boxed_backend_is_the_backend_in_the_box() {
    let backend = memory();
    let boxed = ThrottleLayer::new(shared("p", 2)).unwrap().backend(BoxBackend::new(backend.clone())).unwrap();
    let plain = ThrottleLayer::new(shared("p", 2)).unwrap().backend(backend).unwrap();
    let (boxed, plain) = (boxed.layer(Strict::default()), plain.layer(Strict::default()));
    assert_eq!((status(&boxed).await, status(&plain).await), (200, 200));
    assert_eq!((status(&boxed).await, status(&plain).await), (429, 429));
}

/// One type for both, chosen at run time.
#[tokio::test]
async fn a_boxed_backend_is_chosen_at_run_time() {
    for remote in [false, true] {
        let backend = if remote { BoxBackend::new(Remote::slow(2, 2)) } else { BoxBackend::new(memory()) };
        let layer: ThrottleLayer<BoxBackend> = ThrottleLayer::new(shared("p", 1)).unwrap().backend(backend).unwrap();
        let service = layer.layer(Strict::default());
        assert_eq!((status(&service).await, status(&service).await), (200, 429), "remote: {remote}");
    }
}
