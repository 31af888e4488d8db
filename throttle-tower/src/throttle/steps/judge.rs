use std::sync::Arc;

use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, DecidedBy, Decision, Status};

use super::ask::Asked;
use super::decide::{self, Decided};
use super::notify::notify;
use super::{correct_charges, give_back_unserved, refuse};
use crate::event::Outcome;
use crate::throttle::in_progress::Held;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::permit::Permit;
use crate::throttle::response_builder::Refused;
use crate::throttle::shared::Shared;
use crate::usage::{Open, Usage};

/// What becomes of a request.
pub(in crate::throttle) enum Judged {
    Pass(Admitted),
    Refuse(Refused),
}

/// What an admitted request carries to its response.
pub(in crate::throttle) struct Admitted {
    /// `None` if the layer does not apply to the request.
    pub(super) report: Option<LimitReport>,
    /// Whether the layer warns if the request succeeds: a limit depends on the route, and there is
    /// none.
    pub(super) route_is_missing: bool,
    pub(super) held: Held,
}

impl Admitted {
    /// A request to which the layer does not apply.
    pub(super) fn untouched() -> Self {
        Self {
            report: None,
            route_is_missing: false,
            held: Held::default(),
        }
    }
}

pub(super) fn judge<B: Backend>(
    shared: &Arc<Shared<B>>,
    decided: Decided,
    asked: &Asked,
    parts: &mut Parts,
) -> Judged {
    match decided {
        Decided::Made(decision) => judge_decided(
            shared,
            decide::report(shared, decision, &asked.calls),
            Outcome::Admitted,
            asked,
            parts,
        ),
        Decided::Failed(error) => judge_failure(shared, &error, asked, parts),
        Decided::Saturated(full) => Judged::Refuse(refuse::saturated(shared, &full, parts)),
    }
}

#[inline(always)]
pub(super) fn judge_decided<B: Backend>(
    shared: &Arc<Shared<B>>,
    report: LimitReport,
    if_admitted: Outcome<'_>,
    asked: &Asked,
    parts: &mut Parts,
) -> Judged {
    let decision = report.decided();
    if !decision.is_admitted() {
        if shared.uses.charge_refused {
            correct_charges::count_refused(shared, decision, &asked.calls);
        }
        return Judged::Refuse(refuse::over_limit(shared, report, &asked.calls, parts));
    }
    let permit = match shared
        .permits
        .enter(&asked.needs, &shared.options.observers)
    {
        Ok(held) => held.map(Permit::new),
        Err(full) => {
            // They ran out while the backend decided.
            give_back_unserved::refund_all(shared, decision, &asked.calls);
            return Judged::Refuse(refuse::saturated(shared, &full, parts));
        }
    };
    notify(shared, if_admitted, Some(&report), &asked.calls, parts);
    let watch = &report.announced().options.watch;
    let route_is_missing =
        shared.uses.routes && watch.suspects(shared.uses, &shared.applied, &asked.calls, parts);
    let held = if permit.is_none() && !shared.uses.accounts {
        Held::default()
    } else {
        hand_out(shared, decision, &asked.calls, parts, permit)
    };
    parts.extensions.insert(report.clone());
    Judged::Pass(Admitted {
        report: Some(report),
        route_is_missing,
        held,
    })
}

/// Judges a request that the store did not decide about: closed limits refuse it, this process
/// decides by the limits that it has a share of, and where there is none of either, the request is
/// passed on.
#[cold]
fn judge_failure<B: Backend>(
    shared: &Arc<Shared<B>>,
    error: &BackendError,
    asked: &Asked,
    parts: &mut Parts,
) -> Judged {
    let closed = refuse::closed(shared, &asked.calls, error);
    if !closed.is_empty() {
        return Judged::Refuse(refuse::failed(shared, error, &closed, parts));
    }
    let share = shared
        .share
        .as_ref()
        .and_then(|share| share.decide(&asked.calls, error.kind()));
    let is_local = |status: &Status| {
        status.is_enforced() && matches!(status.decided_by(), DecidedBy::Local(_))
    };
    let (decision, if_admitted) = match share {
        Some(decision) if decision.statuses().iter().any(is_local) => (decision, Outcome::Admitted),
        // The share has audited limits only.
        Some(decision) => (decision, Outcome::FailedOpen(error)),
        None => (
            Decision::open(&asked.calls, error.kind()),
            Outcome::FailedOpen(error),
        ),
    };
    judge_decided(
        shared,
        decide::report(shared, decision, &asked.calls),
        if_admitted,
        asked,
        parts,
    )
}

/// Gives the handler its permit and its usage, and returns what the request holds.
#[inline(never)]
fn hand_out<B: Backend>(
    shared: &Arc<Shared<B>>,
    decision: &Decision,
    calls: &[Call],
    parts: &mut Parts,
    permit: Option<Permit>,
) -> Held {
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
    Held::new(account.map(Open::new), permit)
}
