//! The responses of refusals.

use std::time::Duration;

use http::StatusCode;
use http::header::CACHE_CONTROL;
use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, ConfigError, Decision, Policy, PolicyName};

use super::notify::notify;
use super::write_headers::write_refused;
use crate::event::Outcome;
use crate::headers::retry_after::{self, RetryAfter};
use crate::limit::{LimitSettings, OnError};
use crate::throttle::limit_report::LimitReport;
use crate::throttle::permits::Indices;
use crate::throttle::refusal::{Reason, Refusal, RefusedByThrottle};
use crate::throttle::response_builder::RefusalResponse;
use crate::throttle::response_options::ReportIn;
use crate::throttle::shared_layer::{ErasedLayer, SharedLayer};
use crate::time::micros;
use crate::uncached::NO_STORE;

/// The refusal of a decision.
pub(super) fn over_limit<B: Backend>(
    shared: &SharedLayer<B>,
    report: LimitReport,
    calls: &[Call],
    parts: &Parts,
) -> RefusalResponse {
    notify(shared, Outcome::Refused, Some(&report), calls, parts);
    let extra = extra_wait(shared, report.decision(), calls);
    let is_read = report.announced().options.report_in == ReportIn::Both || is_inside(parts);
    build(
        shared,
        Reason::Quota(&report),
        StatusCode::TOO_MANY_REQUESTS,
        parts,
        extra,
    )
    .changed(move |response| {
        write_refused(&report, response, extra);
        if is_read {
            response.extensions_mut().insert(report);
        }
    })
}

/// Whether the response passes through another throttle, which has to know a refusal.
fn is_inside(parts: &Parts) -> bool {
    parts.extensions.get::<LimitReport>().is_some()
}

/// µs to add to the wait, so that clients do not all come back at once.
fn extra_wait<B: Backend>(shared: &SharedLayer<B>, decision: &Decision, calls: &[Call]) -> u64 {
    let (Some(jitter), Some(wait)) = (&shared.options.jitter, decision.retry_after()) else {
        return 0;
    };
    let key = decision
        .binding()
        .and_then(|policy| calls.get(policy)?.key());
    key.map_or(0, |key| jitter.extra(micros(wait), key))
}

/// The refusal of a request without a required key.
pub(super) fn missing_key<B: Backend>(
    shared: &SharedLayer<B>,
    policy: &PolicyName,
    status: StatusCode,
    parts: &Parts,
) -> Box<RefusalResponse> {
    notify(shared, Outcome::MissingKey, None, &[], parts);
    Box::new(undecided(
        shared,
        Reason::MissingKey(policy),
        status,
        parts,
        None,
    ))
}

/// The refusal of a request for which too few permits are free.
#[cold]
pub(super) fn saturated<B: Backend>(
    shared: &SharedLayer<B>,
    full: &Indices,
    parts: &Parts,
) -> RefusalResponse {
    let names = shared.permits.names_of(full);
    notify(shared, Outcome::NoPermit(&names), None, &[], parts);
    unavailable(shared, Reason::NoPermit(&names), parts)
}

/// The refusal of a request with closed limits that the store did not decide about.
pub(super) fn failed<B: Backend>(
    shared: &SharedLayer<B>,
    error: &BackendError,
    closed: &[Policy],
    parts: &Parts,
) -> RefusalResponse {
    if let Some(why) = not_enforced(error) {
        shared.options.not_enforced.warn(&format_args!(
            "a lookup returned parameters that the store does not enforce: {why}. Their requests \
                are refused"
        ));
    }
    notify(shared, Outcome::FailedClosed(error), None, &[], parts);
    unavailable(shared, Reason::Store(error.kind(), closed), parts)
}

