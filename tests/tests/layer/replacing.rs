//! Limits that a program replaces while requests run.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use http::{Request, Response, StatusCode};
use throttle_core::{Backend, BackendErrorKind};
use throttle_tower::shape::TokioClock;
use throttle_tower::{
    Constant, Dialect, Event, Gcra, InFlight, KeyExtractor, LayerInfo, Limit, MemoryBackend,
    Observer, OnError, Permit, Rate, SlidingLog, Throttle, ThrottleLayer, Warning, all, limit,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::common::{Remote, Strict, Text, get, memory, poll, shared};

/// A limit of so many requests a day, for all together.
fn daily(name: &str, count: u64) -> Limit {
    limit(name, SlidingLog::new(Rate::per_day(count))).by(Constant)
}

async fn status<B: Backend>(layer: &ThrottleLayer<B>) -> StatusCode {
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    response.status()
}

async fn admitted<B: Backend>(layer: &ThrottleLayer<B>, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(status(layer).await == StatusCode::OK);
    }
    admitted
}

#[tokio::test]
async fn clones_services_and_their_layers_enforce_what_replaces_the_limits() {
    let layer = ThrottleLayer::builder(daily("p", 2)).backend(memory());
    let layer = layer.build().unwrap();
    let clone = layer.clone();
    let mut service = clone.layer(Strict::default());
    let of_service = service.to_layer();
    let apart = layer.with_limits(daily("p", 2)).unwrap();
    assert_eq!(admitted(&layer, 9).await, 2);
    layer.replace(daily("p", 5)).unwrap();
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(get()).await.unwrap();
        statuses.push(response.status());
    }
    assert_eq!(statuses, [StatusCode::OK; 2], "units that were used stay");
    assert_eq!(status(&of_service).await, StatusCode::OK);
    assert_eq!(status(&clone).await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        apart.info().limits()[0]
            .policy
            .as_ref()
            .unwrap()
            .algorithm()
            .capacity(),
        2,
        "a layer of with_limits does not follow"
    );
    of_service.replace(()).unwrap();
    assert_eq!(admitted(&layer, 9).await, 9);
}

/// axum clones a service for each request, which is never called itself.
#[tokio::test]
async fn routers_enforce_what_replaces_the_limits() {
    let layer = ThrottleLayer::new(daily("p", 1)).unwrap();
    let app = Router::new()
        .route("/", route(async || "ok"))
        .layer(layer.clone());
    let mut statuses = Vec::new();
    for count in [1, 2, 4] {
        layer.replace(daily("p", count)).unwrap();
        for _ in 0..2 {
            let request = Request::new(axum::body::Body::empty());
            statuses.push(
                app.clone()
                    .oneshot(request)
                    .await
                    .unwrap()
                    .status()
                    .as_u16(),
            );
        }
    }
    assert_eq!(statuses, [200, 429, 200, 429, 200, 200]);
}

#[tokio::test]
async fn limits_that_cannot_be_enforced_leave_the_former_ones() {
    let builder = ThrottleLayer::builder(daily("p", 2).on_error(OnError::Closed))
        .backend(Remote::faltering(true))
        .headers(Dialect::Draft07);
    let layer = builder.clone().build().unwrap();
    let next = builder.headers(Dialect::None);
    for error in [
        layer.replace(daily("p", 0).on_error(OnError::Open)),
        layer.replace(daily("p", 9)),
        layer.replace_with(next.clone().limits(daily("q", 9))),
        layer.replace_with(next.limits(all([daily("p", 1), daily("p", 2)]))),
    ] {
        error.unwrap_err();
    }
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    assert_eq!(response.headers()["ratelimit-policy"], "2;w=86400");
    assert_eq!(admitted(&layer, 9).await, 1);
}

#[tokio::test]
async fn replace_keeps_settings_and_replace_with_brings_its_own() {
    let store = memory();
    let builder = ThrottleLayer::builder(daily("p", 9)).backend(store.clone());
    let layer = builder.clone().headers(Dialect::Draft07).build().unwrap();
    let shown = async |layer: &ThrottleLayer<_>| {
        let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
        response.headers()["ratelimit-policy"].clone()
    };
    layer.replace(daily("p", 8)).unwrap();
    assert_eq!(shown(&layer).await, "8;w=86400");
    layer.replace_with(builder.limits(daily("p", 7))).unwrap();
    let usual = shown(&layer).await;
    assert_eq!(usual, "\"p\";q=7;w=86400", "the usual dialect");
    let other = memory();
    let elsewhere = ThrottleLayer::builder(daily("p", 7)).backend(other.clone());
    layer.replace_with(elsewhere).unwrap();
    assert_eq!(admitted(&layer, 9).await, 7, "on another store");
    assert_eq!((store.keys(), other.keys()), (1, 1));
}

