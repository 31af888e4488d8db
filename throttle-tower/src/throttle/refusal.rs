use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use throttle_core::{BackendErrorKind, Policy, PolicyName};

use super::limit_report::LimitReport;
use crate::grpc::{self, Violation};
use crate::headers::openai_error::OpenAiError;
use crate::headers::{Dialect, Problem};
use crate::uncached::uncached;

/// A refusal, for a closure that [builds the response](crate::ThrottleBuilder::response).
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use throttle_tower::{Constant, Gcra, Rate, Reason, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limits = limit("all", Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant);
/// let throttle = ThrottleLayer::builder(limits).response(|refusal| match refusal.reason {
///     Reason::Quota(report) => {
///         assert!(report.violated().eq(["all"]));
///         let mut response = Response::new("too many orders, come back later".into());
///         *response.status_mut() = refusal.status;
///         response
///     }
///     _ => refusal.default_response(),
/// }).build()?;
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
///
/// `Debug` leaves out the request's head.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// Why the request is refused.
    pub reason: Reason<'a>,
    /// The status of the default response to a request that is not gRPC's.
    pub status: StatusCode,
    /// The request's head. The client wrote it, so do not log it raw.
    pub parts: &'a Parts,
    /// Whether a gRPC request gets a default response in its words.
    pub(super) grpc_refusals: bool,
    /// µs by which the wait is lengthened.
    pub(super) extra: u64,
    /// How long to wait if it is not known how long the reason lasts.
    pub(super) unavailable: Option<Duration>,
}

/// Why a request is refused.
///
/// ```
/// use throttle_tower::{Constant, InFlight, Reason, ThrottleLayer, limit};
///
/// let limits = limit("in-flight", InFlight::new(20)).by(Constant);
/// let throttle = ThrottleLayer::builder(limits).response(|refusal| {
///     let mut response = refusal.default_response();
///     if let Reason::NoPermit(limits) = refusal.reason {
///         assert_eq!(limits[0].as_str(), "in-flight");
///         response.headers_mut().insert("x-overloaded", http::HeaderValue::from_static("1"));
///     }
///     response
/// }).build()?;
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