/// The policies that apply to a request and refuse it when the store fails. An audited one never
/// does. One that should have a share and has none is among them: a local one, and while the store
/// is busy an open one too.
///
/// So is one whose parameters of the request's own the store does not enforce: it is healthy and
/// stays so, and to pass the request on would lift all of the limits for as long as the parameters
/// are what they are.
pub(in crate::throttle) fn closed<B: Backend>(
    shared: &SharedLayer<B>,
    calls: &[Call],
    error: &BackendError,
) -> Vec<Policy> {
    let why = error.kind();
    let is_not_enforced = not_enforced(error).is_some();
    let closes = |limit: &LimitSettings| match shared.options.on_error_of(limit) {
        Some(OnError::Open) => why.is_busy() && shared.share().is_none(),
        Some(OnError::Local { .. }) => shared.share().is_none(),
        Some(OnError::Closed) | None => true,
    };
    let limits = shared
        .announced
        .policies
        .iter()
        .zip(shared.applied.iter())
        .zip(calls);
    let closed = limits.filter(|((_, limit), call)| {
        let refuses = closes(limit) || is_not_enforced && call.own().is_some();
        call.key().is_some() && refuses && limit.audit.is_none()
    });
    closed.map(|((policy, _), _)| policy.clone()).collect()
}

/// What is wrong with parameters of the request's own, if the store does not enforce them.
pub(super) fn not_enforced(error: &BackendError) -> Option<&ConfigError> {
    std::error::Error::source(error)?.downcast_ref()
}

/// A refusal because of the service's own state. It is not known how long that lasts.
pub(in crate::throttle) fn unavailable<B: Backend>(
    shared: &SharedLayer<B>,
    reason: Reason<'_>,
    parts: &Parts,
) -> RefusalResponse {
    undecided(
        shared,
        reason,
        StatusCode::SERVICE_UNAVAILABLE,
        parts,
        shared.options.settings.unavailable_retry_after,
    )
}

/// A refusal without a decision. It carries a mark where others carry their report.
fn undecided<B: Backend>(
    shared: &SharedLayer<B>,
    reason: Reason<'_>,
    status: StatusCode,
    parts: &Parts,
    wait: Option<Duration>,
) -> RefusalResponse {
    let is_read = is_inside(parts);
    build(shared, reason, status, parts, 0).changed(move |response| {
        if let Some(wait) = wait {
            retry_after::write(
                response.headers_mut(),
                RetryAfter::from_micros(micros(wait)),
                0,
            );
        }
        if is_read {
            response.extensions_mut().insert(RefusedByThrottle);
        }
    })
}