#[tokio::test]
async fn permits_of_requests_in_flight_count_on_by_the_name_of_their_limit() {
    let jobs = |most| limit("jobs", InFlight::new(most)).by(Constant);
    let layer = ThrottleLayer::new(jobs(2)).unwrap();
    let held = Arc::new(Mutex::new(Vec::new()));
    let keeping = Arc::clone(&held);
    let service = layer.layer(service_fn(move |request: Request<()>| {
        let permit = request.extensions().get::<Permit>().cloned();
        keeping.lock().unwrap().push(permit);
        async { Ok::<_, Infallible>(Response::new(())) }
    }));
    let status = async || {
        let response = service.clone().oneshot(Request::new(())).await.unwrap();
        response.status().as_u16()
    };
    assert_eq!(
        [status().await, status().await, status().await],
        [200, 200, 503]
    );
    layer.replace(all((daily("p", 9), jobs(3)))).unwrap();
    assert_eq!(layer.in_flight("jobs"), Some(2));
    assert_eq!([status().await, status().await], [200, 503]);
    held.lock().unwrap().truncate(1);
    assert_eq!(
        layer.in_flight("jobs"),
        Some(1),
        "the former ones come back"
    );
}

#[tokio::test(start_paused = true)]
async fn request_that_waits_for_its_turn_keeps_the_limits_that_it_began_with() {
    let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    let paced = |name: &str| {
        let limit = limit(name, Gcra::new(Rate::per_second(1)).burst(1)).by(Constant);
        limit.wait_up_to(Duration::from_secs(9))
    };
    let builder = ThrottleLayer::builder(paced("old")).backend(store);
    let layer = builder.build().unwrap();
    assert_eq!(status(&layer).await, StatusCode::OK);
    let mut waiting = Box::pin(layer.layer(Strict::default()).oneshot(get()));
    assert!(poll(&mut waiting).is_pending());
    layer.replace(paced("new")).unwrap();
    let response = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    assert_eq!(response.headers()["ratelimit-policy"], "\"new\";q=1;w=1");
    let waited = waiting.await.unwrap();
    assert_eq!(waited.headers()["ratelimit-policy"], "\"old\";q=1;w=1");
}

/// Counts the versions that it was built for.
#[derive(Default)]
struct Versions {
    built: AtomicUsize,
    decided: AtomicUsize,
    panics: AtomicBool,
}

impl Observer for Versions {
    fn built(&self, _: &LayerInfo, former: Option<&LayerInfo>) -> Option<Arc<dyn Observer>> {
        assert!(
            !self.panics.load(Ordering::SeqCst),
            "a mistake in an observer"
        );
        let built = self.built.fetch_add(1, Ordering::SeqCst);
        assert_eq!(former.is_some(), built > 0);
        None
    }

