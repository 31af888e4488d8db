use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use axum::http::request::Builder;
use throttle_tower::throttle_core::{ManualClock, SystemClock};
use tower::ServiceExt;

use super::*;

/// The app on a clock that a test advances. `MemoryBackend` is of the same type as in `main`.
fn app_with_clock() -> (Router, ManualClock) {
    let clock = ManualClock::default();
    let store = MemoryBackend::builder()
        .clock(SystemClock::replaced_by(clock.clone()))
        .build();
    let settings = Settings {
        proxies: TrustedProxies::new(["127.0.0.1"]).unwrap(),
        origin: HeaderValue::from_static("https://shop.example"),
    };
    (app(store, settings).unwrap(), clock)
}

/// Sends a request as nginx would pass it on for a client.
async fn send(
    app: &Router,
    client: &str,
    request: Builder,
    body: Value,
) -> (StatusCode, axum::http::HeaderMap, Value) {
    let nginx = ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 40_000)));
    let request = request
        .header("x-forwarded-for", client)
        .header("content-type", "application/json");
    let request = request
        .extension(nginx)
        .body(Body::from(body.to_string()))
        .unwrap();
    let (head, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    (
        head.status,
        head.headers,
        serde_json::from_slice(&body).unwrap_or_default(),
    )
}

async fn log_in(app: &Router, client: &str, user: &str, password: &str) -> (StatusCode, Value) {
    let login = json!({ "user": user, "password": password });
    let (status, _, body) = send(app, client, Request::post("/login"), login).await;
    (status, body)
}

#[tokio::test]
async fn sixth_wrong_password_of_a_name_is_refused_from_every_address() {
    let (app, clock) = app_with_clock();
    for n in 0..5 {
        let (status, body) = log_in(
            &app,
            &format!("203.0.113.{n}"),
            ["ada", "ADA "][n % 2],
            "a guess",
        )
        .await;
        assert_eq!(
            (status, body),
            (StatusCode::UNAUTHORIZED, json!({ "error": "unauthorized" }))
        );
    }
    let login = json!({ "user": "ada", "password": "correct horse" });
    let (status, headers, body) = send(&app, "203.0.113.9", Request::post("/login"), login).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        body,
        json!({ "error": "too_many_requests", "retry_after_ms": 900_000 })
    );
    assert_eq!(headers["retry-after"], "900");
    assert_eq!(headers["ratelimit"], r#""failed-logins";r=0;t=900"#);
    assert_eq!(
        log_in(&app, "203.0.113.9", "bob", "battery staple").await.0,
        StatusCode::OK
    );
    clock.advance(Duration::from_secs(900));
    assert_eq!(
        log_in(&app, "203.0.113.9", "ada", "correct horse").await.0,
        StatusCode::OK
    );
}

#[tokio::test]
async fn client_that_tries_many_names_is_refused_by_its_address() {
    let (app, clock) = app_with_clock();
    for n in 0..20 {
        assert_eq!(
            log_in(&app, "203.0.113.9", &format!("user {n}"), "a guess")
                .await
                .0,
            StatusCode::UNAUTHORIZED
        );
    }
    assert_eq!(
        log_in(&app, "203.0.113.9", "ada", "correct horse").await.0,
        StatusCode::TOO_MANY_REQUESTS
    );
    assert_eq!(
        log_in(&app, "203.0.113.8", "ada", "correct horse").await.0,
        StatusCode::OK
    );
    clock.advance(Duration::from_secs(6));
    assert_eq!(
        log_in(&app, "203.0.113.9", "ada", "correct horse").await.0,
        StatusCode::OK
    );
}

#[tokio::test]
async fn each_user_has_the_budget_of_its_plan() {
    let (app, _) = app_with_clock();
    for (user, password, plan, count) in [
        ("ada", "correct horse", "free", 60),
        ("bob", "battery staple", "pro", 600),
    ] {
        let token = log_in(&app, "203.0.113.9", user, password).await.1["token"]
            .as_str()
            .unwrap()
            .to_owned();
        let me = || Request::get("/me").header("authorization", format!("Bearer {token}"));
        for n in 1..=count {
            // The client changes its address, and the budget of the user stays the same.
            let (status, _, body) =
                send(&app, &format!("198.51.100.{}", n % 250), me(), Value::Null).await;
            assert_eq!(status, StatusCode::OK);
            assert_eq!(
                body,
                json!({ "name": user, "plan": plan, "requests_left": count - n })
            );
        }
        let (status, headers, body) = send(&app, "203.0.113.1", me(), Value::Null).await;
        assert_eq!(
            (status, &body["error"]),
            (StatusCode::TOO_MANY_REQUESTS, &json!("too_many_requests"))
        );
        assert!(
            headers["ratelimit"]
                .to_str()
                .unwrap()
                .starts_with(r#""per-user";r=0"#)
        );
    }
}

#[tokio::test]
async fn page_of_another_origin_can_read_a_refusal_and_preflights_are_free() {
    let (app, _) = app_with_clock();
    let origin = |request: Builder| request.header("origin", "https://shop.example");
    for _ in 0..100 {
        let preflight =
            origin(Request::options("/me")).header("access-control-request-method", "GET");
        assert_eq!(
            send(&app, "203.0.113.9", preflight, Value::Null).await.0,
            StatusCode::OK
        );
    }
    for _ in 0..40 {
        let (status, ..) = send(
            &app,
            "203.0.113.9",
            origin(Request::get("/me")),
            Value::Null,
        )
        .await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
    }
    let (status, headers, body) = send(
        &app,
        "203.0.113.9",
        origin(Request::get("/me")),
        Value::Null,
    )
    .await;
    assert_eq!(
        (status, body),
        (
            StatusCode::TOO_MANY_REQUESTS,
            json!({ "error": "too_many_requests", "retry_after_ms": 50 })
        )
    );
    assert_eq!(
        headers["access-control-allow-origin"],
        "https://shop.example"
    );
    assert!(
        headers["access-control-expose-headers"]
            .to_str()
            .unwrap()
            .contains("retry-after")
    );
}

#[tokio::test]
async fn health_checks_are_not_limited() {
    let (app, _) = app_with_clock();
    for _ in 0..100 {
        assert_eq!(
            send(&app, "203.0.113.9", Request::get("/health"), Value::Null)
                .await
                .0,
            StatusCode::OK
        );
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_stops_sending_loses_its_permit() {
    let (app, _) = app_with_clock();
    let nginx = ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 40_000)));
    // Twenty bodies that never come, and a request beside them.
    let never = || Body::from_stream(futures_util::stream::pending::<io::Result<Vec<u8>>>());
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let login = Request::post("/login")
            .header("content-type", "application/json")
            .extension(nginx);
        waiting.spawn(app.clone().oneshot(login.body(never()).unwrap()));
    }
    tokio::time::sleep(MOST_TIME / 2).await;
    let me = || send(&app, "127.0.0.1", Request::get("/me"), Value::Null);
    assert_eq!(me().await.0, StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::sleep(MOST_TIME).await;
    let mut statuses = Vec::new();
    while let Some(response) = waiting.try_join_next() {
        statuses.push(response.unwrap().unwrap().status());
    }
    assert_eq!(statuses, [StatusCode::REQUEST_TIMEOUT; 20]);
    assert_eq!(me().await.0, StatusCode::UNAUTHORIZED);
}