impl fmt::Debug for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Refusal");
        shown
            .field("reason", &self.reason)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Refusal<'_> {
    /// How long the client should wait; `None` if no wait helps, or if it is not known how long. It
    /// includes [jitter](crate::ThrottleBuilder::retry_jitter), so it is the `Retry-After` of the
    /// response, before that is rounded up to seconds. Of a 503 it is what
    /// [`unavailable_retry_after`](crate::ThrottleBuilder::unavailable_retry_after) sets.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.reason {
            Reason::Quota(report) => Some(
                report
                    .decision()
                    .retry_after()?
                    .saturating_add(Duration::from_micros(self.extra)),
            ),
            Reason::Store(..) | Reason::NoPermit(_) => self.unavailable,
            Reason::MissingKey(_) => None,
        }
    }

    /// The response of a layer without a closure: a problem document (RFC 9457), or for a gRPC
    /// request [`grpc_response`](Self::grpc_response), unless
    /// [`grpc_refusals`](crate::ThrottleBuilder::grpc_refusals) is off.
    #[must_use]
    pub fn default_response(&self) -> Response<Bytes> {
        if self.grpc_refusals
            && let Some(response) = self.grpc_response()
        {
            return response;
        }
        let body = match self.reason {
            Reason::Quota(report) => report.announced().problem(report.decision()),
            Reason::Store(_, policies) => {
                Problem::TemporaryReducedCapacity.body(policies.iter().map(|policy| policy.name()))
            }
            Reason::NoPermit(names) => {
                Problem::TemporaryReducedCapacity.body(names.iter().map(PolicyName::as_str))
            }
            Reason::MissingKey(_) => generic(self.status),
        };
        uncached(self.status, Problem::CONTENT_TYPE, body)
    }

    /// The response that gRPC clients understand; `None` if the request is no POST whose
    /// `Content-Type` is `application/grpc`, with or without a codec as in
    /// `application/grpc+proto`, or gRPC-Web's. A closure that answers other requests in its own
    /// way asks for this first:
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let throttle = ThrottleLayer::builder(limits).response(|refusal| {
    ///     refusal
    ///         .grpc_response()
    ///         .unwrap_or_else(|| refusal.openai_response())
    /// }).build()?;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// It has status 200, the `Content-Type` of the request without parameters (gRPC-Web's too),
    /// and no body. What it says is in its headers, of which gRPC makes the trailers:
    ///
    /// | reason | `grpc-status` | `grpc-retry-pushback-ms` |
    /// |---|---|---|
    /// | [`Quota`](Reason::Quota) | 8, `RESOURCE_EXHAUSTED` | the wait, rounded up; -1 where no wait helps, or where it is over `i32::MAX` ms (24.8 days) |
    /// | [`Store`](Reason::Store), [`NoPermit`](Reason::NoPermit) | 14, `UNAVAILABLE` | [what is set](crate::ThrottleBuilder::unavailable_retry_after), or none: it is not known how long |
    /// | [`MissingKey`](Reason::MissingKey) with status 401 or 407 | 16, `UNAUTHENTICATED` | -1 |
    /// | the same with 403 | 7, `PERMISSION_DENIED` | -1 |
    /// | the same with 429 | 8, `RESOURCE_EXHAUSTED` | none |
    /// | the same with 500 or more | 14, `UNAVAILABLE` | none |
    /// | the same with another status | 3, `INVALID_ARGUMENT` | -1 |
    ///
    /// `grpc-message` names the policies that refused, at most eight. Where a quota is used up,
    /// `grpc-status-details-bin` holds a `google.rpc.Status` with
    ///
    /// - a `RetryInfo` with the exact wait, unless no wait helps: some clients retry only if it is
    ///   there;
    /// - a `QuotaFailure` with a violation for each of these policies: its name is the `subject`,
    ///   its quota the `description`;
    /// - an `ErrorInfo` with the reason `QUOTA_EXCEEDED` and the domain `throttle`. Its metadata
    ///   `policy` and `limit` are the name of the binding policy and the quota that the layer
    ///   announces, in units.
    ///
    /// Where the layer [hides its headers](crate::ThrottleBuilder::hide_headers_if) or has none
    /// ([`Dialect::None`](crate::Dialect::None)), the details say no quota: they have neither
    /// `description` nor `limit`.
    ///
    /// The layer adds its headers, which clients read as metadata. A page of another origin reads
    /// these headers, which gRPC-Web needs, only if `Access-Control-Expose-Headers` lists them.
    ///
    /// What clients do with a used up quota, as measured in November 2026; tests repeat it:
    ///
    /// | client | where a wait helps | where none does |
    /// |---|---|---|
    /// | `grpcio` 1.85 for Python, `@grpc/grpc-js` 1.14, with a retry policy for `RESOURCE_EXHAUSTED` | waits as the pushback says | returns the error |
    /// | the same without one; `tonic` 0.14, `grpc-web` 2.1, `@connectrpc/connect-web` 2.2 | returns the error, with the details | the same |
    /// | `opentelemetry-otlp` 0.33 for Rust | waits as the `RetryInfo` says, within its timeout of 10 seconds | returns the error |
    /// | `opentelemetry-exporter-otlp-proto-grpc` 1.45 for Python | retries after about 1, 2 and 4 seconds, within its timeout | the same |
    ///
    /// So the last does not obey a refusal: it looks for a `RetryInfo` elsewhere. Its
    /// `retryable_error_codes` can leave `RESOURCE_EXHAUSTED` out.
    ///
    /// ```
    /// use http::{Request, Response, StatusCode};
    /// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let throttle =
    ///     ThrottleLayer::new(limit("all", Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant))?;
    /// let service = throttle.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(()))
    /// }));
    /// let request = || {
    ///     Request::post("/shop.Orders/Place")
    ///         .header("content-type", "application/grpc")
    ///         .body(())
    /// };
    /// service.clone().oneshot(request()?).await?;
    /// let refused = service.oneshot(request()?).await?;
    /// assert_eq!(
    ///     (refused.status(), &refused.headers()["grpc-status"]),
    ///     (StatusCode::OK, &"8".parse()?)
    /// );
    /// assert_eq!(refused.headers()["grpc-message"], "quota exceeded: all");
    /// let pushback: u64 = refused.headers()["grpc-retry-pushback-ms"]
    ///     .to_str()?
    ///     .parse()?;
    /// assert!((3_500_000..=3_600_000).contains(&pushback));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn grpc_response(&self) -> Option<Response<Bytes>> {
        let content_type = grpc::response_type(&self.parts.method, &self.parts.headers)?;
        Some(self.in_grpc_words(content_type))
    }

    #[cold]
    fn in_grpc_words(&self, content_type: HeaderValue) -> Response<Bytes> {
        let wait = self.retry_after();
        match self.reason {
            Reason::Quota(report) => {
                let options = &report.announced().options;
                let has_numbers = options.dialect != Dialect::None;
                let open = self.quota_exceeded(report, content_type.clone(), has_numbers);
                if options.hides(&open) {
                    self.quota_exceeded(report, content_type, false)
                } else {
                    open
                }
            }
            Reason::Store(_, policies) => {
                grpc::reduced_capacity(policies.iter().map(Policy::name), wait, content_type)
            }
            Reason::NoPermit(names) => {
                grpc::reduced_capacity(names.iter().map(PolicyName::as_str), wait, content_type)
            }
            Reason::MissingKey(_) => grpc::missing_key(self.status, content_type),
        }
    }

    /// With the numbers of the quotas, or with their names alone.
    fn quota_exceeded(
        &self,
        report: &LimitReport,
        content_type: HeaderValue,
        with_numbers: bool,
    ) -> Response<Bytes> {
        let quota = |index: usize| {
            let tier = report.decision().statuses().get(index)?.tier();
            Some(&report.announced().terms(index, tier).quota)
        };
        let violations = report.violated_policies().filter_map(|(index, policy)| {
            let (quota, unit) = (quota(index)?, policy.unit().unwrap_or("requests"));
            let description = format!("no more than {} {unit} in {} s", quota.q, quota.w);
            Some(Violation {
                policy: policy.name(),
                description: with_numbers.then_some(description),
            })
        });
        let binding = report.decision().binding().and_then(|index| {
            let most = with_numbers.then_some(quota(index)?.q);
            Some((report.binding()?.name(), most))
        });
        grpc::quota_exceeded(
            report.violated(),
            violations,
            binding,
            self.retry_after(),
            content_type,
        )
    }

    /// The response that clients of OpenAI's API understand, with the status of the default
    /// response and a JSON body:
    ///
    /// | reason | `type` | `code` |
    /// |---|---|---|
    /// | [`Quota`](Reason::Quota) | the [unit](crate::Limit::unit) of the binding policy; `requests` if it has none | `rate_limit_exceeded` |
    /// | [`Store`](Reason::Store), [`NoPermit`](Reason::NoPermit) | `server_error` | `null` |
    /// | [`MissingKey`](Reason::MissingKey) | `invalid_request_error` | `null` |
    ///
    /// `param` is always `null`. The `message` of a used up quota names the policies that refused,
    /// and ends with `Please try again in 20s.`, which some clients read. Those seconds are those
    /// of the layer's `Retry-After`. Where no wait helps it does not say so.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::{Constant, LeakyMeter, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use http_body_util::BodyExt;
    ///
    /// let limits = limit("per-key", LeakyMeter::new(Rate::per_hour(1)))
    ///     .by(Constant)
    ///     .unit("tokens");
    /// let throttle = ThrottleLayer::builder(limits)
    ///     .response(|refusal| refusal.openai_response())
    ///     .build()?;
    /// let service = throttle.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(
    ///         http_body_util::Full::<bytes::Bytes>::default(),
    ///     ))
    /// }));
    /// service.clone().oneshot(Request::new(())).await?;
    /// let body = service
    ///     .oneshot(Request::new(()))
    ///     .await?
    ///     .into_body()
    ///     .collect()
    ///     .await?
    ///     .to_bytes();
    /// let error: serde_json::Value = serde_json::from_slice(&body)?;
    /// assert_eq!(
    ///     error["error"]["message"],
    ///     "Rate limit reached for per-key. Please try again in 3600s."
    /// );
    /// assert_eq!(
    ///     (&error["error"]["type"], &error["error"]["code"]),
    ///     (&"tokens".into(), &"rate_limit_exceeded".into())
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn openai_response(&self) -> Response<Bytes> {
        let body = match self.reason {
            Reason::Quota(report) => {
                let unit = report
                    .binding()
                    .and_then(Policy::unit)
                    .unwrap_or("requests");
                OpenAiError::RateLimit {
                    unit,
                    wait: self.retry_after(),
                }
                .body(report.violated())
            }
            Reason::Store(..) | Reason::NoPermit(_) => OpenAiError::Server.body([]),
            Reason::MissingKey(_) => OpenAiError::InvalidRequest.body([]),
        };
        uncached(self.status, OpenAiError::CONTENT_TYPE, body)
    }
}

