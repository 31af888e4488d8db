//! Counts a request.

use metrics::Counter;
use throttle_core::backend::Call;
use throttle_core::{Decision, Policy, Status};

use super::handles::{DecisionResult, Handles, PolicyHandles};
use super::throttle::{Metrics, PolicyMeter, capacity};
use crate::event::{Event, Outcome};
use crate::observe::decider::Decider;

impl Metrics {
    pub(super) fn count(&self, handles: &Handles, event: &Event<'_>) {
        let store = self.store();
        if let Some(counter) = handles.requests(store, event.outcome) {
            counter.increment(1);
        }
        if let (Some(store), Some(why)) = (store, event.degraded())
            && let Some(counter) = Decider::of(event).and_then(|by| store.degraded(by, why))
        {
            counter.increment(1);
        }
        self.count_decision(handles, event);
        if let (Outcome::Refused, Some(decision)) = (event.outcome, event.decision)
            && let Some(binding) = decision.binding()
            && decision.statuses()[binding].is_violated()
        {
            handles.policies[event.place(binding)].binding.increment(1);
        }
    }

    fn count_decision(&self, handles: &Handles, event: &Event<'_>) {
        let is_admitted = event.decision.is_some_and(Decision::is_admitted);
        let statuses = event.decision.map_or(&[][..], Decision::statuses);
        for (here, status) in statuses.iter().enumerate().filter(|(_, own)| own.applies()) {
            // In a layer of many limits, a decision may have only those that may apply.
            let index = event.place(here);
            let reserve = event.set.calls.get(here).map_or(0, Call::reserve);
            let (policy, meter) = (&handles.policies[index], &self.policies[index]);
            let result = meter.result_of(status, event.policies.get(here), reserve);
            meter.decisions(policy, reserve)[result as usize].increment(1);
            if is_admitted {
                policy.charged.increment(status.charged());
            }
            if status.is_overflow() {
                policy.overflow.increment(1);
            }
        }
    }
}

impl PolicyMeter {
    /// The counters of a request's class.
    fn decisions<'a>(&self, handles: &'a PolicyHandles, reserve: u64) -> &'a [Counter] {
        // Only the highest class may leave nothing free.
        let lower = self.reserves.iter().position(|own| *own == reserve);
        match lower.filter(|_| reserve > 0) {
            Some(class) => &handles.lower_classes[class],
            None => &handles.decisions,
        }
    }

    fn result_of(&self, status: &Status, policy: Option<&Policy>, reserve: u64) -> DecisionResult {
        if status.refuses() && (status.is_violated() || status.is_audited()) {
            return DecisionResult::Refused;
        }
        // Without tiers, a status is in tier 0. A request with parameters of its own has a policy
        // of its own.
        let capacity = self
            .capacities
            .get(usize::from(status.tier()))
            .copied()
            .or_else(|| policy.map(capacity));
        // The reserve of its class is not there for the request, nor among what remains.
        let most = capacity.unwrap_or(0).saturating_sub(reserve);
        if self.warn_at.is_near(most, status) {
            DecisionResult::Near
        } else {
            DecisionResult::Admitted
        }
    }
}
