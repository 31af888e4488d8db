//! Counts a request.

use throttle_core::backend::Call;
use throttle_core::{Decision, Policy, Status};

use super::handles::place;
use super::per_thread::counts::Rows;
use super::throttle::{Metrics, Watched, capacity};
use crate::event::{Event, Outcome};
use crate::observe::decider::Decider;

impl Metrics {
    pub(super) fn count(&self, rows: Rows<'_>, event: &Event<'_>, calls: &[Call]) {
        if let Some(decision) = event.decision {
            self.count_decision(rows, event, decision, calls);
            if let (Outcome::Refused, Some(policy)) = (event.outcome, decision.binding())
                && decision
                    .statuses()
                    .get(policy)
                    .is_some_and(Status::is_violated)
            {
                rows.add(place::POLICIES + event.place(policy), place::BINDING, 1);
            }
        }
        if let (Some(why), Some(decider)) = (event.degraded(), Decider::of(event)) {
            rows.add(place::DEGRADED, place::degraded(decider, why), 1);
        }
        // Behind its decisions: see `place::SKIPPED`.
        rows.add(place::REQUESTS, event.outcome.place(), 1);
    }

    fn count_decision(
        &self,
        rows: Rows<'_>,
        event: &Event<'_>,
        decision: &Decision,
        calls: &[Call],
    ) {
        let is_admitted = decision.is_admitted();
        for (n, status) in decision
            .statuses()
            .iter()
            .enumerate()
            .filter(|(_, status)| status.applies())
        {
            let place = event.place(n);
            let Some(watched) = self.policies.get(place) else {
                continue;
            };
            let row = place::POLICIES + place;
            let reserve = calls.get(n).map_or(0, Call::reserve);
            let result = watched.result_of(status, event.policies.get(n), reserve);
            // Only the highest class may leave nothing free.
            let of_class = if reserve > 0 {
                watched.row_of_class(reserve)
            } else {
                None
            };
            rows.add(of_class.unwrap_or(row), result, 1);
            if is_admitted {
                rows.add(row, place::CHARGED, status.charged());
            }
            if status.is_overflow() {
                rows.add(row, place::OVERFLOW, 1);
            }
        }
    }
}

impl Watched {
    /// The row of a class that is not the highest.
    fn row_of_class(&self, reserve: u64) -> Option<usize> {
        self.lower_classes
            .iter()
            .find(|(own, _)| *own == reserve)
            .map(|(_, row)| *row)
    }

    fn result_of(&self, status: &Status, policy: Option<&Policy>, reserve: u64) -> usize {
        if status.refuses() && (status.is_violated() || status.is_audited()) {
            return place::REFUSED;
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
            place::NEAR
        } else {
            place::ADMITTED
        }
    }
}
