//! Limits that count refused attempts.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use http::request::Parts;
use throttle_core::BoxBackend;
use throttle_core::backend::Ban;
use throttle_redis::RedisBackend;
use throttle_test_servers::Cluster;
use throttle_tower::{all, any};

use crate::site::{Site, estimate};
use crate::store::{Store, budget};

const UNITS: u64 = 10;

fn app() -> Router {
    Router::new().route("/", get(|| async { "hello" }))
}

#[tokio::test]
async fn charge_of_a_refused_request_is_opt_in() {
    for (counts, left) in [(false, UNITS - 2), (true, UNITS - 6)] {
        for store in Store::both().await {
            let attempts = budget("attempts", UNITS);
            let attempts = if counts {
                attempts.charge_refused()
            } else {
                attempts
            };
            let site = Site::new(store, all([attempts, budget("narrow", 2)]), app()).await;
            for n in 0..6 {
                let expected = if n < 2 {
                    StatusCode::OK
                } else {
                    StatusCode::TOO_MANY_REQUESTS
                };
                assert_eq!(site.status("/").await, expected);
                site.settled().await;
            }
            assert_eq!(
                site.left("attempts", UNITS).await,
                left,
                "{}",
                site.store.name
            );
            assert_eq!(
                site.left("narrow", 2).await,
                0,
                "{}: what refuses is not used",
                site.store.name
            );
        }
    }
}

/// A cost that no longer fits takes the rest.
#[tokio::test]
async fn charge_of_a_refused_request_takes_what_is_left() {
    for store in Store::both().await {
        let site = Site::new(store, budget("p", UNITS).cost(4).charge_refused(), app()).await;
        for left in [6, 2, 0, 0] {
            site.status("/").await;
            assert_eq!(site.left("p", UNITS).await, left, "{}", site.store.name);
        }
    }
}

/// A member of an `any` that refused is charged for the attempt too; one that does not apply is
/// not.
#[tokio::test]
async fn charge_of_a_refused_request_reaches_every_member_that_applies() {
    for store in Store::both().await {
        let limits = any([
            budget("own", UNITS).cost(estimate).charge_refused(),
            budget("pool", UNITS)
                .cost(estimate)
                .charge_refused()
                .when(|parts: &Parts| parts.uri.query().is_some()),
        ]);
        let site = Site::new(store, limits, app()).await;
        assert_eq!(
            site.get("/", &[("x-estimate", 11)]).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(
            (
                site.left("own", UNITS).await,
                site.left("pool", UNITS).await
            ),
            (0, UNITS)
        );
        assert_eq!(
            site.get("/?pool", &[("x-estimate", 12)]).await.status(),
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(
            (
                site.left("own", UNITS).await,
                site.left("pool", UNITS).await
            ),
            (0, 0),
            "{}",
            site.store.name
        );
    }
}

/// Law 6: however many requests are refused at the same time, no more is charged than remained.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_charge_of_64_requests_refused_at_once() {
    for store in Store::both().await {
        let limits = all([budget("attempts", 40).charge_refused(), budget("narrow", 8)]);
        let site = std::sync::Arc::new(Site::new(store, limits, app()).await);
        let asks: Vec<_> = (0..64)
            .map(|_| {
                let site = std::sync::Arc::clone(&site);
                tokio::spawn(async move { site.status("/").await })
            })
            .collect();
        let mut admitted = 0;
        for ask in asks {
            admitted += u32::from(ask.await.unwrap() == StatusCode::OK);
        }
        assert_eq!(admitted, 8, "{}", site.store.name);
        assert_eq!(site.left("attempts", 40).await, 0, "{}", site.store.name);
    }
}

/// The ban would refuse the charge.
#[tokio::test]
async fn charge_of_a_refused_request_comes_before_the_ban_that_its_strike_begins() {
    let servers = tokio::task::spawn_blocking(Cluster::shared).await.unwrap();
    let urls = servers.urls();
    let redis = throttle_redis::Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let redis = RedisBackend::builder(redis)
        .per_key_slot()
        .prefix(format!("attempts-{}", std::process::id()))
        .deadline(Duration::from_secs(5));
    let cluster = Store {
        name: "cluster",
        backend: BoxBackend::new(redis.build().unwrap()),
    };
    for store in Store::both().await.into_iter().chain([cluster]) {
        for round in 0..20 {
            let ban = Ban::after(1).lasting(Duration::from_millis(20));
            let name = format!("attempts-{round}");
            let limit = budget(&name, UNITS)
                .cost(4)
                .charge_refused()
                .ban(ban.even_if_spoofable());
            let site = Site::new(store.clone(), limit, app()).await;
            for expected in [
                StatusCode::OK,
                StatusCode::OK,
                StatusCode::TOO_MANY_REQUESTS,
            ] {
                assert_eq!(site.status("/").await, expected);
            }
            site.settled().await;
            tokio::time::sleep(Duration::from_millis(40)).await;
            assert_eq!(site.left(&name, UNITS).await, 0, "{}: {round}", store.name);
        }
    }
}
