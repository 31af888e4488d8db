//! The decision of a request.

use std::sync::Arc;

use throttle_core::backend::{BoxPrepared, Call, Receipt, correction};
use throttle_core::{Backend, BackendError, BoxBackend, Clock, SystemClock};
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
        let mut hits: Vec<&mut Hit> = hits.iter_mut().collect();
        // Quotas are a part of the set, at its end.
        hits.sort_by_key(|hit| (hit.is_quota(), hit.policy));
        let policies = &limits.config.policies;
        let set = limits.sets.find(&self.backend, policies, &hits);
        let set = set.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let calls: Vec<_> = hits.iter().map(|hit| hit.call()).collect();
        let refund = |index: usize| (hits[index].hits < 0).then(|| (hits[index].units(), 0));
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
            let (hit, charged) = (&hits[index], decision.statuses()[index].charged());
            let is_due = hit.found.rule.charges_refused && hit.hits > 0 && charged == 0;
            is_due.then(|| (0, hit.units()))
        };
        self.correct(&set, &calls, debit).await;
        let policies = BoxBackend::set(&set).policies().iter();
        for ((hit, status), policy) in hits.into_iter().zip(decision.statuses()).zip(policies) {
            hit.decided(policy, status);
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

/// Envoy lets a request pass for an unknown error, whatever its failure mode is.
fn unavailable(error: BackendError) -> Status {
    tracing::warn!(%error, "the store did not decide");
    Status::unavailable(error.to_string())
}
