//! The layer in axum's routers.

use axum::Router;
use axum::body::Body;
use axum::extract::OriginalUri;
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use axum::routing::{any_service, get};
use throttle_tower::extract::MatchedRoute;
use throttle_tower::{Gcra, Rate, Route, ThrottleLayer, limit};
use tower::ServiceExt;

use crate::common::shared;

fn request(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn status(app: &Router, path: &str) -> u16 {
    app.clone()
        .oneshot(request(path))
        .await
        .unwrap()
        .status()
        .as_u16()
}

fn throttle(burst: u64) -> ThrottleLayer {
    ThrottleLayer::new(shared("p", burst)).unwrap()
}

#[tokio::test]
async fn a_layer_of_one_methods_handler_and_of_a_service() {
    let app = Router::new()
        .route(
            "/a",
            get((|| async {}).layer(throttle(1))).post(|| async {}),
        )
        .route(
            "/b",
            any_service(tower::service_fn(|_: Request<Body>| async {
                Ok::<_, std::convert::Infallible>(axum::response::Response::new(Body::empty()))
            }))
            .layer(throttle(1)),
        );
    assert_eq!(
        [status(&app, "/a").await, status(&app, "/a").await],
        [200, 429]
    );
    let post = Request::post("/a").body(Body::empty()).unwrap();
    assert_eq!(
        app.clone().oneshot(post).await.unwrap().status(),
        StatusCode::OK
    );
    assert_eq!(
        [status(&app, "/b").await, status(&app, "/b").await],
        [200, 429]
    );
}

/// The outer router's budget covers both; the nested router has a budget of its own.
#[tokio::test]
async fn nested_routers() {
    let inner = Router::new()
        .route("/b", get(|| async {}))
        .layer(ThrottleLayer::new(shared("inner", 1)).unwrap());
    let app = Router::new()
        .route("/a", get(|| async {}))
        .nest("/in", inner)
        .layer(ThrottleLayer::new(shared("outer", 3)).unwrap());
    let first = app.clone().oneshot(request("/in/b")).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let fields: Vec<_> = first.headers().get_all("ratelimit-policy").iter().collect();
    assert_eq!(
        fields.len(),
        1,
        "stacked throttles share one field: {fields:?}"
    );
    let field = fields[0].to_str().unwrap();
    assert!(
        field.contains("\"inner\"") && field.contains("\"outer\""),
        "{field}"
    );
    assert_eq!(
        [
            status(&app, "/in/b").await,
            status(&app, "/a").await,
            status(&app, "/a").await
        ],
        [429, 200, 429]
    );
}

/// As the docs of both `when` say.
#[tokio::test]
async fn path_in_a_nested_router_lacks_its_prefix() {
    let is_b = |parts: &Parts| parts.uri.path() == "/b";
    let is_whole = |parts: &Parts| {
        let OriginalUri(uri) = parts.extensions.get().unwrap();
        uri.path() == "/in/b"
    };
    for (limits, layer) in [
        (
            ThrottleLayer::new(shared("p", 1).when(is_b)).unwrap(),
            "limit",
        ),
        (
            ThrottleLayer::builder(shared("p", 1))
                .when(is_b)
                .build()
                .unwrap(),
            "layer",
        ),
        (
            ThrottleLayer::builder(shared("p", 1))
                .when(is_whole)
                .build()
                .unwrap(),
            "whole",
        ),
    ] {
        let inner = Router::new().route("/b", get(|| async {})).layer(limits);
        let app = Router::new().nest("/in", inner);
        let statuses = [status(&app, "/in/b").await, status(&app, "/in/b").await];
        assert_eq!(statuses, [200, 429], "{layer}");
    }
}

#[tokio::test]
async fn a_stated_route_comes_before_the_matched_one() {
    let limits = limit("per-route", Gcra::new(Rate::per_minute(1)).burst(1)).by(Route);
    let app = Router::new()
        .route("/a", get(|| async {}))
        .route("/b", get(|| async {}))
        .layer(ThrottleLayer::new(limits).unwrap())
        .layer(axum::Extension(MatchedRoute("/both".into())));
    assert_eq!(
        [status(&app, "/a").await, status(&app, "/b").await],
        [200, 429]
    );
}
