//! Decides a request that passes through no service: the steps of a request up to the decision,
//! without what belongs to a response. Open this for what a [candidate](crate::candidate) decides.

use std::sync::Arc;

use http::Request;
use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, Decision, PolicyName};

use super::ask::{self, Lookup, OfRequest, RequestCalls};
use super::decide::{self, DecisionOutcome, decision_at_once};
use super::narrow::narrow;
use super::notify::notify;
use super::{correct_charges, pipeline, wait_queue};
use crate::event::Outcome;
use crate::limit::select;
use crate::throttle::layer::ThrottleLayer;
use crate::throttle::shared_layer::SharedLayer;

/// What becomes of a request.
pub(crate) enum Ruling {
    Admitted,
    /// By a policy, if it is known.
    Refused(Option<PolicyName>),
}

impl<B: Backend> ThrottleLayer<B> {
    /// Decides a request, charges it if it is admitted, and calls `end` with the result: `None` if
    /// the request is not decided, for example because the store fails. Where that takes a wait, it
    /// is in the background.
    ///
    /// If the runtime ends, or a closure of the layer panics, `end` is dropped.
    pub(crate) fn decide_on_trial(
        &self,
        parts: &Parts,
        end: impl FnOnce(Option<Ruling>) + Send + 'static,
    ) {
        self.current
            .with(|shared| decide_on_trial(shared, parts, end));
    }
}

fn decide_on_trial<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    parts: &Parts,
    end: impl FnOnce(Option<Ruling>) + Send + 'static,
) {
    // A reload may have brought a limit that acts on responses.
    if shared.uses.accounts.is_some() || !shared.permits.is_empty() {
        return end(None);
    }
    if let Some(when) = &shared.options.settings.when
        && !when(parts)
    {
        return end(Some(Ruling::Admitted));
    }
    let selected = select(&shared.selections, parts);
    let shared = narrow(shared, &selected);
    let mut request = RequestCalls::default();
    let mut lookups = Vec::new();
    let mut inquiry = OfRequest(&selected);
    if ask::ask(&mut inquiry, shared, parts, (&mut request, &mut lookups)).is_err() {
        return end(Some(Ruling::Refused(None)));
    }
    if lookups.is_empty() && !wait_queue::is_behind_others(shared, &request.calls) {
        // It is large, and not moved out of the option.
        let decision = decision_at_once(&**shared, &request.calls);
        if let Some(decision) = &decision
            && wait_queue::held_for(shared, decision).is_none()
        {
            return end(Some(ruling(shared, decision, &request.calls, parts)));
        }
    }
    decide_later(shared, request, lookups, parts, end);
}

fn decide_later<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    mut request: RequestCalls,
    lookups: Vec<Lookup>,
    parts: &Parts,
    end: impl FnOnce(Option<Ruling>) + Send + 'static,
) {
    let background = &shared.options.background;
    if background.counters.read().pending >= shared.options.max_waiting() as u64 {
        return end(None);
    }
    // The head goes on with its request. To copy it is slow, so that is done where it is read.
    let reads_head = !lookups.is_empty() || !shared.options.observers.is_empty();
    let parts = if reads_head {
        parts.clone()
    } else {
        Request::new(()).into_parts().0
    };
    let deciding = Arc::clone(shared);
    let step = async move {
        end(
            match pipeline::decided(&deciding, &mut request, lookups, &parts).await {
                Ok(DecisionOutcome::Made(decision)) => {
                    Some(ruling(&deciding, &decision, &request.calls, &parts))
                }
                Ok(DecisionOutcome::Failed(_) | DecisionOutcome::Saturated(_)) => None,
                Err(_) => Some(Ruling::Refused(None)),
            },
        );
        Ok(())
    };
    background.send(Box::pin(step), None, shared.backend.can_fail());
}

fn ruling<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    decision: &Decision,
    calls: &[Call],
    parts: &Parts,
) -> Ruling {
    let (ruling, outcome) = match decision.is_admitted() {
        true => (Ruling::Admitted, Outcome::Admitted),
        false => (refused(shared, decision, calls), Outcome::Refused),
    };
    if !shared.options.observers.is_empty() {
        let report = decide::report(shared, decision.clone(), calls);
        notify(shared, outcome, Some(&report), calls, parts);
    }
    ruling
}

fn refused<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    decision: &Decision,
    calls: &[Call],
) -> Ruling {
    correct_charges::count_refused(shared, decision, calls);
    let policies = &shared.announced.policies;
    let policy = decision.binding().and_then(|index| policies.get(index));
    Ruling::Refused(policy.map(|policy| policy.policy_name().clone()))
}
