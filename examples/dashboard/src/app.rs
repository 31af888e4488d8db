//! The server: its routes behind the limits, and in front of them what shows the limits.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use futures_util::stream;
use metrics_exporter_prometheus::PrometheusHandle;
use throttle_tower::throttle_core::Backend;
use throttle_tower::{Metrics, Page, ThrottleBuilder, Usage};

use crate::limits::{self, estimate};
use crate::payments::Payments;

/// Serves some routes behind the limits, and the metrics and the page beside them.
pub fn app<B: Backend>(
    throttle: ThrottleBuilder<B>,
    metrics: PrometheusHandle,
) -> anyhow::Result<Router> {
    let candidate = limits::candidate()?.metrics("api");
    let page = Page::new().candidate(&candidate);
    let throttle = throttle
        .observe(Metrics::new("api"))
        .observe(page.clone())
        .observe(candidate)
        .build()?;
    let limited = Router::new()
        .route("/", get(async || "hello\n"))
        .route("/report", get(async || "all is well\n"))
        .route("/export", get(export))
        .route("/feed", get(feed))
        .route(
            "/pay",
            get(async |State(payments): State<Payments>| payments.pay().await),
        )
        .with_state(Payments::new()?)
        .layer(throttle);
    // Both are outside the limits, so that they answer while clients are refused. In production,
    // put them behind your authentication, or on a port of their own.
    Ok(limited
        .route("/metrics", get(async move || text(&metrics)))
        .nest_service("/throttle", page.router()))
}

fn text(metrics: &PrometheusHandle) -> impl IntoResponse + use<> {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4")],
        metrics.render(),
    )
}

/// Has an eighth more rows than were estimated. They are charged too, as far as any are left.
async fn export(usage: Usage, request: Request) -> (StatusCode, String) {
    let (parts, _) = request.into_parts();
    let rows = estimate(&parts) * 9 / 8;
    // An error would mean that the usage is final, or that there is no such limit.
    let _ = usage.settle("rows", rows);
    (
        StatusCode::OK,
        "row\n".repeat(usize::try_from(rows).unwrap_or_default()),
    )
}

/// A response that takes ten seconds, and holds its permits until it ends or the client
/// disconnects.
async fn feed() -> Body {
    Body::from_stream(stream::unfold(0, async |line| {
        tokio::time::sleep(Duration::from_millis(500)).await;
        (line < 20).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"news\n")), line + 1))
    }))
}