    fn decided(&self, _: &Event<'_>) {
        self.decided.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn observer_that_panics_when_limits_are_replaced_leaves_the_former_ones() {
    let versions = Arc::new(Versions::default());
    let layer = ThrottleLayer::builder(daily("p", 1)).observe(Arc::clone(&versions));
    let layer = layer.build().unwrap();
    layer.replace(daily("p", 2)).unwrap();
    assert_eq!(versions.built.load(Ordering::SeqCst), 2);
    versions.panics.store(true, Ordering::SeqCst);
    let replacing = || layer.replace(daily("p", 9));
    assert!(catch_unwind(AssertUnwindSafe(replacing)).is_err());
    versions.panics.store(false, Ordering::SeqCst);
    assert_eq!(admitted(&layer, 4).await, 2);
    layer.replace(daily("p", 3)).unwrap();
    assert_eq!(
        admitted(&layer, 4).await,
        1,
        "it can be replaced after that"
    );
    assert_eq!(versions.decided.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn settlements_shares_and_warnings_go_on_over_a_replacement() {
    let warnings = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&warnings);
    let by_route = |count| {
        limit("p", SlidingLog::new(Rate::per_day(count)))
            .by(throttle_tower::Route.or(Constant))
            .on_error(OnError::local(1))
            .refund_if(|_, headers| headers.contains_key("x-refund"))
    };
    let remote = Remote::faltering(true);
    let layer = ThrottleLayer::builder(by_route(2))
        .backend(remote.clone())
        .on_warning(move |warning| {
            count.fetch_add(
                usize::from(*warning == Warning::RouteUnknown),
                Ordering::SeqCst,
            );
        })
        .build()
        .unwrap();
    assert_eq!(status(&layer).await, StatusCode::OK);
    let refunding = layer.layer(service_fn(async |_: Request<Text>| {
        let mut response = Response::new(Text::default());
        response.headers_mut().insert("x-refund", 1.into());
        Ok::<_, Infallible>(response)
    }));
    drop(refunding.oneshot(get()).await.unwrap());
    let settled = layer.settlements();
    layer.replace(by_route(3)).unwrap();
    assert_eq!(layer.settlements(), settled);
    remote.trouble(Some(BackendErrorKind::Unavailable));
    let used = 3 - admitted(&layer, 9).await;
    assert!(
        (1..3).contains(&used),
        "{used} of the share were used before"
    );
    assert_eq!(warnings.load(Ordering::SeqCst), 1, "warned of once");
}

#[tokio::test]
async fn last_layer_or_service_frees_the_backend_whatever_was_replaced() {
    let store = memory();
    // The first version holds it.
    let kept = Arc::new(());
    let held = Arc::clone(&kept);
    let limit = shared("p", 9).when(move |_| Arc::strong_count(&held) > 0);
    let layer = ThrottleLayer::builder(limit).backend(store.clone());
    let layer = layer.build().unwrap();
    let first = layer.info();
    let mut service: Throttle<_, _> = layer.layer(Strict::default());
    let request = service.ready().await.unwrap().call(get());
    layer.replace(shared("q", 9)).unwrap();
    let second = layer.info();
    assert!(!first.is_in_use() && second.is_in_use());
    assert!(Arc::strong_count(&kept) > 1, "a service has the first");
    drop(request);
    drop(service.ready().await.unwrap().call(get()).await.unwrap());
    assert_eq!(Arc::strong_count(&kept), 1, "the service has moved on");
    drop(layer);
    assert_eq!(second.keys_held(), Some(2));
    drop(service);
    assert!(!second.is_in_use());
}

/// Two compositions in turn while requests run: each request is decided by one of them.
#[test]
fn law_05_no_request_is_decided_by_a_mixture_of_two_versions() {
    let few = || all([daily("a", 1_000), daily("b", 2_000)]);
    let many = || all([daily("b", 6_000), daily("c", 7_000), daily("a", 5_000)]);
    let expected = [
        "\"a\";q=1000;w=86400, \"b\";q=2000;w=86400",
        "\"b\";q=6000;w=86400, \"c\";q=7000;w=86400, \"a\";q=5000;w=86400",
    ];
    let layer = ThrottleLayer::builder(few()).backend(memory());
    let layer = layer.build().unwrap();
    let (is_over, seen) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                let mut service = layer.layer(Strict::default());
                while !is_over.load(Ordering::Relaxed) {
                    let response = runtime.block_on((&mut service).oneshot(get())).unwrap();
                    let policies = response.headers()["ratelimit-policy"].to_str().unwrap();
                    assert!(expected.contains(&policies), "{policies}");
                    seen.lock().unwrap().push(policies == expected[0]);
                }
            });
        }
        // Two programs replace at the same time.
        scope.spawn(|| (0..300).for_each(|_| layer.replace(few()).unwrap()));
        for turn in 0..300 {
            match turn % 2 {
                0 => layer.replace(many()).unwrap(),
                _ => layer.replace(few()).unwrap(),
            }
            thread::yield_now();
        }
        layer.replace(many()).unwrap();
        thread::sleep(Duration::from_millis(20));
        is_over.store(true, Ordering::Relaxed);
    });
    let seen = seen.into_inner().unwrap();
    assert!(seen.contains(&true) && seen.contains(&false));
    assert_eq!(layer.info().limits().len(), 3, "the last one stays");
}
