//! Counts a request.

use throttle_core::{Decision, Status};

use super::handles::{DecisionResult, Handles};
use crate::event::{Event, LimitInfo, Outcome};
use crate::limit::WarnAt;
use crate::observe::decider::Decider;

impl Handles {
    pub(super) fn count(&self, event: &Event<'_>) {
        self.requests[event.outcome.index()].increment(1);
        if let (Some(by), Some(why)) = (Decider::of(event), event.degraded())
            && let Some(store) = &self.store
        {
            store.count_degraded(by, why);
        }
        let is_admitted = event.decision.is_some_and(Decision::is_admitted);
        for limit in event.limits() {
            let Some(units) = limit.units() else {
                continue;
            };
            let status = units.status;
            let handles = &self.limits[limit.index];
            let classes = &limit.info.classes;
            let class = classes.iter().position(|(_, own)| *own == units.reserve);
            // The reserve of its class is not there for the request, nor among what remains.
            let result = result_of(limit.info, status, units.most());
            handles.decisions[class.unwrap_or(0)][result as usize].increment(1);
            if is_admitted {
                handles.charged.increment(status.charged());
            }
            if status.is_overflow() {
                handles.overflow.increment(1);
            }
        }
        if let Outcome::Refused = event.outcome
            && let Some(binding) = event.binding()
            && let Some(units) = binding.units()
            && units.status.is_violated()
        {
            self.limits[binding.index].binding.increment(1);
        }
    }
}

fn result_of(limit: &LimitInfo, status: &Status, most: u64) -> DecisionResult {
    if status.refuses() && (status.is_violated() || status.is_audited()) {
        return DecisionResult::Refused;
    }
    let warn_at = limit.warn_at_millionths.map(WarnAt::of_millionths);
    if warn_at.unwrap_or_default().is_near(most, status) {
        DecisionResult::Near
    } else {
        DecisionResult::Admitted
    }
}
