use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use throttle_core::{BackendErrorKind, Policy, PolicyName};

use super::limit_report::LimitReport;
use crate::headers::Problem;

/// A refusal, for a closure that [builds the response](crate::ThrottleLayer::response).
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use throttle_tower::{Constant, Gcra, Rate, Reason, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limits = limit("all", Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant);
/// let throttle = ThrottleLayer::new(limits)?.response(|refusal| match refusal.reason {
///     Reason::Quota(report) => {
///         assert!(report.violated().eq(["all"]));
///         let mut response = Response::new("too many orders, come back later".into());
///         *response.status_mut() = refusal.status;
///         response
///     }
///     _ => refusal.default_response(),
/// });
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new(()))
/// }));
/// service.clone().oneshot(Request::new(())).await?;
/// let refused = service.oneshot(Request::new(())).await?;
/// assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert!(refused.headers().contains_key("retry-after"), "the layer adds its headers");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// Why the request is refused.
    pub reason: Reason<'a>,
    /// The status of the default response.
    pub status: StatusCode,
    /// µs by which the wait is lengthened.
    pub(super) extra: u64,
}

/// Why a request is refused.
///
/// ```
/// use throttle_tower::{Reason, ThrottleLayer, Concurrency};
///
/// let throttle = ThrottleLayer::new(Concurrency::new(20))?.response(|refusal| {
///     let mut response = refusal.default_response();
///     if let Reason::NoPermit(limits) = refusal.reason {
///         assert_eq!(limits[0].as_str(), "in-flight");
///         response.headers_mut().insert("retry-after", http::HeaderValue::from_static("1"));
///     }
///     response
/// });
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Reason<'a> {
    /// A limit refused it: 429.
    Quota(&'a LimitReport),
    /// The store failed, and these limits refuse the request because they are closed: 503.
    Store(BackendErrorKind, &'a [Policy]),
    /// The policy requires a key, and the request has none: the status of
    /// [`OnMissing::Reject`](crate::OnMissing::Reject).
    MissingKey(&'a PolicyName),
    /// These limits on requests in flight have too few permits left: 503.
    NoPermit(&'a [PolicyName]),
}

impl Refusal<'_> {
    /// How long the client should wait; `None` if no wait helps, or if it is not known how long. It includes
    /// [jitter](crate::ThrottleLayer::retry_jitter), so it is the `Retry-After` of the response, before that is rounded
    /// up to seconds.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Quota(report) => {
                Some(report.decision().retry_after()?.saturating_add(Duration::from_micros(self.extra)))
            }
            Reason::Store(..) | Reason::MissingKey(_) | Reason::NoPermit(_) => None,
        }
    }

    /// The response of a layer without a closure: a problem document (RFC 9457).
    #[must_use]
    pub fn default_response(&self) -> Response<Bytes> {
        let body = match self.reason {
            Reason::Quota(report) => report.announced().problem(report.decision()),
            Reason::Store(_, policies) => {
                Problem::TemporaryReducedCapacity.body(policies.iter().map(|policy| policy.name()))
            }
            Reason::NoPermit(names) => Problem::TemporaryReducedCapacity.body(names.iter().map(PolicyName::as_str)),
            Reason::MissingKey(_) => generic(self.status),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, Problem::CONTENT_TYPE);
        headers.insert(CACHE_CONTROL, NO_STORE);
        response
    }
}

/// Caches must not store a 429 (RFC 6585), and the other refusals are not true for long.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// A problem of no registered type: its title is the status's own.
fn generic(status: StatusCode) -> Bytes {
    let title = status.canonical_reason().unwrap_or("Refused");
    let status = status.as_u16();
    Bytes::from(format!(r#"{{"type":"about:blank","title":"{title}","status":{status}}}"#))
}

/// Marks the response of a throttle's refusal that carries no [`LimitReport`], for the throttles around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedByThrottle;

#[cfg(test)]
mod tests {
    use throttle_core::{Gcra, Rate};

    use super::*;

    /// The text of the response and its status.
    fn response(reason: Reason<'_>, status: StatusCode) -> (StatusCode, String) {
        let refusal = Refusal { reason, status, extra: 1 };
        assert_eq!(refusal.retry_after(), None, "it is not known how long");
        let response = refusal.default_response();
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        (response.status(), String::from_utf8(response.body().to_vec()).unwrap())
    }

    #[test]
    fn refusal_without_a_decision_names_the_limits_and_no_wait() {
        let names = ["a", "b"].map(|name| PolicyName::new(name).unwrap());
        let policies = ["c", "d"].map(|name| Policy::new(name, Gcra::new(Rate::per_second(1))).unwrap());
        let (status, body) = response(Reason::NoPermit(&names), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("#temporary-reduced-capacity") && body.ends_with(r#":["a","b"]}"#), "{body}");
        let store = Reason::Store(BackendErrorKind::Timeout, &policies);
        let (status, body) = response(store, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("#temporary-reduced-capacity") && body.ends_with(r#":["c","d"]}"#), "{body}");
        let missing = response(Reason::MissingKey(&names[0]), StatusCode::FORBIDDEN);
        let body = r#"{"type":"about:blank","title":"Forbidden","status":403}"#;
        assert_eq!(missing, (StatusCode::FORBIDDEN, body.to_owned()));
    }
}
