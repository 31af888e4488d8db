use std::sync::Arc;

use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, DecidedBy, Decision, Status};

use super::ask::RequestCalls;
use super::decide::{self, DecisionOutcome};
use super::notify::notify;
use super::{correct_charges, refuse};
use crate::event::Outcome;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::permit::Permit;
use crate::throttle::request_guard::RequestGuard;
use crate::throttle::response_builder::RefusalResponse;
use crate::throttle::response_options::ReportIn;
use crate::throttle::shared_layer::{ErasedLayer, SharedLayer};

/// What becomes of a request.
pub(in crate::throttle) enum Verdict {
    Pass(AdmittedRequest),
    Refuse(RefusalResponse),
}

/// What an admitted request carries to its response. Each step fills it in where it is: it is large
/// to be moved.
#[derive(Default)]
pub(in crate::throttle) struct AdmittedRequest {
    /// `None` if the layer does not apply to the request, and until it is decided.
    pub(super) report: Option<LimitReport>,
    /// Whether the layer warns if the request succeeds: a limit depends on the route, and there is
    /// none.
    pub(super) route_is_missing: bool,
    pub(super) guard: RequestGuard,
}

pub(super) fn judge<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    decided: DecisionOutcome,
    request: &RequestCalls,
    parts: &mut Parts,
) -> Verdict {
    match decided {
        DecisionOutcome::Made(decision) => {
            judge_made(shared, decision, Outcome::Admitted, request, parts)
        }
        DecisionOutcome::Failed(error) => judge_failure(shared, &error, request, parts),
        DecisionOutcome::Saturated(full) => {
            Verdict::Refuse(refuse::saturated(shared, &full, parts))
        }
    }
}

fn judge_made<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    decision: Decision,
    if_admitted: Outcome<'_>,
    request: &RequestCalls,
    parts: &mut Parts,
) -> Verdict {
    let mut admitted = AdmittedRequest {
        report: Some(decide::report(shared, decision, &request.calls)),
        ..AdmittedRequest::default()
    };
    match judge_report(shared, &mut admitted, if_admitted, request, parts) {
        Some(refusal) => Verdict::Refuse(refusal),
        None => Verdict::Pass(admitted),
    }
}

/// Takes the permits of a request that the limits admit. Returns the refusal, if they do not or the
/// permits ran out.
#[inline(always)]
pub(super) fn judge_report<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    admitted: &mut AdmittedRequest,
    if_admitted: Outcome<'_>,
    request: &RequestCalls,
    parts: &mut Parts,
) -> Option<RefusalResponse> {
    let report = admitted
        .report
        .take_if(|report| !report.decision().is_admitted());
    if let Some(report) = report {
        correct_charges::count_refused(shared, report.decision(), &request.calls);
        return Some(refuse::over_limit(shared, report, &request.calls, parts));
    }
    let report = admitted.report.as_ref()?;
    let decision = report.decision();
    let permit = match shared
        .permits
        .enter(&request.needs, &shared.options.observers)
    {
        Ok(guard) => guard.map(Permit::new),
        Err(full) => {
            // They ran out while the backend decided.
            if let Some(steps) = shared.permits.steps() {
                (steps.refund_all)(&**shared, decision, &request.calls);
            }
            return Some(refuse::saturated(shared, &full, parts));
        }
    };
    notify(shared, if_admitted, Some(report), &request.calls, parts);
    let watch = &report.announced().options.watch;
    admitted.route_is_missing =
        shared.uses.routes && watch.suspects(shared.uses, &shared.applied, &request.calls, parts);
    if permit.is_some() || shared.uses.accounts.is_some() {
        admitted.guard = hand_out(shared, decision, &request.calls, parts, permit);
    }
    if report.announced().options.report_in != ReportIn::Nowhere {
        parts.extensions.insert(report.clone());
    }
    None
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
        .share()
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
    judge_made(shared, decision, if_admitted, request, parts)
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
    let accounts = shared.uses.accounts;
    let open = accounts.map(|steps| (steps.open_account)(shared.erased(), decision, calls, parts));
    RequestGuard::new(open, permit)
}
