//! Counts a request.
//!
//! A request is counted in as few places as determine the rest: the sums of a report are derived from them.

use std::sync::atomic::{Ordering, fence};

use throttle_core::{DecidedBy, Decision, Policy, Status};

use super::handles::place;
use super::per_thread::counts::{ROW, Rows};
use super::throttle::{Metrics, Watched, fifth};
use crate::event::{Event, Outcome};
use crate::observe::decider::Decider;

impl Metrics {
    /// Counts a usual request: the only policy of the layer has admitted or refused it, as the store decided. Returns
    /// `None` for any other one, which is not counted.
    #[inline(always)]
    pub(super) fn count_usual(&self, rows: Rows<'_, true>, event: &Event<'_>) -> Option<()> {
        let [status] = event.decision?.statuses() else { return None };
        let enough = *self.enough_of_only.get(usize::from(status.tier()))?;
        if status.decided_by() != DecidedBy::Store || !status.applies() || status.is_overflow() {
            return None;
        }
        debug_assert!(matches!(event.outcome, Outcome::Admitted | Outcome::Refused), "nothing else was decided");
        let counter = if status.is_violated() { place::BOUND } else { place_of_rest(status, enough) };
        rows.add_usual(counter, 1);
        // A refused request is charged 0.
        rows.add_usual(place::CHARGED, status.charged());
        Some(())
    }

    /// Counts any request. That it was admitted follows from the decisions of a policy, if there is one; that it was
    /// refused, from the policy that refused it.
    pub(super) fn count<const OWN: bool>(&self, rows: Rows<'_, OWN>, event: &Event<'_>) {
        let bound = bound(event);
        match bound {
            Some(policy) => rows.add(place::POLICIES + policy, place::BOUND, 1),
            None if matches!(event.outcome, Outcome::Admitted) && !self.policies.is_empty() => {}
            None => rows.add(place::REQUESTS, event.outcome.place(), 1),
        }
        // See `sums`.
        fence(Ordering::Release);
        if let Some(decision) = event.decision {
            self.count_decision(rows, (decision, event.policies), bound);
        }
        if let (Some(why), Some(decider)) = (event.degraded(), Decider::of(event)) {
            rows.add(place::DEGRADED, place::degraded(decider, why), 1);
        }
    }

    fn count_decision<const OWN: bool>(
        &self,
        rows: Rows<'_, OWN>,
        (decision, policies): (&Decision, &[Policy]),
        bound: Option<usize>,
    ) {
        let is_admitted = decision.is_admitted();
        for (n, (status, watched)) in decision.statuses().iter().zip(&self.policies).enumerate() {
            let row = place::POLICIES + n;
            if bound != Some(n) {
                rows.add(row, watched.place_of(status, policies.get(n)), 1);
            }
            if is_admitted {
                rows.add(row, place::CHARGED, status.charged());
            }
            if status.is_overflow() {
                rows.add(row, place::OVERFLOW, 1);
            }
        }
    }

    /// The sums of a row, as they are reported.
    pub(super) fn sums(&self, row: usize) -> [u64; ROW] {
        let mut sums = self.counts.sums(row);
        if row == place::POLICIES {
            sums.iter_mut().zip(self.counts.usual()).for_each(|(sum, usual)| *sum += usual);
        }
        if row >= place::POLICIES {
            sums[place::REFUSED] += sums[place::BOUND];
            sums[place::BINDING] = sums[place::BOUND];
        } else if row == place::REQUESTS && !self.policies.is_empty() {
            return self.requests();
        }
        sums
    }

    /// Requests by their outcomes, of a layer with policies.
    fn requests(&self) -> [u64; ROW] {
        // Each policy has decided all requests for which there was a decision. The first one's row is read before the
        // others: a refusal that is found there is found among the requests too, and does not count as admitted.
        let first = self.sums(place::POLICIES);
        fence(Ordering::Acquire);
        let others = 1..self.policies.len();
        let bound: u64 = others.map(|policy| self.counts.sums(place::POLICIES + policy)[place::BOUND]).sum();
        let mut sums = self.counts.sums(place::REQUESTS);
        let [admitted, refused, failed_open] = place::WITH_DECISION;
        sums[refused] += first[place::BOUND] + bound;
        let decided = [place::ADMITTED, place::NEAR, place::REFUSED, place::SKIPPED].map(|place| first[place]);
        sums[admitted] = decided.iter().sum::<u64>().saturating_sub(sums[refused] + sums[failed_open]);
        sums
    }
}

/// The policy that refused a request.
fn bound(event: &Event<'_>) -> Option<usize> {
    let (Outcome::Refused, Some(decision)) = (event.outcome, event.decision) else { return None };
    decision.binding().filter(|policy| decision.statuses().get(*policy).is_some_and(Status::is_violated))
}

impl Watched {
    fn place_of(&self, status: &Status, policy: Option<&Policy>) -> usize {
        if !status.applies() {
            place::SKIPPED
        } else if status.is_violated() {
            place::REFUSED
        } else {
            // Without tiers, a status is in tier 0. A request with parameters of its own has a policy of its own.
            let enough = self.enough.get(usize::from(status.tier())).copied();
            place_of_rest(status, enough.or_else(|| policy.map(fifth)).unwrap_or(0))
        }
    }
}

#[inline(always)]
fn place_of_rest(status: &Status, enough: u64) -> usize {
    if status.remaining() < enough { place::NEAR } else { place::ADMITTED }
}
