//! An `any` of limits on requests in flight and limits on rates: permits are a budget like others.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::request::Parts;
use http::{Request, StatusCode};
use throttle_tower::{BoxBackend, Concurrency, Constant, FixedWindow, InFlight, Rate, ThrottleLayer, all, any, limit};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::disconnects::AtMost;
use crate::in_flight::app;
use crate::site::{Site, layer, number, settled, until};
use crate::store::{Store, budget, redis};

const OK: StatusCode = StatusCode::OK;
const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
const SATURATED: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

#[tokio::test]
async fn charge_a_rate_where_no_permit_is_left() {
    for store in Store::both().await {
        let (name, bodies) = (store.name, Arc::new(Semaphore::new(0)));
        let site = Site::new(store, any((Concurrency::new(1), budget("overflow", 2))), app(&bodies)).await;
        for _ in 0..3 {
            assert_eq!(site.status("/").await, OK, "{name}");
        }
        assert_eq!(site.left("overflow", 2).await, 2, "{name}: each had a permit");

        let held = site.send("/slow", &[]).await;
        let charged = site.get("/", &[]).await;
        assert_eq!(charged.status(), OK, "{name}");
        assert_eq!(charged.headers()["ratelimit"].to_str().unwrap().split(';').nth(1), Some("r=1"), "{name}");
        assert_eq!(site.status("/").await, OK, "{name}");
        assert_eq!(site.left("overflow", 2).await, 0, "{name}: nobody else had one");
        let refused = site.get("/", &[]).await;
        assert_eq!(refused.status(), REFUSED, "{name}");
        assert!(refused.headers().contains_key("retry-after"), "{name}");
        assert!(refused.body().ends_with(br#"["overflow"]}"#), "{name}: {:?}", refused.body());

        drop(held);
        until(|| site.layer.in_flight("in-flight") == Some(0)).await;
        assert_eq!(site.status("/").await, OK, "{name}");
    }
}

#[tokio::test]
async fn charge_the_first_that_admits_in_the_order_given() {
    for store in Store::both().await {
        let (name, bodies) = (store.name, Arc::new(Semaphore::new(0)));
        let limits = any((budget("a", 1), budget("b", 1), Concurrency::new(1), budget("c", 1)));
        let site = Site::new(store, limits, app(&bodies)).await;
        let mut held = Vec::new();
        for expected in [(0, 1, 0, 1), (0, 0, 0, 1), (0, 0, 1, 1), (0, 0, 1, 0)] {
            held.push(site.send("/slow", &[]).await);
            let left = (site.left("a", 1).await, site.left("b", 1).await);
            let now = (left.0, left.1, site.layer.in_flight("in-flight").unwrap(), site.left("c", 1).await);
            assert_eq!((held.last().unwrap().status(), now), (OK, expected), "{name}");
        }
        assert_eq!(site.status("/").await, REFUSED, "{name}");
    }
}

/// Law 5: with others around it and inside, all that a way needs is had, or nothing of it.
#[tokio::test]
async fn law_05_charge_a_whole_way_or_nothing_of_it() {
    for store in Store::both().await {
        let (name, bodies) = (store.name, Arc::new(Semaphore::new(0)));
        let fast = all((Concurrency::new(9).name("lanes"), budget("fast", 1)));
        let limits = all((budget("total", 3), any((fast, budget("slow", 9))), Concurrency::new(9).name("all")));
        let site = Site::new(store, limits, app(&bodies)).await;
        let mut held = Vec::new();
        for (total, fast, slow, lanes, permits) in [(2, 0, 9, 1, 1), (1, 0, 8, 1, 2), (0, 0, 7, 1, 3)] {
            held.push(site.send("/slow", &[]).await);
            assert_eq!(held.last().unwrap().status(), OK, "{name}");
            assert_eq!([site.left("total", 3).await, site.left("fast", 1).await], [total, fast], "{name}");
            assert_eq!(site.left("slow", 9).await, slow, "{name}: the second way, where the first is closed");
            let taken = ["lanes", "all"].map(|name| site.layer.in_flight(name).unwrap());
            assert_eq!(taken, [lanes, permits], "{name}: what was refused keeps no permit");
        }
        let refused = site.get("/", &[]).await;
        assert_eq!(refused.status(), REFUSED, "{name}");
        assert_eq!([site.left("fast", 1).await, site.left("slow", 9).await], [0, 7], "{name}");
    }
}

#[tokio::test]
async fn charge_what_does_not_apply_is_no_way_in() {
    let bodies = Arc::new(Semaphore::new(0));
    let is_vip = |parts: &Parts| number(parts, "x-vip") > 0;
    let limits = any((Concurrency::new(5).when(is_vip), budget("pool", 2).when(|parts| parts.uri.path() != "/free")));
    let app = app(&bodies).route("/free", get(|| async { "free" }));
    let site = Site::new(Store::memory(), limits, app).await;
    for expected in [OK, OK, REFUSED] {
        assert_eq!(site.get("/", &[]).await.status(), expected, "no lane for who is no guest of honour");
    }
    assert_eq!(site.get("/", &[("x-vip", 1)]).await.status(), OK);
    assert_eq!(site.get("/free", &[]).await.status(), OK, "nothing applies");
}

/// What is over first is told: a wait that is known before one that is not, and that before what never ends.
#[tokio::test]
async fn charge_of_several_refusals_the_one_that_is_over_first_is_told() {
    let (bodies, minute) = (Arc::new(Semaphore::new(0)), Duration::from_secs(60));
    let window = |name: &str, length: Duration| {
        let cost = |parts: &Parts| number(parts, "x-cost");
        limit(name, FixedWindow::new(Rate::new(1, length))).by(Constant).cost(cost)
    };
    let limits =
        any((window("year", minute * 60 * 24 * 365), Concurrency::new(1), window("decade", minute * 5_256_000)));
    let site = Site::new(Store::memory(), limits, app(&bodies)).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(site.send("/slow", &[("x-cost", 1)]).await);
        assert_eq!(held.last().unwrap().status(), OK);
    }
    let refused = site.get("/", &[("x-cost", 1)]).await;
    assert!(refused.body().ends_with(br#"["year"]}"#), "{:?}", refused.body());
    assert_eq!(refused.status(), REFUSED);
    let saturated = site.get("/", &[("x-cost", 2)]).await;
    assert_eq!(saturated.status(), SATURATED, "two units of one are never there, and a permit may be");
    assert!(saturated.body().ends_with(br#"["in-flight"]}"#), "{:?}", saturated.body());
}

/// Law 6: racers hold no more permits than there are, and are charged for all that came in without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_charge_racers_by_permit_or_by_rate() {
    const BUDGET: u64 = 100;
    for store in Store::both().await {
        let (by_permit, by_rate) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let most = Arc::new(AtomicU64::new(0));
        let layer = layer(&store, any((Concurrency::new(3), budget("overflow", BUDGET))));
        let handler = {
            let (by_permit, by_rate) = (Arc::clone(&by_permit), Arc::clone(&by_rate));
            let (most, layer) = (Arc::clone(&most), layer.clone());
            move |permit: Option<InFlight>| async move {
                most.fetch_max(layer.in_flight("in-flight").unwrap(), Ordering::SeqCst);
                let admitted = if permit.is_some() { by_permit } else { by_rate };
                admitted.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let app = Router::new().route("/", get(handler)).layer(layer.clone());
        let mut racing = JoinSet::new();
        for _ in 0..64 {
            let app = app.clone();
            racing.spawn(async move {
                let mut refused = 0;
                for _ in 0..10 {
                    let response = app.clone().oneshot(Request::new(Body::empty())).await.unwrap();
                    assert!([OK, REFUSED].contains(&response.status()), "{}", response.status());
                    refused += u64::from(response.status() == REFUSED);
                }
                refused
            });
        }
        let refused: u64 = racing.join_all().await.into_iter().sum();
        settled(&layer).await;
        let (permits, charged) = (by_permit.load(Ordering::SeqCst), by_rate.load(Ordering::SeqCst));
        let name = store.name;
        assert_eq!(permits + charged + refused, 640, "{name}");
        assert_eq!((charged, store.used("overflow", BUDGET).await), (BUDGET, BUDGET), "{name}");
        assert!(
            permits > 0 && refused > 0 && most.load(Ordering::SeqCst) <= 3,
            "{name}: {permits}, {refused}, {most:?}"
        );
        assert_eq!(layer.in_flight("in-flight"), Some(0), "{name}");
    }
}

/// Law 10: wherever the client goes away, it has had the permit or been charged, once, and keeps nothing.
#[tokio::test]
async fn law_10_charge_one_way_wherever_the_client_goes_away() {
    for store in Store::both().await {
        let limits = any((all((Concurrency::new(1), budget("lane", 1))), budget("overflow", 100_000).refund_aborted()));
        let layer = layer(&store, limits);
        let handler = || async {
            tokio::task::yield_now().await;
            "hello"
        };
        let app = Router::new().route("/", get(handler)).layer(layer.clone());
        assert_eq!(app.clone().oneshot(Request::new(Body::empty())).await.unwrap().status(), OK);
        assert_eq!(store.left("lane", 1).await, 0, "from now on the second way, after the first was tried");
        let (mut stays, mut completed) = (0, false);
        while !completed {
            assert!(stays < 200, "it never ends");
            let mut polls = stays;
            {
                let response = pin!(app.clone().oneshot(Request::new(Body::empty())));
                completed = AtMost { future: response, polls: &mut polls }.await.is_some();
            }
            settled(&layer).await;
            assert_eq!(layer.in_flight("in-flight"), Some(0), "{}: after {stays} polls", store.name);
            stays += 1;
        }
        // What left for the store when the client went away may still have been charged there: at most one each time.
        let used = store.used("overflow", 100_000).await;
        assert!((1..=stays as u64).contains(&used), "{}: {used} after {stays} requests", store.name);
        if store.name == "memory" {
            assert_eq!(used, 1, "only the last one was answered");
        }
    }
}

#[tokio::test]
async fn charge_by_permit_needs_no_store() {
    let bodies = Arc::new(Semaphore::new(0));
    // Nobody listens there.
    let backend = BoxBackend::new(redis("redis://127.0.0.1:1", "p", Duration::from_secs(5)));
    let store = Store { name: "away", backend };
    let site = Site::new(store, any((Concurrency::new(1), budget("overflow", 2))), app(&bodies)).await;
    let held = site.send("/slow", &[]).await;
    assert_eq!(held.status(), OK);
    let closed = site.get("/", &[]).await;
    assert_eq!(closed.status(), SATURATED);
    assert!(closed.body().ends_with(br#"["overflow"]}"#), "{:?}", closed.body());
    drop(held);
    until(|| site.layer.in_flight("in-flight") == Some(0)).await;
    assert_eq!(site.status("/").await, OK);
}

/// A request is held for the rate, and finds the permit that was returned meanwhile.
#[tokio::test]
async fn charge_held_requests_try_every_way_again() {
    let bodies = Arc::new(Semaphore::new(0));
    let second = limit("second", FixedWindow::new(Rate::per_second(1))).by(Constant).wait_up_to(Duration::from_secs(5));
    let site = Arc::new(Site::new(Store::memory(), any((Concurrency::new(1), second)), app(&bodies)).await);
    let held = site.send("/slow", &[]).await;
    let sent: Vec<_> = (0..3)
        .map(|_| {
            let site = Arc::clone(&site);
            tokio::spawn(async move { site.status("/").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(held);
    for one in sent {
        assert_eq!(one.await.unwrap(), OK);
    }
}

#[test]
fn charge_too_many_ways_are_refused_by_name() {
    let error = |limits: throttle_tower::Limits| ThrottleLayer::new(limits).map(drop).unwrap_err();
    let mixed = |n: u64| any((budget(&format!("b{n}"), 1), Concurrency::new(1).name(format!("c{n}"))));
    assert!(ThrottleLayer::new(all((mixed(1), mixed(2), mixed(3), mixed(4)))).is_ok());
    let many = error(all((mixed(1), mixed(2), mixed(3), mixed(4), mixed(5))));
    assert_eq!((many.field(), many.value()), ("any", "32 ways"));
    let every = error(mixed(1).charge_every_admitting());
    assert_eq!((every.field(), every.value()), ("any", "of Concurrency and other limits"));
}
