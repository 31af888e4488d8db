//! Stores that fail when a charge is to be settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use throttle_core::BoxBackend;
use throttle_test_servers::{Proxy, Server};
use throttle_tower::{OnError, ThrottleLayer, Usage, all, limit};
use tokio::sync::Notify;

use crate::site::{Site, until};
use crate::store::{Store, budget, redis};

const DEADLINE: Duration = Duration::from_secs(2);
const UNITS: u64 = 100;

/// A Redis behind a proxy whose connections can be cut.
async fn remote() -> (Arc<Server>, Arc<Proxy>, Store) {
    let server = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let proxy = Proxy::start(server.port());
    let backend = BoxBackend::new(redis(&proxy.url(), "p", DEADLINE));
    (
        Arc::new(server),
        Arc::new(proxy),
        Store {
            name: "redis",
            backend,
        },
    )
}

/// Responds on a signal: a failure whose charge is refunded, after a settlement.
fn app(go: &Arc<Notify>) -> Router {
    let go = Arc::clone(go);
    let handler = move |usage: Usage| async move {
        go.notified().await;
        usage.settle("tokens", 1).unwrap();
        StatusCode::BAD_GATEWAY
    };
    Router::new().route("/", get(handler))
}

/// The store hangs or is dead: the response does not wait for it, and both steps are counted and
/// reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charge_that_cannot_be_settled_is_counted_and_delays_nothing() {
    for hangs in [true, false] {
        let (server, proxy, store) = remote().await;
        let limits = all([
            budget("requests", UNITS).refund_if(limit::server_error),
            budget("tokens", UNITS).cost(9).settled_later(),
        ]);
        let heard = Arc::new(AtomicU64::new(0));
        let layer = ThrottleLayer::builder(limits)
            .on_error(OnError::Closed)
            .backend(store.backend.clone())
            .on_settle_error({
                let heard = Arc::clone(&heard);
                move |_| {
                    heard.fetch_add(1, Ordering::SeqCst);
                }
            })
            .build()
            .unwrap();
        let go = Arc::new(Notify::new());
        let site = Arc::new(Site::with(store, layer, app(&go)).await);
        // The connection is open, and one request has completed.
        go.notify_one();
        assert_eq!(site.status("/").await, StatusCode::BAD_GATEWAY);
        site.settled().await;
        assert_eq!(site.layer.settlements().settled, 2);
        assert_eq!(
            (
                site.left("requests", UNITS).await,
                site.left("tokens", UNITS).await
            ),
            (UNITS, UNITS - 1)
        );

        let asking = {
            let site = Arc::clone(&site);
            tokio::spawn(async move { site.status("/").await })
        };
        let charged = async || site.store.left("requests", UNITS).await == UNITS - 1;
        while !charged().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if hangs {
            proxy.blackhole(true);
        } else {
            let server = Arc::clone(&server);
            tokio::task::spawn_blocking(move || server.kill())
                .await
                .unwrap();
        }
        let start = Instant::now();
        go.notify_one();
        assert_eq!(asking.await.unwrap(), StatusCode::BAD_GATEWAY);
        let took = start.elapsed();
        assert!(
            took < DEADLINE / 4,
            "the response waited for the store: {took:?}"
        );
        until(|| site.layer.settlements().pending == 0).await;
        let settlements = site.layer.settlements();
        assert_eq!(
            (settlements.settled, settlements.failed),
            (2, 2),
            "hangs: {hangs}"
        );
        assert_eq!(heard.load(Ordering::SeqCst), 2);
    }
}

/// A charge of this process's share is settled in the share, although the store stays unavailable.
#[tokio::test]
async fn charge_of_a_share_is_settled_in_the_share() {
    let (server, _proxy, store) = remote().await;
    tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.kill()
    })
    .await
    .unwrap();
    for (refunds, admitted) in [(false, 3), (true, 20)] {
        let failures = budget("p", 3);
        let failures = if refunds {
            failures.refund_if(limit::server_error)
        } else {
            failures
        };
        let limits = all([failures, budget("tokens", 100).cost(5).settled_later()]);
        let layer = ThrottleLayer::builder(limits)
            .on_error(OnError::local(1))
            .backend(store.backend.clone())
            .build()
            .unwrap();
        let handler = |usage: Usage| async move {
            usage.settle("tokens", 5).unwrap();
            StatusCode::BAD_GATEWAY
        };
        let site = Site::with(store.clone(), layer, Router::new().route("/", get(handler))).await;
        let mut served = 0;
        for _ in 0..20 {
            served += u32::from(site.status("/").await == StatusCode::BAD_GATEWAY);
            site.settled().await;
        }
        assert_eq!(served, admitted);
        assert_eq!(site.layer.settlements().failed, 0);
    }
}

