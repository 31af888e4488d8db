//! The decision of a request.

use std::sync::Arc;

use throttle_core::backend::{BoxPrepared, Call, Receipt, correction};
use throttle_core::{Backend, BackendError, BoxBackend, Clock, PolicySet, SystemClock};
use tonic::Status;

use super::hit::Hit;
use super::{CurrentLimits, Service};

impl Service {
    /// Decides all hits together, and returns whether they are admitted.
    pub(super) async fn decide(
        &self,
        limits: &CurrentLimits,
        hits: &mut [Hit],
    ) -> Result<bool, Status> {
        if hits.is_empty() {
            return Ok(true);
        }
        // Quotas are a part of the set, at its end.
        hits.sort_by_key(|hit| (hit.is_quota(), hit.policy));
        let members = members(hits);
        let of: Vec<_> = members.iter().map(|(hit, _)| &hits[*hit]).collect();
        let policies = &limits.config.policies;
        let set = limits.sets.find(&self.backend, policies, &of);
        let set = set.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let call = |(hit, applies): &(usize, bool)| match applies {
            true => hits[*hit].call(),
            false => Call::SKIP,
        };
        let calls: Vec<_> = members.iter().map(call).collect();
        let hit = |index: usize| Some(&hits[members[index].0]).filter(|_| members[index].1);
        let refund = |index| Some((hit(index).filter(|hit| hit.hits < 0)?.units(), 0));
        self.correct(&set, &calls, refund).await;
        let decision = match self.backend.decide_at_once(&set, &calls) {
            Some(decision) => decision,
            None => self
                .backend
                .decide(&set, &calls)
                .await
                .map_err(unavailable)?,
        };
        let debit = |index: usize| {
            let (hit, charged) = (hit(index)?, decision.statuses()[index].charged());
            let is_due = hit.found.rule.charges_refused && hit.hits > 0 && charged == 0;
            is_due.then(|| (0, hit.units()))
        };
        self.correct(&set, &calls, debit).await;
        let policies = BoxBackend::set(&set).policies().iter();
        for ((member, status), policy) in members.iter().zip(decision.statuses()).zip(policies) {
            if let (hit, true) = member {
                hits[*hit].decided(policy, status);
            }
        }
        Ok(decision.is_admitted())
    }

    /// Settles what no decision has charged: for the call at an index, units that were taken and
    /// units that were used.
    async fn correct(
        &self,
        set: &Arc<BoxPrepared>,
        calls: &[Call],
        units: impl Fn(usize) -> Option<(u64, u64)>,
    ) {
        let policies = BoxBackend::set(set).policies().iter();
        let calls_of = calls.iter().zip(policies).enumerate();
        let receipts = calls_of.filter_map(|(index, (call, policy))| {
            let (taken, used) = units(index)?;
            let most = call.parameters(policy).capacity();
            let now = self.backend.now(set, calls);
            let now = now.unwrap_or_else(|| SystemClock::new().now());
            let call = call.clone().costing(taken.min(most));
            Some(Receipt::taken_at(now, index, policy, &call)?.actual(used))
        });
        let all = receipts.reduce(|mut all, mut receipt| {
            all.take_over(&mut receipt);
            all
        });
        if let Some(receipt) = all
            && let Err(error) = correction(self.backend.settle(set, receipt)).await
        {
            tracing::warn!(%error, "a charge was not corrected");
        }
    }
}

/// For each member of the set, the hit that it is of, and whether it applies. The members of each
/// limit are rounded up, to powers of two while there is room, so the last ones may not apply: each
/// number of keys would be another set, and another script that Redis keeps.
pub(super) fn members(hits: &[Hit]) -> Vec<(usize, bool)> {
    let limits = || hits.chunk_by(|one, next| one.policy == next.policy);
    let total = |bits: &u32| limits().map(|of| rounded(of.len(), *bits)).sum::<usize>();
    let bits = (0..10).find(|bits| total(bits) <= PolicySet::MAX_POLICIES);
    let mut members = Vec::with_capacity(hits.len().next_power_of_two());
    let mut first = 0;
    for of_limit in limits() {
        let end = first + of_limit.len();
        let places = first..first + rounded(of_limit.len(), bits.unwrap_or(10));
        members.extend(places.map(|place| (place.min(end - 1), place < end)));
        first = end;
    }
    members
}

/// The next number of which so many bits behind the first may be set.
fn rounded(members: usize, bits: u32) -> usize {
    members.next_multiple_of((members.next_power_of_two() >> bits).max(1))
}

/// Envoy lets a request pass for an unknown error, whatever its failure mode is.
fn unavailable(error: BackendError) -> Status {
    tracing::warn!(%error, "the store did not decide");
    Status::unavailable(error.to_string())
}
