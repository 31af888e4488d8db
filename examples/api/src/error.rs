//! The errors of this API: `{"error": "…"}`, whether a handler answers or a limit.

use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use throttle_tower::{LimitReport, Refusal};

pub(crate) enum ApiError {
    NotFound,
    Unauthorized,
    /// A limit that a handler has looked at itself.
    TooManyRequests(Box<LimitReport>),
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = |status: StatusCode, body: Value| (status, Json(body)).into_response();
        match self {
            Self::NotFound => json(StatusCode::NOT_FOUND, json!({ "error": "not_found" })),
            Self::Unauthorized => {
                json(StatusCode::UNAUTHORIZED, json!({ "error": "unauthorized" }))
            }
            Self::TooManyRequests(report) => {
                let body = too_many_requests(report.decision().retry_after());
                let mut response = json(StatusCode::TOO_MANY_REQUESTS, body);
                report.write_headers(&mut response);
                response
            }
        }
    }
}

/// The response of a layer that refuses a request. The layer adds its headers.
pub(crate) fn refused(refusal: &Refusal<'_>) -> axum::http::Response<Bytes> {
    let body = match refusal.status {
        StatusCode::TOO_MANY_REQUESTS => too_many_requests(refusal.retry_after()),
        _ => json!({ "error": "busy" }),
    };
    let mut response = axum::http::Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = refusal.status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

fn too_many_requests(wait: Option<Duration>) -> Value {
    json!({ "error": "too_many_requests", "retry_after_ms": wait.map(|wait| wait.as_micros().div_ceil(1_000)) })
}
