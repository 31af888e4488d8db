//! Runs the steps of a request up to the point where it is passed on or refused.

use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::Backend;

use super::ask::{Lookup, OfRequest, RequestCalls, ask};
use super::decide::{self, DecisionOutcome};
use super::judge::{AdmittedRequest, Verdict, judge, judge_report};
use super::look_up::look_up;
use super::narrow::narrow;
use super::refuse_early::{Early, Unknown, refuse_early};
use super::{refuse, wait_queue};
use crate::event::Outcome;
use crate::limit::select;
use crate::throttle::response_builder::RefusalResponse;
use crate::throttle::shared_layer::SharedLayer;

/// How far a request comes without waiting.
pub(in crate::throttle) enum RequestStage<B: Backend> {
    Passes,
    Refused(RefusalResponse),
    /// It has to wait for a key, the store or its turn.
    Waits(Arc<SharedLayer<B>>, RequestCalls, Vec<Lookup>),
}

/// Judges a request, if nothing has to be waited for. One that passes carries `admitted`.
#[inline]
pub(in crate::throttle) fn start<B: Backend>(
    whole: &Arc<SharedLayer<B>>,
    parts: &mut Parts,
    admitted: &mut AdmittedRequest,
) -> RequestStage<B> {
    if let Some(when) = &whole.options.settings.when
        && !when(parts)
    {
        return RequestStage::Passes;
    }
    let selected = select(&whole.selections, parts);
    let shared = narrow(whole, &selected);
    // A pair would be moved out of its initializer.
    let mut request = RequestCalls::default();
    let mut lookups = Vec::new();
    let mut inquiry = OfRequest(&selected);
    if let Err(refusal) = ask(&mut inquiry, shared, parts, (&mut request, &mut lookups)) {
        return RequestStage::Refused(*refusal);
    }
    if lookups.is_empty() && !wait_queue::is_behind_others(shared, &request.calls) {
        if let Some(full) = decide::saturated(shared, &request.needs) {
            return RequestStage::Refused(refuse::saturated(shared, &full, parts));
        }
        // A refusal has taken nothing. If the request may wait for room, it is not judged here:
        // `wait_queue` asks again.
        if let Some(report) = decide::at_once(shared, &request.calls, &mut admitted.report)
            && wait_queue::held_for(shared, report.decision()).is_none()
        {
            return match judge_report(shared, admitted, Outcome::Admitted, &request, parts) {
                Some(refusal) => RequestStage::Refused(refusal),
                None => RequestStage::Passes,
            };
        }
    }
    RequestStage::Waits(Arc::clone(shared), request, lookups)
}

/// Judges a request that has to wait. Every wait is bounded: lookups and the store have a deadline
/// each, and a queue holds a request for as long as its limit says.
pub(in crate::throttle) async fn finish<B: Backend>(
    shared: Arc<SharedLayer<B>>,
    mut request: RequestCalls,
    lookups: Vec<Lookup>,
    mut parts: Parts,
) -> (Verdict, Parts) {
    let verdict = match decided(&shared, &mut request, lookups, &parts).await {
        Ok(decided) => judge(&shared, decided, &request, &mut parts),
        Err(refusal) => Verdict::Refuse(*refusal),
    };
    (verdict, parts)
}

/// # Errors
///
/// The refusal, where a required key is missing.
pub(super) async fn decided<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    request: &mut RequestCalls,
    mut lookups: Vec<Lookup>,
    parts: &Parts,
) -> Result<DecisionOutcome, Box<RefusalResponse>> {
    if !lookups.is_empty() {
        let unknown = lookups.iter_mut().map(|lookup| Unknown {
            index: lookup.index,
            last: lookup.last.take(),
        });
        let unknown: SmallVec<[Unknown; 1]> = unknown.collect();
        let early = refuse_early(shared, request, &unknown, parts).await;
        if let Early::Refused(decided) = early {
            return Ok(*decided);
        }
        look_up(&mut OfRequest(&[]), shared, request, lookups, parts).await?;
        if let Early::Failed(error) = early {
            return Ok(DecisionOutcome::Failed(error));
        }
    }
    Ok(match shared.uses.queues {
        Some(steps) => (steps.decide)(&shared.erased(), request).await,
        None => decide::decide(&shared.erased(), request).await,
    })
}
