//! The decision: a look at the permits, then one question to the backend.

use std::sync::Arc;

use throttle_core::backend::{Answer, Call};
use throttle_core::{Backend, BackendError, Decision, Timestamp};

use super::ask::RequestCalls;
use crate::event::Activity;
use crate::throttle::limit_report::LimitReport;
use crate::throttle::permits::{Indices, Needs};
use crate::throttle::shared_layer::{ErasedLayer, LayerCommon, SharedLayer};

/// What is known about a request once it was decided. It holds no permit yet.
pub(crate) enum DecisionOutcome {
    Made(Decision),
    Failed(BackendError),
    /// There were too few permits, so the backend was not asked.
    Saturated(Indices),
}

/// Puts the decision into `made`, if the backend makes one without waiting.
#[inline(always)]
pub(super) fn at_once<'a, B: Backend>(
    shared: &SharedLayer<B>,
    calls: &[Call],
    made: &'a mut Option<LimitReport>,
) -> Option<&'a LimitReport> {
    if is_not_limited(calls) {
        return Some(made.insert(report(shared, not_limited(calls), calls)));
    }
    let decision = shared.backend.decide_at_once(&shared.prepared, calls)?;
    let report = made.insert(report(shared, decision, calls));
    note(shared, report.decision(), calls);
    Some(report)
}

/// A decision with what the layer announces to the request: the terms of its own parameters and
/// classes, where its calls have some.
#[inline(always)]
pub(in crate::throttle) fn report<B: Backend>(
    shared: &SharedLayer<B>,
    decision: Decision,
    calls: &[Call],
) -> LimitReport {
    let has_terms = || {
        calls
            .iter()
            .any(|call| call.own().is_some() || call.reserve() > 0)
    };
    match shared.uses.terms && has_terms() {
        true => report_under(shared, decision, calls),
        // It is moved, and not looked at before: a decision is large.
        false => LimitReport::new(decision, Arc::clone(&shared.announced)),
    }
}

#[cold]
fn report_under<B: Backend>(
    shared: &SharedLayer<B>,
    decision: Decision,
    calls: &[Call],
) -> LimitReport {
    let processes = |index: usize| {
        shared
            .options
            .on_error_of(shared.applied.get(index)?)?
            .processes()
    };
    let announced = shared.announced.under(&decision, calls, processes);
    LimitReport::new(decision, Arc::new(announced))
}

/// The answer of a backend that may have to be waited for.
pub(super) async fn decide(
    shared: &Arc<dyn ErasedLayer>,
    request: &RequestCalls,
) -> DecisionOutcome {
    if let Some(full) = saturated(shared, &request.needs) {
        return DecisionOutcome::Saturated(full);
    }
    if is_not_limited(&request.calls) {
        return DecisionOutcome::Made(not_limited(&request.calls));
    }
    wait_for(shared, &request.calls, shared.decide(&request.calls)).await
}

/// The answer as of an instant that has passed.
pub(super) async fn decide_as_of(
    shared: &Arc<dyn ErasedLayer>,
    calls: &[Call],
    at: Timestamp,
) -> DecisionOutcome {
    wait_for(shared, calls, shared.decide_as_of(calls, at)).await
}

async fn wait_for(
    shared: &Arc<dyn ErasedLayer>,
    calls: &[Call],
    deciding: Answer<Decision>,
) -> DecisionOutcome {
    let observers = &shared.options.observers;
    // What this process decides takes no time worth telling.
    let started = if shared.can_fail() {
        observers.start()
    } else {
        None
    };
    let deciding = match shared.uses.refund_aborted {
        Some(steps) => (steps.refund_on_drop)(shared, calls, deciding),
        None => deciding,
    };
    let decided = deciding.await;
    if let Some(started) = started {
        observers.happened(Activity::Answered {
            after: started.elapsed(),
            failed: decided.as_ref().err().map(BackendError::kind),
        });
    }
    match decided {
        Ok(decision) => {
            note(&**shared, &decision, calls);
            DecisionOutcome::Made(decision)
        }
        Err(error) => DecisionOutcome::Failed(error),
    }
}

/// The limits of which too few permits are free at this instant.
///
/// This only looks: a request takes its permits after the limits have admitted it, so a request
/// that they refuse never holds a permit that another one needs.
#[inline]
pub(super) fn saturated(shared: &LayerCommon, needs: &Needs) -> Option<Indices> {
    if shared.permits.is_empty() {
        return None;
    }
    shared.permits.look(needs).err()
}

/// Keeps this process's share warm.
#[inline]
fn note<L: ErasedLayer + ?Sized>(shared: &L, decision: &Decision, calls: &[Call]) {
    if let Some(share) = shared.share() {
        share.note(decision, calls);
    }
}

/// The decision, if the backend makes one without waiting. No share of this process is charged.
pub(super) fn decision_at_once<L: ErasedLayer + ?Sized>(
    shared: &L,
    calls: &[Call],
) -> Option<Decision> {
    if is_not_limited(calls) {
        return Some(not_limited(calls));
    }
    shared.decide_at_once(calls)
}

#[inline]
fn is_not_limited(calls: &[Call]) -> bool {
    calls.iter().all(|call| call.key().is_none())
}

#[cold]
fn not_limited(calls: &[Call]) -> Decision {
    Decision::not_limited(calls.len())
}
