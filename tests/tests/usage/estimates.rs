//! Estimates of 0, which a client may write where the estimate is read from its request.

use axum::Router;
use axum::routing::get;
use http::StatusCode;
use throttle_tower::limit::LimitTree;
use throttle_tower::{Limit, Usage, all, any};

use crate::site::{Site, estimate};
use crate::store::{Store, budget};

const UNITS: u64 = 100;

fn tokens(name: &str) -> Limit {
    budget(name, UNITS).cost(estimate).settled_later()
}

/// Each request uses 30 units, whatever it estimates.
async fn site(store: Store, limits: LimitTree) -> Site {
    let handler = |usage: Usage| async move { usage.settle_all(30) };
    Site::new(store, limits, Router::new().route("/", get(handler))).await
}

async fn ask(site: &Site, estimate: u64) -> StatusCode {
    let status = site.get("/", &[("x-estimate", estimate)]).await.status();
    site.settled().await;
    status
}

#[tokio::test]
async fn charge_estimated_as_zero_is_refused_when_nothing_is_left() {
    let (own, pool) = (|| tokens("own"), || tokens("pool"));
    for (limits, admitted) in [
        (all([own()]) as LimitTree, 4),
        (all([own(), pool()]), 4),
        (any([own(), pool()]), 8),
        (all((any([own(), pool()]), tokens("month"))), 4),
    ] {
        for store in Store::both().await {
            let (name, site) = (store.name, site(store, limits.clone()).await);
            for request in 0..admitted {
                let status = ask(&site, 0).await;
                assert_eq!(status, StatusCode::OK, "{name}: {request} of {limits:?}");
            }
            for estimate in [0, 1] {
                let status = ask(&site, estimate).await;
                assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{name}: {limits:?}");
            }
        }
    }
}

#[tokio::test]
async fn law_05_charge_estimated_as_zero_is_paid_by_one_member_of_an_any() {
    for store in Store::both().await {
        let site = site(store, any([tokens("own"), tokens("pool")])).await;
        let mut left = Vec::new();
        for _ in 0..5 {
            assert_eq!(ask(&site, 0).await, StatusCode::OK);
            left.push((
                site.left("own", UNITS).await,
                site.left("pool", UNITS).await,
            ));
        }
        let expected = [(70, 100), (40, 100), (10, 100), (0, 100), (0, 70)];
        assert_eq!(left, expected, "{}", site.store.name);
    }
}

/// The unit that the estimate counts as is given back.
#[tokio::test]
async fn charge_estimated_as_zero_is_zero_if_the_handler_reports_zero() {
    for store in Store::both().await {
        let handler = |usage: Usage| async move {
            assert_eq!(usage.taken("own"), 1);
            usage.settle("own", 0)
        };
        let app = Router::new().route("/", get(handler));
        let site = Site::new(store, all([tokens("own")]), app).await;
        assert_eq!(ask(&site, 0).await, StatusCode::OK);
        assert_eq!(site.left("own", UNITS).await, UNITS, "{}", site.store.name);
    }
}