/// With open limits nothing is charged, whatever the handler reports.
#[tokio::test]
async fn charge_of_an_open_limit_is_zero() {
    let (server, _proxy, store) = remote().await;
    tokio::task::spawn_blocking(move || server.kill())
        .await
        .unwrap();
    let layer = ThrottleLayer::builder(budget("tokens", 100).cost(5).settled_later())
        .on_error(OnError::Open)
        .backend(store.backend.clone())
        .build()
        .unwrap();
    let handler = |usage: Usage| async move {
        assert_eq!(usage.taken("tokens"), 0);
        assert!(usage.add("tokens", 1_000).unwrap());
        usage.settle_all(3)
    };
    let site = Site::with(store, layer, Router::new().route("/", get(handler))).await;
    assert_eq!(site.status("/").await, StatusCode::OK);
    assert_eq!(
        site.layer.settlements(),
        throttle_tower::usage::Settlements::default()
    );
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// A layer that charges an estimate of 9 units until the response ends.
fn estimating(store: &Store) -> ThrottleLayer<BoxBackend> {
    let limit = budget("tokens", UNITS).cost(9).settled_later();
    ThrottleLayer::builder(limit)
        .on_error(OnError::Closed)
        .backend(store.backend.clone())
        .build()
        .unwrap()
}

async fn use_two(request: http::Request<()>) -> Result<http::Response<()>, ()> {
    request
        .extensions()
        .get::<Usage>()
        .unwrap()
        .add("tokens", 2)
        .unwrap();
    Ok(http::Response::new(()))
}

/// The runtime in which the response ends is preferred: the request's own may have ended.
#[test]
fn charge_is_settled_in_the_runtime_in_which_the_response_is_dropped() {
    use tower::{Layer, ServiceExt};

    let (connects, serves) = (runtime(), runtime());
    let (_server, _proxy, store) = connects.block_on(remote());
    let layer = estimating(&store);
    assert_eq!(
        connects.block_on(store.left("tokens", UNITS)),
        UNITS,
        "the connection is there"
    );
    let response = serves
        .block_on(
            layer
                .layer(tower::service_fn(use_two))
                .oneshot(http::Request::new(())),
        )
        .unwrap();
    serves.shutdown_timeout(Duration::from_secs(5));
    connects.block_on(async {
        drop(response);
        until(|| layer.settlements().pending == 0).await;
    });
    assert_eq!(
        (layer.settlements().settled, layer.settlements().failed),
        (1, 0)
    );
    assert_eq!(connects.block_on(store.left("tokens", UNITS)), UNITS - 2);
}

/// A response may be dropped outside of a runtime, after its own runtime has ended, while the
/// connection lives in another one. The lost settlement is counted; a panic in a drop could abort
/// the process.
#[test]
fn charge_of_a_response_whose_runtime_has_ended_is_lost_without_a_panic() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use tower::{Layer, ServiceExt};

    let (connects, serves) = (runtime(), runtime());
    let (_server, _proxy, store) = connects.block_on(remote());
    let layer = estimating(&store);
    assert_eq!(
        connects.block_on(store.left("tokens", UNITS)),
        UNITS,
        "the connection is there"
    );
    let ask = || {
        serves
            .block_on(
                layer
                    .layer(tower::service_fn(use_two))
                    .oneshot(http::Request::new(())),
            )
            .unwrap()
    };
    let (one, two) = (ask(), ask());
    let ended = serves.handle().clone();
    serves.shutdown_timeout(Duration::from_secs(5));
    assert!(catch_unwind(AssertUnwindSafe(|| drop(one))).is_ok());
    let entered = ended.enter();
    assert!(
        catch_unwind(AssertUnwindSafe(|| drop(two))).is_ok(),
        "a runtime that has ended is no better when it is current"
    );
    drop(entered);
    // The second settlement may complete before its first poll ends.
    let settlements = layer.settlements();
    assert_eq!(
        (
            settlements.pending,
            settlements.settled + settlements.failed
        ),
        (0, 2),
        "{settlements:?}"
    );
    assert!(settlements.failed >= 1, "{settlements:?}");
}
