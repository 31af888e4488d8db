//! What is served by HTTP: to proxies, and to operators.

use axum::Router;
use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{any, get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use throttle_tower::Page;
use tokio::sync::watch;

use crate::check::Check;
use crate::json;
use crate::service::Service;

/// What handlers need.
#[derive(Clone, FromRef)]
pub struct App {
    pub service: Service,
    /// `true` once the server ends.
    pub stopped: watch::Receiver<bool>,
}

/// For proxies.
pub fn proxies(app: App, check: Option<Check>) -> Router {
    let router = Router::new()
        .route("/json", post(json::answer))
        .route("/healthcheck", get(health))
        .with_state(app);
    match check {
        Some(check) => router.route("/check", any(Check::answer).with_state(check)),
        None => router,
    }
}

/// For operators. It needs a network of its own, or authentication.
pub fn operators(app: App, page: &Page, metrics: PrometheusHandle) -> Router {
    let limits = async |State(service): State<Service>| service.in_force().config.dump();
    let content_type = [(CONTENT_TYPE, "text/plain; version=0.0.4")];
    let metrics = async move || (content_type, metrics.render());
    Router::new()
        .route("/rlconfig", get(limits))
        .route("/healthcheck", get(health))
        .with_state(app)
        .route("/metrics", get(metrics))
        .nest_service("/page", page.router())
}

async fn health(State(stopped): State<watch::Receiver<bool>>) -> (StatusCode, &'static str) {
    if *stopped.borrow() {
        (StatusCode::INTERNAL_SERVER_ERROR, "the server ends")
    } else {
        (StatusCode::OK, "OK")
    }
}
