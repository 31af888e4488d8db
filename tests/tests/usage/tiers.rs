//! Charges of a limit with tiers stay in the tier that they were made in.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use throttle_core::backend::Call;
use throttle_core::{Limiter, Policy, PolicySet};
use throttle_tower::{FixedWindow, Header, KeyExtractor, Rate, Usage, plans};
use tower::ServiceExt;

use crate::site::{layer, settled};
use crate::store::Store;

const YEAR: Duration = Duration::from_secs(365 * 86_400);

fn tiers() -> [(&'static str, FixedWindow); 2] {
    [("free", FixedWindow::new(Rate::new(10, YEAR))), ("pro", FixedWindow::new(Rate::new(1_000, YEAR)))]
}

#[tokio::test]
async fn charge_settled_later_stays_in_its_tier() {
    for store in Store::both().await {
        let name = store.name;
        let tokens = plans("tokens", tiers())
            .by(Header::new("x-user"))
            .lookup(|user: String| async move { (user == "ada").then_some("pro") })
            .unknown("free")
            .cost(5)
            .into_limit()
            .settled_later()
            .refund_server_errors();
        let layer = layer(&store, tokens);
        let handler = |usage: Usage| async move {
            for _ in 0..20 {
                usage.add("tokens", 6).unwrap();
                tokio::task::yield_now().await;
            }
            "done"
        };
        let fails = || async { StatusCode::INTERNAL_SERVER_ERROR };
        let app = Router::new().route("/", get(handler)).route("/fails", get(fails)).layer(layer.clone());
        let send = async |path: &str, user: &str| {
            let request = Request::get(path).header("x-user", user).body(Body::empty()).unwrap();
            let response = app.clone().oneshot(request).await.unwrap();
            let status = response.status();
            axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
            settled(&layer).await;
            status
        };
        // More than the first tier could ever admit: running charges follow the tier of the first one.
        assert_eq!(send("/", "ada").await, StatusCode::OK, "{name}");
        assert_eq!(left(&store, "ada", 1).await, 880, "{name}: 120 of 1,000");
        assert_eq!(send("/fails", "ada").await, StatusCode::INTERNAL_SERVER_ERROR, "{name}");
        assert_eq!(left(&store, "ada", 1).await, 880, "{name}: given back there");

        assert_eq!(send("/", "bob").await, StatusCode::OK, "{name}");
        assert_eq!(left(&store, "bob", 0).await, 0, "{name}: as far as something is left");
        assert_eq!(send("/", "bob").await, StatusCode::TOO_MANY_REQUESTS, "{name}");
    }
}

/// What remains for the user in a tier.
async fn left(store: &Store, user: &str, tier: u8) -> u64 {
    let (parts, ()) = Request::get("/").header("x-user", user).body(()).unwrap().into_parts();
    let key = Header::new("x-user").extract(&parts).unwrap();
    let policy = Policy::tiered("tokens", tiers()).unwrap();
    let limiter = Limiter::new(store.backend.clone(), PolicySet::new(policy).unwrap()).unwrap();
    limiter.decide(&[Call::peek(key).in_tier(tier)]).await.unwrap().remaining()
}
