use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::Response;
use serde_json::Value;
use tower::ServiceExt;

use super::*;

async fn ask(app: &Router, model: &str, prompt: &str) -> Response {
    let request = Request::post(format!("/v1/{model}")).header("x-api-key", "ada");
    let request = request
        .header("content-length", prompt.len())
        .body(Body::from(prompt.to_owned()));
    app.clone().oneshot(request.unwrap()).await.unwrap()
}

/// What is left of the month, in micro-dollars.
async fn left(app: &Router) -> u64 {
    let request = Request::get("/budget")
        .header("x-api-key", "ada")
        .body(Body::empty())
        .unwrap();
    let body = app.clone().oneshot(request).await.unwrap().into_body();
    let budget: Value = serde_json::from_slice(&to_bytes(body, 10_000).await.unwrap()).unwrap();
    assert_eq!(
        (&budget["limits"][1]["policy"], &budget["limits"][1]["unit"]),
        (&"month".into(), &"micro-dollars".into())
    );
    budget["limits"][1]["remaining"].as_u64().unwrap()
}

#[tokio::test]
async fn request_is_charged_what_it_has_cost() {
    let app = app().unwrap();
    assert_eq!(left(&app).await, 20 * DOLLAR);
    assert_eq!(
        ask(&app, "large", "tell me about rivers").await.status(),
        StatusCode::OK
    );
    // Four tokens at $2.50 and a hundred at $10 for a million.
    assert_eq!(left(&app).await, 20 * DOLLAR - 1_010);
    assert_eq!(
        ask(&app, "unknown", "tell me about rivers").await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(left(&app).await, 20 * DOLLAR - 1_010);
}

#[tokio::test]
async fn other_spelling_of_a_model_is_charged_and_refused_too() {
    let app = app().unwrap();
    assert_eq!(
        ask(&app, "la%72ge", "tell me about rivers").await.status(),
        StatusCode::OK
    );
    assert_eq!(left(&app).await, 20 * DOLLAR - 1_010);
    let long = "a ".repeat(40_000);
    assert_eq!(
        ask(&app, "la%72ge", &long).await.status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

#[tokio::test]
async fn request_that_may_cost_more_than_is_left_is_refused() {
    let app = app().unwrap();
    let long = "a ".repeat(40_000); // at most $1.20 and $0.075
    let refused = ask(&app, "giant", &long).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(
        !refused.headers().contains_key("retry-after"),
        "an hour has a dollar"
    );
    assert_eq!(left(&app).await, 20 * DOLLAR);
    assert_eq!(
        ask(&app, "small", &long).await.status(),
        StatusCode::OK,
        "at a hundredth of the price"
    );
}

#[test]
fn price_is_rounded_up_once() {
    let small = price_of("small").unwrap();
    assert_eq!(
        [
            small.of(0, 0),
            small.of(1, 0),
            small.of(10, 0),
            small.of(1_000_000, 1_000_000)
        ],
        [0, 1, 2, 750_000]
    );
}
