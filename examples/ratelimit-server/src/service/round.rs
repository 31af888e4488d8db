//! One atomic decision.

use std::sync::Arc;

use throttle_core::backend::{BoxPrepared, Call, Receipt, correction};
use throttle_core::{Backend, BackendError, BoxBackend, Clock, Decision, SystemClock};
use tonic::Status;

use crate::limits::Hits;

use super::hit::{Hit, Standing};
use super::sets::Members;
use super::{CurrentLimits, Service};

/// Hits of different policies, decided together.
pub struct Round {
    set: Arc<BoxPrepared>,
    calls: Vec<Call>,
    /// The hits, in the order of the set.
    hits: Vec<usize>,
    decision: Decision,
}

impl Service {
    /// Decides the hits of the numbers in `members`.
    pub(super) async fn decide(
        &self,
        limits: &CurrentLimits,
        hits: &[Hit],
        mut members: Vec<usize>,
    ) -> Result<Round, Status> {
        // A quota that only watches always passes, and one that passes is enough.
        let is_quota = |hit: &usize| hits[*hit].found.is_quota() && !hits[*hit].found.is_shadow();
        let mut found = members.iter().map(|hit| &hits[*hit].found);
        let passes = found.any(|found| found.is_quota() && found.is_shadow());
        members.sort_by_key(|hit| (is_quota(hit), hits[*hit].policy));
        let quotas = members.iter().filter(|hit| is_quota(hit)).count();
        let policies = members.iter().map(|hit| hits[*hit].policy).collect();
        let set = limits.sets.find(
            &self.backend,
            limits.config.policies(),
            &Members {
                policies,
                quotas,
                passes,
            },
        );
        let set = set.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let calls: Vec<_> = members.iter().map(|hit| hits[*hit].call()).collect();
        let units = |index: usize| match hits[members[index]].hits {
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
        let units = |index: usize| match &hits[members[index]] {
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
        Ok(Round {
            set,
            calls,
            hits: members,
            decision,
        })
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
        if let Some(receipt) = all {
            self.settle(set, receipt).await;
        }
    }

    /// Gives back what admitted rounds were charged.
    pub(super) async fn undo(&self, rounds: &[Round]) {
        for round in rounds {
            if let Some(receipt) = Receipt::of(&round.decision, &round.calls) {
                self.settle(&round.set, receipt.actual(0)).await;
            }
        }
    }

    async fn settle(&self, set: &Arc<BoxPrepared>, receipt: Receipt) {
        if let Err(error) = correction(self.backend.settle(set, receipt)).await {
            tracing::warn!(%error, "a charge was not corrected");
        }
    }
}

impl Round {
    pub fn is_admitted(&self) -> bool {
        self.decision.is_admitted()
    }

    /// Where each hit stands.
    pub fn standings<'a>(
        &'a self,
        hits: &'a [Hit],
    ) -> impl Iterator<Item = (usize, Standing)> + 'a {
        let policies = BoxBackend::set(&self.set).policies();
        let statuses = self.decision.statuses().iter().zip(policies);
        self.hits
            .iter()
            .zip(statuses)
            .map(|(hit, (status, policy))| (*hit, hits[*hit].standing(policy, status)))
    }
}

/// Envoy lets a request pass for an unknown error, whatever its failure mode is.
fn unavailable(error: BackendError) -> Status {
    tracing::warn!(%error, "the store did not decide");
    Status::unavailable(error.to_string())
}