/// A problem of no registered type: its title is the status's own.
fn generic(status: StatusCode) -> Bytes {
    let title = status.canonical_reason().unwrap_or("Refused");
    let status = status.as_u16();
    Bytes::from(format!(
        r#"{{"type":"about:blank","title":"{title}","status":{status}}}"#
    ))
}

/// Marks the response of a throttle's refusal that carries no [`LimitReport`], for the throttles
/// around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefusedByThrottle;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use throttle_core::{Gcra, ManualClock, MemoryBackend, Rate};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{Constant, ThrottleLayer, all, limit};

    /// The text of the response and its status.
    fn response(reason: Reason<'_>, status: StatusCode) -> (StatusCode, String) {
        let (parts, ()) = http::Request::new(()).into_parts();
        let refusal = Refusal {
            reason,
            status,
            parts: &parts,
            grpc_refusals: true,
            extra: 0,
            unavailable: None,
        };
        assert_eq!(refusal.retry_after(), None, "it is not known how long");
        let response = refusal.default_response();
        assert_eq!(response.headers()["cache-control"], "no-store");
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        (
            response.status(),
            String::from_utf8(response.body().to_vec()).unwrap(),
        )
    }

    #[test]
    fn refusal_without_a_decision_names_the_limits_and_no_wait() {
        let names = ["a", "b"].map(|name| PolicyName::new(name).unwrap());
        let policies =
            ["c", "d"].map(|name| Policy::new(name, Gcra::new(Rate::per_second(1))).unwrap());
        let (status, body) = response(Reason::NoPermit(&names), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            body.contains("#temporary-reduced-capacity") && body.ends_with(r#":["a","b"]}"#),
            "{body}"
        );
        let store = Reason::Store(BackendErrorKind::Timeout, &policies);
        let (status, body) = response(store, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            body.contains("#temporary-reduced-capacity") && body.ends_with(r#":["c","d"]}"#),
            "{body}"
        );
        let missing = response(Reason::MissingKey(&names[0]), StatusCode::FORBIDDEN);
        let body = r#"{"type":"about:blank","title":"Forbidden","status":403}"#;
        assert_eq!(missing, (StatusCode::FORBIDDEN, body.to_owned()));
    }

    /// Many clients read no more than 8 KiB of headers.
    #[test]
    fn refusal_in_the_words_of_grpc_names_eight_limits_at_most() {
        let request = http::Request::post("/").header("content-type", "application/grpc");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let names: Vec<PolicyName> = (1..=9)
            .map(|n| PolicyName::new(&format!("p{n}")).unwrap())
            .collect();
        for (count, named) in [
            (2, "p1, p2"),
            (8, "p1, p2, p3, p4, p5, p6, p7, p8"),
            (9, "p1, p2, p3, p4, p5, p6, p7, p8"),
        ] {
            let (reason, status) = (
                Reason::NoPermit(&names[..count]),
                StatusCode::SERVICE_UNAVAILABLE,
            );
            let response = Refusal {
                reason,
                status,
                parts: &parts,
                grpc_refusals: true,
                extra: 0,
                unavailable: None,
            }
            .grpc_response();
            let headers = response.unwrap().headers().clone();
            assert_eq!(headers["grpc-status"], "14");
            assert_eq!(
                headers["grpc-message"],
                format!("temporarily reduced capacity: {named}")
            );
        }
    }

    /// The details are the longest header. The names are of one length and the clock stands still,
    /// so the length shows how many limits there are.
    #[tokio::test]
    async fn details_of_a_used_up_quota_describe_eight_limits_at_most() {
        let details = async |limits: u64, dialect| {
            let once = |n| limit(format!("limit-{n:02}"), Gcra::new(Rate::per_day(1))).by(Constant);
            let memory = MemoryBackend::builder()
                .clock(ManualClock::default())
                .build();
            let limits = all((1..=limits).map(once).collect::<Vec<_>>());
            let layer = ThrottleLayer::builder(limits)
                .backend(memory)
                .headers(dialect)
                .build()
                .unwrap();
            let inner =
                service_fn(async |_: http::Request<()>| Ok::<_, Infallible>(Response::new(())));
            let send = || {
                let request = http::Request::post("/").header("content-type", "application/grpc");
                layer.layer(inner).oneshot(request.body(()).unwrap())
            };
            assert!(!send().await.unwrap().headers().contains_key("grpc-status"));
            send().await.unwrap().headers()["grpc-status-details-bin"].len()
        };
        let mut lengths = Vec::new();
        for limits in [1, 7, 8, 9, 12] {
            lengths.push(details(limits, Dialect::default()).await);
        }
        assert!(
            lengths[0] < lengths[1] && lengths[1] < lengths[2],
            "{lengths:?}"
        );
        assert_eq!(lengths[2..], [lengths[2]; 3]);
        assert!(
            details(1, Dialect::None).await < lengths[0],
            "where headers have no numbers, details have none"
        );
    }

    #[test]
    fn grpc_message_names_the_limits_or_the_missing_key() {
        let request = http::Request::post("/").header("content-type", "application/grpc");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let policies =
            ["c", "d"].map(|name| Policy::new(name, Gcra::new(Rate::per_second(1))).unwrap());
        let name = PolicyName::new("a").unwrap();
        let words = |reason, status| {
            let response = Refusal {
                reason,
                status,
                parts: &parts,
                grpc_refusals: true,
                extra: 0,
                unavailable: None,
            }
            .grpc_response();
            response.unwrap().headers()["grpc-message"].clone()
        };
        let store = Reason::Store(BackendErrorKind::Timeout, &policies);
        assert_eq!(
            words(store, StatusCode::SERVICE_UNAVAILABLE),
            "temporarily reduced capacity: c, d"
        );
        assert_eq!(
            words(Reason::MissingKey(&name), StatusCode::FORBIDDEN),
            "the rate limit needs a key"
        );
    }

    #[test]
    fn debug_output_leaves_the_request_out() {
        let (parts, ()) = http::Request::get("/secret").body(()).unwrap().into_parts();
        let refusal = Refusal {
            reason: Reason::NoPermit(&[]),
            status: StatusCode::IM_A_TEAPOT,
            parts: &parts,
            grpc_refusals: true,
            extra: 0,
            unavailable: None,
        };
        assert_eq!(
            format!("{refusal:?}"),
            "Refusal { reason: NoPermit([]), status: 418, .. }"
        );
    }

    #[test]
    fn response_for_clients_of_openai_is_json_that_no_cache_stores() {
        let (parts, ()) = http::Request::new(()).into_parts();
        let name = [PolicyName::new("a").unwrap()];
        for (reason, status, kind) in [
            (
                Reason::NoPermit(&name),
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
            ),
            (
                Reason::Store(BackendErrorKind::Timeout, &[]),
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
            ),
            (
                Reason::MissingKey(&name[0]),
                StatusCode::UNAUTHORIZED,
                "invalid_request_error",
            ),
        ] {
            let refusal = Refusal {
                reason,
                status,
                parts: &parts,
                grpc_refusals: true,
                extra: 0,
                unavailable: None,
            };
            let response = refusal.openai_response();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()["content-type"], "application/json");
            assert_eq!(response.headers()["cache-control"], "no-store");
            let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(body["error"]["type"], kind);
        }
    }
}
