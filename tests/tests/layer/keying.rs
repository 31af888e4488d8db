//! Keys that are looked up, and costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use http::request::Parts;
use throttle_core::Cost;
use throttle_tower::limit::IntoCost;
use throttle_tower::{
    Constant, Gcra, Header, Limit, LimitReport, OnMissing, Rate, ThrottleLayer, all, limit,
};
use tower::{Layer, Service, ServiceExt};

use crate::common::{Strict, get, left, memory, poll, shared};

/// Two session lookups take as long as the slower one, not as long as both.
#[tokio::test]
async fn keys_are_looked_up_at_the_same_time() {
    let started = Arc::new(AtomicUsize::new(0));
    let slow = |name| {
        let started = Arc::clone(&started);
        limit(name, Gcra::new(Rate::per_second(1))).by_async(move |_| {
            let started = Arc::clone(&started);
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Option<u64>>().await
            }
        })
    };
    let mut service = ThrottleLayer::new(all([slow("a"), slow("b"), slow("c")]))
        .unwrap()
        .layer(Strict::default());
    let mut response = Box::pin(service.ready().await.unwrap().call(get()));
    assert_eq!(started.load(Ordering::SeqCst), 0);
    assert!(poll(&mut response).is_pending());
    assert_eq!(started.load(Ordering::SeqCst), 3);
}

/// As with keys that are known at once, the first limit in the given order decides.
#[tokio::test]
async fn the_first_missing_key_refuses() {
    let missing = |name, status| {
        let started = limit(name, Gcra::new(Rate::per_second(1)))
            .by_async(|_| std::future::ready(None::<u64>));
        started.on_missing(OnMissing::Reject(status))
    };
    let limits = all([
        missing("a", StatusCode::UNAUTHORIZED),
        missing("b", StatusCode::FORBIDDEN),
    ]);
    let service = ThrottleLayer::new(limits).unwrap().layer(Strict::default());
    assert_eq!(
        service.oneshot(get()).await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );

    // A key that was found before them does not change their order.
    let found = limit("found", Gcra::new(Rate::per_second(1)))
        .by_async(|_| std::future::ready(Some(1_u64)));
    let limits = all([
        found,
        missing("a", StatusCode::UNAUTHORIZED),
        missing("b", StatusCode::FORBIDDEN),
    ]);
    let service = ThrottleLayer::new(limits).unwrap().layer(Strict::default());
    assert_eq!(
        service.oneshot(get()).await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );
}

/// A refusal does not wait for the other keys.
#[tokio::test]
async fn a_missing_key_refuses_while_others_are_looked_up() {
    let endless = limit("a", Gcra::new(Rate::per_second(1)))
        .by_async(|_| std::future::pending::<Option<u64>>());
    let missing =
        limit("b", Gcra::new(Rate::per_second(1))).by_async(|_| std::future::ready(None::<u64>));
    let missing = missing.on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED));
    for limits in [[endless.clone(), missing.clone()], [missing, endless]] {
        let mut service = ThrottleLayer::new(all(limits))
            .unwrap()
            .layer(Strict::default());
        let mut response = Box::pin(service.ready().await.unwrap().call(get()));
        let std::task::Poll::Ready(answer) = poll(&mut response) else {
            panic!("it waits for a key in vain")
        };
        assert_eq!(answer.unwrap().status(), StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn a_cost_is_a_number_or_a_function() {
    async fn used(cost: impl FnOnce(Limit) -> Limit) -> u64 {
        let memory = memory();
        let layer = ThrottleLayer::builder(cost(shared("p", 9)))
            .backend(memory.clone())
            .build()
            .unwrap();
        layer.layer(Strict::default()).oneshot(get()).await.unwrap();
        9 - left(&memory, "p", 9)
    }
    fn of_path(parts: &Parts) -> u64 {
        parts.uri.path().len() as u64 + 3
    }
    assert_eq!(used(|limit| limit).await, 1);
    assert_eq!(used(|limit| limit.cost(5)).await, 5);
    assert_eq!(used(|limit| limit.cost(2 + 4)).await, 6);
    assert_eq!(used(|limit| limit.cost(Cost::new(7).unwrap())).await, 7);
    assert_eq!(used(|limit| limit.cost(|_: &Parts| 2)).await, 2);
    assert_eq!(used(|limit| limit.cost(of_path)).await, 4);
    assert_eq!(
        used(|limit| limit.cost(0)).await,
        0,
        "it looks without using"
    );
}

/// What is looked up in vain costs as much as what an extractor does not find.
#[tokio::test]
async fn request_without_a_key_costs_the_shared_budget_what_it_costs() {
    let costing = |name| limit(name, Gcra::new(Rate::per_minute(1)).burst(9));
    let extracted = costing("extracted").by(Header::new("x-user")).cost(2);
    let looked_up = costing("looked-up")
        .by_async(|_| std::future::ready(None::<u64>))
        .cost(3);
    let layer = ThrottleLayer::builder(all([extracted, looked_up]))
        .report_in(throttle_tower::ReportIn::Both)
        .backend(memory())
        .build()
        .unwrap();
    let service = layer.layer(Strict::default());
    for remaining in [[7, 6], [5, 3]] {
        let response = service.clone().oneshot(get()).await.unwrap();
        let report = response
            .extensions()
            .get::<LimitReport>()
            .expect("there is a report");
        assert!(
            report
                .statuses()
                .map(|(_, status)| status.remaining())
                .eq(remaining),
            "{report:?}"
        );
    }
}

/// The types of cost that a user's own function may pass on.
#[test]
fn costs_can_be_taken_by_a_users_function() {
    fn pages(cost: impl IntoCost) -> Limit {
        limit("pages", Gcra::new(Rate::per_second(1)))
            .by(Constant)
            .cost(cost)
    }
    let _ = (pages(5), pages(Cost::ONE), pages(|_: &Parts| 1));
}