/// The response by the program's closure, or the default one, which forbids caching by itself. The
/// jitter `extra` is in µs.
#[inline]
fn build<B: Backend>(
    shared: &SharedLayer<B>,
    reason: Reason<'_>,
    status: StatusCode,
    parts: &Parts,
    extra: u64,
) -> RefusalResponse {
    let unavailable = shared.options.settings.unavailable_retry_after;
    let refusal = Refusal {
        reason,
        status,
        parts,
        grpc_refusals: shared.options.settings.grpc_refusals.unwrap_or(true),
        extra,
        unavailable,
    };
    match &shared.options.settings.response {
        Some(builder) => builder.build(&refusal).changed(|response| {
            response
                .headers_mut()
                .entry(CACHE_CONTROL)
                .or_insert(NO_STORE);
        }),
        None => RefusalResponse::Now(refusal.default_response()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{HeaderMap, Request, Response};
    use throttle_core::{Gcra, Rate};
    use tower::{Layer, Service, service_fn};

    use super::*;
    use crate::failing_backend::FailingBackend;
    use crate::{Constant, InFlight, OnMissing, Refusal, ThrottleLayer, limit};

    /// The head of a response to a request of gRPC or not, while another one is under way.
    async fn refused<C: Backend>(layer: &ThrottleLayer<C>, grpc: bool) -> (StatusCode, HeaderMap) {
        let mut service = layer.layer(service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(()))
        }));
        let request = || {
            let content_type = if grpc {
                "application/grpc"
            } else {
                "text/plain"
            };
            Request::post("/")
                .header("content-type", content_type)
                .body(())
                .unwrap()
        };
        let _held = service.call(request());
        let (head, _) = service.call(request()).await.unwrap().into_parts();
        (head.status, head.headers)
    }

    fn told(headers: &HeaderMap) -> [Option<&str>; 2] {
        ["retry-after", "grpc-retry-pushback-ms"]
            .map(|name| Some(headers.get(name)?.to_str().unwrap()))
    }

    #[tokio::test]
    async fn refusal_with_503_says_when_to_retry_only_if_that_is_set() {
        let full = || ThrottleLayer::builder(limit("in-flight", InFlight::new(1)).by(Constant));
        let closed = || {
            let limits = limit("p", Gcra::new(Rate::per_second(1)))
                .by(Constant)
                .on_error(OnError::Closed);
            ThrottleLayer::builder(limits).backend(FailingBackend)
        };
        let wait = Duration::from_millis(1_500);
        for (wait, plain, grpc) in [
            (None, [None, None], [None, None]),
            (Some(wait), [Some("2"), None], [Some("2"), Some("1500")]),
            (
                Some(Duration::ZERO),
                [Some("1"), None],
                [Some("1"), Some("0")],
            ),
        ] {
            let full = wait
                .map_or_else(full, |wait| full().unavailable_retry_after(wait))
                .build()
                .unwrap();
            let closed = wait
                .map_or_else(closed, |wait| closed().unavailable_retry_after(wait))
                .build()
                .unwrap();
            for (status, headers) in [refused(&full, false).await, refused(&closed, false).await] {
                assert_eq!(
                    (status, told(&headers)),
                    (StatusCode::SERVICE_UNAVAILABLE, plain),
                    "{wait:?}"
                );
            }
            for (status, headers) in [refused(&full, true).await, refused(&closed, true).await] {
                assert_eq!(
                    (status, &headers["grpc-status"]),
                    (StatusCode::OK, &"14".parse().unwrap())
                );
                assert_eq!(told(&headers), grpc, "{wait:?}");
            }
        }
    }

    /// Other refusals do not have it, and a later wait of the program's own response stays.
    #[tokio::test]
    async fn wait_of_a_503_is_of_no_other_refusal_and_replaces_no_later_one() {
        let two = Duration::from_secs(2);
        let keyed =
            limit("p", Gcra::new(Rate::per_hour(1)).burst(1)).by(crate::Header::new("x-key"));
        let layer =
            ThrottleLayer::builder(keyed.on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED)))
                .unavailable_retry_after(two)
                .build()
                .unwrap();
        let (status, headers) = refused(&layer, false).await;
        assert_eq!(
            (status, told(&headers)),
            (StatusCode::UNAUTHORIZED, [None, None])
        );
        let quota =
            ThrottleLayer::builder(limit("p", Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant))
                .unavailable_retry_after(two)
                .build()
                .unwrap();
        let (status, headers) = refused(&quota, false).await;
        assert_eq!(
            (status, told(&headers)),
            (StatusCode::TOO_MANY_REQUESTS, [Some("3600"), None])
        );
        let [past, future] = [
            "Fri, 02 Jan 2015 00:00:00 GMT",
            "Fri, 31 Dec 9999 23:59:59 GMT",
        ];
        for (own, expected) in [
            ("1", "2"),
            ("7", "7"),
            ("soon", "2"),
            (past, "2"),
            (future, future),
        ] {
            let response = move |refusal: &Refusal<'_>| {
                assert_eq!(refusal.retry_after(), Some(two));
                let mut response = refusal.default_response();
                response
                    .headers_mut()
                    .insert("retry-after", own.parse().unwrap());
                response
            };
            let full = ThrottleLayer::builder(limit("in-flight", InFlight::new(1)).by(Constant))
                .unavailable_retry_after(two)
                .response(response)
                .build()
                .unwrap();
            assert_eq!(
                told(&refused(&full, false).await.1),
                [Some(expected), None],
                "{own}"
            );
        }
    }
}
