//! The layer in axum's routers.

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::handler::Handler;
use axum::http::{Request, StatusCode};
use axum::routing::{any_service, get};
use throttle_core::BoxBackend;
use throttle_tower::extract::MatchedRoute;
use throttle_tower::{ClientIp, Gcra, LimitReport, Rate, Route, ThrottleLayer, limit};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, shared, text};

fn request(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn status(app: &Router, path: &str) -> u16 {
    app.clone().oneshot(request(path)).await.unwrap().status().as_u16()
}

fn throttle(burst: u64) -> ThrottleLayer {
    ThrottleLayer::new(shared("p", burst)).unwrap()
}

#[tokio::test]
async fn a_layer_covers_the_routes_and_the_fallback() {
    let app = Router::new().route("/a", get(|| async {})).route("/b", get(|| async {})).layer(throttle(3));
    assert_eq!([status(&app, "/a").await, status(&app, "/b").await, status(&app, "/none").await], [200, 200, 404]);
    assert_eq!([status(&app, "/a").await, status(&app, "/none").await], [429, 429]);
}

#[tokio::test]
async fn a_layer_leaves_routes_alone_that_are_added_later() {
    let app = Router::new().route("/a", get(|| async {})).layer(throttle(1)).route("/later", get(|| async {}));
    assert_eq!([status(&app, "/a").await, status(&app, "/a").await, status(&app, "/later").await], [200, 429, 200]);
}

#[tokio::test]
async fn a_route_layer_leaves_the_fallback_alone() {
    let app = Router::new().route("/a", get(|| async {})).route_layer(throttle(1));
    assert_eq!([status(&app, "/none").await, status(&app, "/a").await], [404, 200]);
    assert_eq!([status(&app, "/none").await, status(&app, "/a").await], [404, 429]);
}

#[tokio::test]
async fn a_layer_of_one_methods_handler_and_of_a_service() {
    let app = Router::new().route("/a", get((|| async {}).layer(throttle(1))).post(|| async {})).route(
        "/b",
        any_service(tower::service_fn(|_: Request<Body>| async {
            Ok::<_, std::convert::Infallible>(axum::response::Response::new(Body::empty()))
        }))
        .layer(throttle(1)),
    );
    assert_eq!([status(&app, "/a").await, status(&app, "/a").await], [200, 429]);
    let post = Request::post("/a").body(Body::empty()).unwrap();
    assert_eq!(app.clone().oneshot(post).await.unwrap().status(), StatusCode::OK);
    assert_eq!([status(&app, "/b").await, status(&app, "/b").await], [200, 429]);
}

#[tokio::test]
async fn a_layer_of_a_router_with_state() {
    async fn name(State(name): State<&'static str>, report: LimitReport) -> String {
        format!("{name} {}", report.decision().remaining())
    }
    let router: Router<&'static str> = Router::new().route("/", get(name)).layer(throttle(2));
    let app = router.with_state("ada");
    let response = app.clone().oneshot(request("/")).await.unwrap();
    assert_eq!(text(response).await, "ada 1");
    assert_eq!([status(&app, "/").await, status(&app, "/").await], [200, 429]);
}

/// The outer router's budget covers both; the nested router has a budget of its own.
#[tokio::test]
async fn nested_routers() {
    let inner = Router::new().route("/b", get(|| async {})).layer(ThrottleLayer::new(shared("inner", 1)).unwrap());
    let app = Router::new()
        .route("/a", get(|| async {}))
        .nest("/in", inner)
        .layer(ThrottleLayer::new(shared("outer", 3)).unwrap());
    let first = app.clone().oneshot(request("/in/b")).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let fields: Vec<_> = first.headers().get_all("ratelimit-policy").iter().collect();
    assert_eq!(fields.len(), 1, "stacked throttles share one field: {fields:?}");
    let field = fields[0].to_str().unwrap();
    assert!(field.contains("\"inner\"") && field.contains("\"outer\""), "{field}");
    assert_eq!([status(&app, "/in/b").await, status(&app, "/a").await, status(&app, "/a").await], [429, 200, 429]);
}

#[tokio::test]
async fn routes_are_distinguished_by_their_template() {
    let limits = limit("per-route", Gcra::new(Rate::per_minute(1)).burst(1)).by(Route);
    let app = Router::new()
        .route("/users/{id}", get(|| async {}))
        .nest("/api", Router::new().route("/users/{id}", get(|| async {})))
        .layer(ThrottleLayer::new(limits).unwrap());
    assert_eq!([status(&app, "/users/1").await, status(&app, "/users/2").await], [200, 429]);
    assert_eq!([status(&app, "/api/users/1").await, status(&app, "/api/users/2").await], [200, 429]);
    assert_eq!([status(&app, "/none").await, status(&app, "/neither").await], [404, 429]);
}

#[tokio::test]
async fn a_stated_route_comes_before_the_matched_one() {
    let limits = limit("per-route", Gcra::new(Rate::per_minute(1)).burst(1)).by(Route);
    let app = Router::new()
        .route("/a", get(|| async {}))
        .route("/b", get(|| async {}))
        .layer(ThrottleLayer::new(limits).unwrap())
        .layer(axum::Extension(MatchedRoute("/both".into())));
    assert_eq!([status(&app, "/a").await, status(&app, "/b").await], [200, 429]);
}

/// A layer around the router sees requests before they are routed: all of them use the budget of `<unmatched>`.
#[tokio::test]
async fn around_the_whole_router() {
    let app = Router::new().route("/a", get(|| async {})).route("/b", get(|| async {}));
    let limits = limit("per-route", Gcra::new(Rate::per_minute(1)).burst(2)).by(Route);
    let service = ThrottleLayer::new(limits).unwrap().layer(app);
    let mut statuses = Vec::new();
    for path in ["/a", "/b", "/a"] {
        statuses.push(service.clone().oneshot(request(path)).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn the_peer_is_the_connection_axum_knows_of() {
    let limits = limit("per-ip", Gcra::new(Rate::per_minute(1)).burst(1)).by(ClientIp::peer());
    let app = Router::new().route("/", get(|| async {})).layer(ThrottleLayer::new(limits).unwrap());
    let from = |last: u8| {
        let mut request = request("/");
        request.extensions_mut().insert(ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, last], 4_000))));
        app.clone().oneshot(request)
    };
    assert_eq!(from(1).await.unwrap().status(), StatusCode::OK);
    assert_eq!(from(2).await.unwrap().status(), StatusCode::OK);
    assert_eq!(from(1).await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn with_backends_that_are_waited_for() {
    let slow = throttle(1).backend(Remote::slow(9, 9)).unwrap();
    let boxed = throttle(1).backend(BoxBackend::new(Remote::slow(9, 9))).unwrap();
    let routes = || Router::new().route("/", get(|| async {}));
    for app in [routes().layer(slow), routes().layer(boxed)] {
        assert_eq!([status(&app, "/").await, status(&app, "/").await], [200, 429]);
    }
}
