use std::sync::Arc;

use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, DecidedBy, Decision, Status};

use super::ask::RequestCalls;
use super::decide::{self, DecisionOutcome};
use super::notify::notify;
use super::{correct_charges, give_back_unserved, refuse};
use crate::event::Outcome;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::permit::Permit;
use crate::throttle::report_in::ReportIn;
use crate::throttle::request_guard::RequestGuard;
use crate::throttle::response_builder::RefusalResponse;
use crate::throttle::shared_layer::SharedLayer;
use crate::usage::{Open, Usage};

/// What becomes of a request.
pub(in crate::throttle) enum Verdict {
    Pass(AdmittedRequest),
    Refuse(RefusalResponse),
}

/// What an admitted request carries to its response.
pub(in crate::throttle) struct AdmittedRequest {
    /// `None` if the layer does not apply to the request.
    pub(super) report: Option<LimitReport>,
    /// Whether the layer warns if the request succeeds: a limit depends on the route, and there is
    /// none.
    pub(super) route_is_missing: bool,
    pub(super) guard: RequestGuard,
}

impl AdmittedRequest {
    /// A request to which the layer does not apply.
    pub(super) fn untouched() -> Self {
        Self {
            report: None,
            route_is_missing: false,
            guard: RequestGuard::default(),
        }
    }
}

pub(super) fn judge<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    decided: DecisionOutcome,
    request: &RequestCalls,
    parts: &mut Parts,
) -> Verdict {
    match decided {
        DecisionOutcome::Made(decision) => judge_decided(
            shared,
            decide::report(shared, decision, &request.calls),
            Outcome::Admitted,
            request,
            parts,
        ),
        DecisionOutcome::Failed(error) => judge_failure(shared, &error, request, parts),
        DecisionOutcome::Saturated(full) => {
            Verdict::Refuse(refuse::saturated(shared, &full, parts))
        }
    }
}

#[inline(always)]
pub(super) fn judge_decided<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    report: LimitReport,
    if_admitted: Outcome<'_>,
    request: &RequestCalls,
    parts: &mut Parts,
) -> Verdict {
    let decision = report.decision();
    if !decision.is_admitted() {
        correct_charges::count_refused(shared, decision, &request.calls);
        return Verdict::Refuse(refuse::over_limit(shared, report, &request.calls, parts));
    }
    let permit = match shared
        .permits
        .enter(&request.needs, &shared.options.observers)
    {
        Ok(guard) => guard.map(Permit::new),
        Err(full) => {
            // They ran out while the backend decided.
            give_back_unserved::refund_all(shared, decision, &request.calls);
            return Verdict::Refuse(refuse::saturated(shared, &full, parts));
        }
    };
    notify(shared, if_admitted, Some(&report), &request.calls, parts);
    let watch = &report.announced().options.watch;
    let route_is_missing =
        shared.uses.routes && watch.suspects(shared.uses, &shared.applied, &request.calls, parts);
    let guard = if permit.is_none() && !shared.uses.accounts {
        RequestGuard::default()
    } else {
        hand_out(shared, decision, &request.calls, parts, permit)
    };
    if report.announced().options.report_in != ReportIn::Nowhere {
        parts.extensions.insert(report.clone());
    }
    Verdict::Pass(AdmittedRequest {
        report: Some(report),
        route_is_missing,
        guard,
    })
}

/// Judges a request that the store did not decide about: closed limits refuse it, this process
/// decides by the limits that it has a share of, and where there is none of either, the request is
/// passed on.
#[cold]
fn judge_failure<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    error: &BackendError,
    request: &RequestCalls,
    parts: &mut Parts,
) -> Verdict {
    let closed = refuse::closed(shared, &request.calls, error);
    if !closed.is_empty() {
        return Verdict::Refuse(refuse::failed(shared, error, &closed, parts));
    }
    let share = shared
        .share
        .as_ref()
        .and_then(|share| share.decide(&request.calls, error.kind()));
    let is_local = |status: &Status| {
        status.is_enforced() && matches!(status.decided_by(), DecidedBy::Local(_))
    };
    let (decision, if_admitted) = match share {
        Some(decision) if decision.statuses().iter().any(is_local) => (decision, Outcome::Admitted),
        // The share has audited limits only.
        Some(decision) => (decision, Outcome::FailedOpen(error)),
        None => (
            Decision::open(&request.calls, error.kind()),
            Outcome::FailedOpen(error),
        ),
    };
    judge_decided(
        shared,
        decide::report(shared, decision, &request.calls),
        if_admitted,
        request,
        parts,
    )
}

/// Gives the handler its permit and its usage, and returns what the request holds.
#[inline(never)]
fn hand_out<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    decision: &Decision,
    calls: &[Call],
    parts: &mut Parts,
    permit: Option<Permit>,
) -> RequestGuard {
    if let Some(permit) = &permit {
        let all = permit.clone().inside(parts.extensions.get());
        parts.extensions.insert(all);
    }
    let account = shared
        .uses
        .accounts
        .then(|| correct_charges::open_account(shared, decision, calls));
    if let (Some(account), true) = (&account, shared.uses.handlers) {
        parts.extensions.insert(Usage::new(Arc::clone(account)));
    }
    RequestGuard::new(account.map(Open::new), permit)
}
