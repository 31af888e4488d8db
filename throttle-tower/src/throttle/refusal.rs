use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use throttle_core::{BackendErrorKind, Policy, PolicyName};

use super::report::LimitReport;
use crate::headers::Problem;

/// A refusal about to be answered, for those who [build the response](crate::ThrottleLayer::response) themselves.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// Why.
    pub reason: Reason<'a>,
    /// The status that the answer would have.
    pub status: StatusCode,
    /// µs by which the wait is lengthened.
    pub(super) extra: u64,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Reason<'a> {
    /// A limit refused it: 429.
    Quota(&'a LimitReport),
    /// The store failed, and these limits apply to the request and are closed then: 503.
    Store(BackendErrorKind, &'a [Policy]),
    /// The policy requires a key, and the request has none: the status that was chosen.
    MissingKey(&'a PolicyName),
    /// These limits on requests in flight have not enough left: 503.
    Saturated(&'a [PolicyName]),
}

impl Refusal<'_> {
    /// How long to wait, if waiting helps and it is known for how long. [Jitter](crate::ThrottleLayer::retry_jitter) is
    /// included, so it agrees with the `Retry-After` that is sent, but for rounding up to seconds.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Quota(report) => {
                Some(report.decision().retry_after()?.saturating_add(Duration::from_micros(self.extra)))
            }
            Reason::Store(..) | Reason::MissingKey(_) | Reason::Saturated(_) => None,
        }
    }

    /// The response that is sent when nobody builds another: a problem document (RFC 9457), not to be stored.
    #[must_use]
    pub fn default_response(&self) -> Response<Bytes> {
        let body = match self.reason {
            Reason::Quota(report) => report.announced().problem(report.decision()),
            Reason::Store(_, policies) => {
                Problem::TemporaryReducedCapacity.body(policies.iter().map(|policy| policy.name()))
            }
            Reason::Saturated(names) => Problem::TemporaryReducedCapacity.body(names.iter().map(PolicyName::as_str)),
            Reason::MissingKey(_) => generic(self.status),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, Problem::CONTENT_TYPE);
        response
    }
}

/// A problem of no registered type: its title is the status's own.
fn generic(status: StatusCode) -> Bytes {
    let title = status.canonical_reason().unwrap_or("Refused");
    let status = status.as_u16();
    Bytes::from(format!(r#"{{"type":"about:blank","title":"{title}","status":{status}}}"#))
}

/// Marks the response of a throttle's refusal, for the throttles around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedByThrottle;
