//! The responses of refusals.

use http::StatusCode;
use http::header::CACHE_CONTROL;
use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, BackendErrorKind, Decision, Policy, PolicyName};

use super::notify::notify;
use super::write_headers::write_refused;
use crate::limit::{Applied, OnError};
use crate::throttle::event::Outcome;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::permits::Places;
use crate::throttle::refusal::{NO_STORE, Reason, Refusal, RefusedByThrottle};
use crate::throttle::response_builder::Refused;
use crate::throttle::shared::Shared;
use crate::time::micros;

/// The refusal of a decision.
pub(super) fn over_limit<B: Backend>(
    shared: &Shared<B>,
    report: LimitReport,
    calls: &[Call],
    parts: &Parts,
) -> Refused {
    notify(shared, Outcome::Refused, Some(report.decision()), calls, parts);
    let extra = extra_wait(shared, report.decision(), calls);
    build(shared, Reason::Quota(&report), StatusCode::TOO_MANY_REQUESTS, parts, extra).changed(move |response| {
        write_refused(&report, response, extra);
        response.extensions_mut().insert(report);
    })
}

/// µs to add to the wait, so that clients do not all come back at once.
fn extra_wait<B: Backend>(shared: &Shared<B>, decision: &Decision, calls: &[Call]) -> u64 {
    let (Some(jitter), Some(wait)) = (&shared.options.jitter, decision.retry_after()) else { return 0 };
    let key = decision.binding().and_then(|policy| calls.get(policy)?.key());
    key.map_or(0, |key| jitter.extra(micros(wait), key))
}

/// The refusal of a request without a required key.
pub(super) fn missing_key<B: Backend>(
    shared: &Shared<B>,
    policy: &PolicyName,
    status: StatusCode,
    parts: &Parts,
) -> Box<Refused> {
    notify(shared, Outcome::MissingKey, None, &[], parts);
    Box::new(undecided(shared, Reason::MissingKey(policy), status, parts))
}

/// The refusal of a request for which too few permits are free.
#[cold]
pub(super) fn saturated<B: Backend>(shared: &Shared<B>, full: &Places, parts: &Parts) -> Refused {
    let names = shared.permits.names_of(full);
    notify(shared, Outcome::NoPermit(&names), None, &[], parts);
    undecided(shared, Reason::NoPermit(&names), StatusCode::SERVICE_UNAVAILABLE, parts)
}

/// The refusal of a request with closed limits that the store did not decide about.
pub(super) fn failed<B: Backend>(
    shared: &Shared<B>,
    error: &BackendError,
    closed: &[Policy],
    parts: &Parts,
) -> Refused {
    notify(shared, Outcome::FailedClosed(error), None, &[], parts);
    undecided(shared, Reason::Store(error.kind(), closed), StatusCode::SERVICE_UNAVAILABLE, parts)
}

/// The policies that apply to a request and refuse it when the store fails. One that should have a share and has none
/// is among them: a local one, and while the store is busy an open one too.
pub(super) fn closed<B: Backend>(shared: &Shared<B>, calls: &[Call], why: BackendErrorKind) -> Vec<Policy> {
    let closes = |limit: &Applied| match shared.options.on_error_of(limit) {
        Some(OnError::Open) => why.is_busy() && shared.share.is_none(),
        Some(local @ OnError::Local { .. }) => shared.share.is_none() || local.processes().is_none(),
        Some(OnError::Closed) | None => true,
    };
    let limits = shared.announced.policies.iter().zip(shared.applied.iter()).zip(calls);
    let closed = limits.filter(|((_, limit), call)| call.key().is_some() && closes(limit));
    closed.map(|((policy, _), _)| policy.clone()).collect()
}

/// A refusal without a decision. It carries a mark where others carry their report.
fn undecided<B: Backend>(shared: &Shared<B>, reason: Reason<'_>, status: StatusCode, parts: &Parts) -> Refused {
    build(shared, reason, status, parts, 0).changed(|response| {
        response.extensions_mut().insert(RefusedByThrottle);
    })
}

#[inline]
fn build<B: Backend>(shared: &Shared<B>, reason: Reason<'_>, status: StatusCode, parts: &Parts, extra: u64) -> Refused {
    let refusal = Refusal { reason, status, parts, grpc_refusals: shared.options.grpc_refusals, extra };
    match &shared.options.response {
        Some(builder) => builder.build(&refusal).changed(|response| {
            response.headers_mut().entry(CACHE_CONTROL).or_insert(NO_STORE);
        }),
        None => Refused::Now(refusal.default_response()),
    }
}
