use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Response};

use super::document::{self, document};
use super::events::events;
use super::rendered::PageData;

/// The page, its data and its events. All paths are relative to where the router is nested.
pub(super) fn router<S: Clone + Send + Sync + 'static>(rendered: PageData) -> Router<S> {
    let (rendered, page) = (Arc::new(rendered), document());
    let streamed = Arc::clone(&rendered);
    Router::new()
        .route("/", get(async move || of_page(page.into())))
        .route(
            "/data.json",
            get(async move || of_data("application/json", rendered.json().into())),
        )
        .route(
            "/events",
            get(async move || of_data("text/event-stream", events(streamed))),
        )
}

fn of_page(body: Body) -> Response<Body> {
    respond("text/html; charset=utf-8", document::POLICY, body)
}

/// Opened on its own, it is text.
fn of_data(content_type: &'static str, body: Body) -> Response<Body> {
    respond(
        content_type,
        "default-src 'none'; frame-ancestors 'none'",
        body,
    )
}

fn respond(content_type: &'static str, policy: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (CONTENT_SECURITY_POLICY, policy),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        // nginx would hold events back until a buffer is full.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
