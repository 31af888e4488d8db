//! Asks a layer that is a [candidate](crate::candidate) about a request: the steps of a request up
//! to the decision, without what belongs to a response.

use std::any::Any;
use std::sync::Arc;

use http::Request;
use http::request::Parts;
use throttle_core::backend::Call;
use throttle_core::{Backend, ConfigError, Decision};

use super::ask::{self, Asked, Lookup};
use super::decide::{self, Decided};
use super::decision_at_once::decision_at_once;
use super::narrow::narrow;
use super::notify::notify;
use super::{correct_charges, pipeline, wait_queue};
use crate::candidate::{Comparing, Counts, Trial, Verdict};
use crate::event::{Event, Outcome};
use crate::throttle::layer::ThrottleLayer;
use crate::throttle::shared::Shared;

impl<B: Backend> Trial for ThrottleLayer<B> {
    fn ask(&self, event: &Event<'_>, counts: &Arc<Counts>) {
        ask_candidate(&self.current.now(), event, counts);
    }

    fn shares_keys_with(&self, backend: &dyn Any) -> bool {
        backend
            .downcast_ref()
            .is_some_and(|other| self.current.now().backend.shares_keys_with(other))
    }
}

/// # Errors
///
/// If a limit acts on requests that pass through it, which those of a candidate do not.
pub(crate) fn check_candidate<B: Backend>(shared: &Shared<B>) -> Result<(), ConfigError> {
    let corrected = shared
        .applied
        .iter()
        .position(|limit| limit.charge_rules.may_change());
    let corrected = corrected.map(|place| shared.announced.policies[place].policy_name());
    let rule = "InFlight, refunds, strike_if and settled_later do, and a candidate sees no \
        response; leave this \
                limit out of the candidate";
    match shared
        .permits
        .limits()
        .first()
        .map(|limit| &limit.name)
        .or(corrected)
    {
        None => Ok(()),
        Some(name) => Err(
            ConfigError::new("candidate", "a limit that acts on responses", rule)
                .in_policy(name.as_str()),
        ),
    }
}

fn ask_candidate<B: Backend>(shared: &Arc<Shared<B>>, event: &Event<'_>, counts: &Arc<Counts>) {
    // A reload may have brought it.
    if shared.uses.accounts || !shared.permits.is_empty() {
        return counts.compare(event, None);
    }
    let parts = event.parts;
    if shared
        .options
        .settings
        .when
        .as_ref()
        .is_some_and(|when| !when.holds(parts))
    {
        return counts.compare(event, Some(&Verdict::Admitted));
    }
    let (shared, holding) = narrow(shared, parts);
    let (mut asked, mut lookups) = (Asked::default(), Vec::new());
    if ask::ask(shared, &holding, parts, (&mut asked, &mut lookups)).is_err() {
        return counts.compare(event, Some(&Verdict::Refused(None)));
    }
    if lookups.is_empty() && !wait_queue::is_behind_others(shared, &asked.calls) {
        // It is large, and not moved out of the option.
        let decision = decision_at_once(shared, &asked.calls);
        if let Some(decision) = &decision
            && !wait_queue::may_wait(shared, decision)
        {
            return counts.compare(event, Some(&verdict(shared, decision, &asked.calls, parts)));
        }
    }
    decide_later(shared, asked, lookups, event, counts);
}

#[cold]
fn decide_later<B: Backend>(
    shared: &Arc<Shared<B>>,
    mut asked: Asked,
    lookups: Vec<Lookup>,
    event: &Event<'_>,
    counts: &Arc<Counts>,
) {
    let background = &shared.options.background;
    if background.counters.read().pending >= shared.options.max_waiting() as u64 {
        return counts.compare(event, None);
    }
    // The head goes on with its request. To copy it is slow, so that is done where it is read.
    let reads_head = !lookups.is_empty() || is_observed(shared);
    let parts = if reads_head {
        event.parts.clone()
    } else {
        Request::new(()).into_parts().0
    };
    let (comparing, deciding) = (Comparing::new(counts, event), Arc::clone(shared));
    let step = async move {
        comparing.end(
            match pipeline::decided(&deciding, &mut asked, lookups, &parts).await {
                Ok(Decided::Made(decision)) => {
                    Some(verdict(&deciding, &decision, &asked.calls, &parts))
                }
                Ok(Decided::Failed(_) | Decided::Saturated(_)) => None,
                Err(_) => Some(Verdict::Refused(None)),
            },
        );
        Ok(())
    };
    background.send(Box::pin(step), None, shared.backend.can_fail());
}

#[inline]
fn verdict<B: Backend>(
    shared: &Arc<Shared<B>>,
    decision: &Decision,
    calls: &[Call],
    parts: &Parts,
) -> Verdict {
    let (verdict, outcome) = match decision.is_admitted() {
        true => (Verdict::Admitted, Outcome::Admitted),
        false => (refused(shared, decision, calls), Outcome::Refused),
    };
    if is_observed(shared) {
        notify(
            shared,
            outcome,
            Some(&decide::report(shared, decision.clone(), calls)),
            calls,
            parts,
        );
    }
    verdict
}

#[cold]
fn refused<B: Backend>(shared: &Arc<Shared<B>>, decision: &Decision, calls: &[Call]) -> Verdict {
    if shared.uses.charge_refused {
        correct_charges::count_refused(shared, decision, calls);
    }
    let policy = decision
        .binding()
        .and_then(|place| shared.announced.policies.get(place));
    Verdict::Refused(policy.map(|policy| policy.policy_name().clone()))
}

fn is_observed<B: Backend>(shared: &Shared<B>) -> bool {
    !shared.options.observers.is_empty()
}
