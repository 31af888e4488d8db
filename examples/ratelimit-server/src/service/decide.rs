//! The decision of a request.

use std::sync::Arc;

use throttle_core::backend::{BoxPrepared, Call, Receipt, correction};
use throttle_core::{Backend, BackendError, BoxBackend, Clock, SystemClock};
use tonic::Status;

use crate::limits::Hits;

use super::hit::Hit;
use super::sets::Members;
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
        // A quota that only watches always passes, and one that passes is enough.
        let is_quota = |hit: &Hit| hit.found.is_quota() && !hit.found.is_shadow();
        let passes = hits
            .iter()
            .any(|hit| hit.found.is_quota() && hit.found.is_shadow());
        let mut hits: Vec<&mut Hit> = hits.iter_mut().collect();
        hits.sort_by_key(|hit| (is_quota(hit), hit.policy));
        let members = Members {
            policies: hits.iter().map(|hit| hit.policy).collect(),
            quotas: hits.iter().filter(|hit| is_quota(hit)).count(),
            passes,
        };
        let set = limits
            .sets
            .find(&self.backend, limits.config.policies(), &members)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let calls: Vec<_> = hits.iter().map(|hit| hit.call()).collect();
        let units = |index: usize| match hits[index].hits {
            Hits::Refund(units) => Some((units, 0)),
            _ => None,
        };
        self.correct(&set, &calls, units).await;
        let decision = match self.backend.decide_at_once(&set, &calls) {
            Some(decision) => decision,
            None => self
                .backend
                .decide(&set, &calls)
                .await
                .map_err(unavailable)?,
        };
        let units = |index: usize| match &hits[index] {
            Hit {
                found,
                hits: Hits::Charge(units),
                ..
            } if found.charges_refused() => {
                (decision.statuses()[index].charged() == 0).then_some((0, *units))
            }
            _ => None,
        };
        self.correct(&set, &calls, units).await;
        let policies = BoxBackend::set(&set).policies().iter();
        for ((hit, status), policy) in hits.into_iter().zip(decision.statuses()).zip(policies) {
            hit.standing = hit.standing(policy, status);
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
        let mut all: Option<Receipt> = None;
        for (index, (call, policy)) in calls
            .iter()
            .zip(BoxBackend::set(set).policies())
            .enumerate()
        {
            let Some((taken, used)) = units(index) else {
                continue;
            };
            let at = self
                .backend
                .now(set, calls)
                .unwrap_or_else(|| SystemClock::new().now());
            let call = call
                .clone()
                .costing(taken.min(call.parameters(policy).capacity()));
            let receipt =
                Receipt::taken_at(at, index, policy, &call).map(|receipt| receipt.actual(used));
            match (&mut all, receipt) {
                (Some(all), Some(mut receipt)) => all.take_over(&mut receipt),
                (all @ None, receipt) => *all = receipt,
                (Some(_), None) => {}
            }
        }
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
