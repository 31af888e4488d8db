//! Refusing a request before its keys and tiers are looked up, where they cannot change the decision.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, PolicyNode, Status};

use crate::limit::Keying;
use crate::throttle::permits::Needs;
use crate::throttle::shared::{Asked, Calls, Shared};
use crate::throttle::steps::decide::Answer;
use crate::throttle::steps::wait_queue::members;

/// What is known of a request before its lookups.
pub(in crate::throttle) enum Looked {
    /// It is refused whatever they return, by these calls.
    Refused(Answer, Calls),
    /// That depends on them.
    Open,
    /// The store failed, and is not asked again: a request waits for it no longer than one deadline.
    Failed(BackendError),
}

/// The places of the policies whose keys are looked up.
type Unknown = SmallVec<[usize; 2]>;

impl<B: Backend> Shared<B> {
    /// Looks at the limits whose keys and tiers are known; `None` if there is nothing to look at.
    ///
    /// In memory a look is synchronous. Over a store it is a question of its own, which only lookups of tiers are
    /// worth: their answers are remembered, so that few requests need one.
    pub(in crate::throttle) fn look_first(
        self: &Arc<Self>,
        asked: &Asked,
    ) -> Option<Pin<Box<dyn Future<Output = Looked> + Send>>> {
        let unknown: Unknown = asked.waiting.iter().map(|(place, ..)| *place).collect();
        let is_charged = asked.calls.iter().any(|call| call.cost() > 0);
        if unknown.is_empty() || !(is_charged || asked.needs.iter().any(Option::is_some)) {
            return None;
        }
        let (shared, calls, needs) = (Arc::clone(self), asked.calls.clone(), asked.needs.clone());
        Some(Box::pin(async move { shared.look(calls, &unknown, &needs).await }))
    }

    async fn look(self: &Arc<Self>, calls: Calls, unknown: &[usize], needs: &Needs) -> Looked {
        if let Some(saturated) = self.saturated(needs) {
            return Looked::Refused(saturated, calls);
        }
        // Where attempts count, a refused one is charged to its key as well.
        if unknown.iter().any(|place| self.applied[*place].charge_rules.charge_refused) {
            return Looked::Open;
        }
        let peek: Calls = calls.iter().map(|call| call.clone().costing(0)).collect();
        let peeked = match self.backend.decide_at_once(&self.prepared, &peek) {
            Some(decision) => Ok(decision),
            None if unknown.iter().any(|place| matches!(self.applied[*place].keying, Keying::Tiered(_))) => {
                self.backend.decide(&self.prepared, &peek).await
            }
            None => return Looked::Open,
        };
        let decision = match peeked {
            Ok(decision) => decision,
            Err(error) => return self.failed(error, calls),
        };
        let nodes: SmallVec<[(PolicyNode, usize); 8]> = B::set(&self.prepared).tree().collect();
        let known = Known { nodes: &nodes, calls: &calls, statuses: decision.statuses(), unknown };
        if known.refuses(0) != Some(true) {
            return Looked::Open;
        }
        // A peek does not tell how long to wait. Refused, this charges nothing either.
        let calls = known.decisive();
        match self.answer(&calls, needs).await {
            Answer::Failed(error) => self.failed(error, calls),
            Answer::Decided(report) if report.decision().is_admitted() => {
                // Units have become free in between.
                self.give_back(report.decision(), &calls);
                Looked::Open
            }
            answer if self.is_worth_holding(&answer) => Looked::Open,
            answer => Looked::Refused(answer, calls),
        }
    }

    fn failed(&self, error: BackendError, calls: Calls) -> Looked {
        if self.closed(&calls, error.kind()).is_empty() {
            return Looked::Failed(error);
        }
        Looked::Refused(Answer::Failed(error), calls)
    }
}

/// What a peek tells of a composition while some keys are unknown.
struct Known<'a> {
    nodes: &'a [(PolicyNode, usize)],
    calls: &'a [Call],
    statuses: &'a [Status],
    unknown: &'a [usize],
}

impl Known<'_> {
    /// Whether a part of the composition refuses whatever the unknown keys are; `None` if no policy below applies.
    fn refuses(&self, node: usize) -> Option<bool> {
        let below = || members(self.nodes, node).filter_map(|member| self.refuses(member));
        match self.nodes[node].0 {
            PolicyNode::Policy(policy) if self.unknown.contains(&policy) => Some(false),
            PolicyNode::Policy(policy) => {
                let status = self.statuses.get(policy).filter(|status| status.applies())?;
                Some(self.calls[policy].cost() > status.remaining())
            }
            PolicyNode::All => below().reduce(|refused, refuses| refused || refuses),
            PolicyNode::Any(_) => below().reduce(|refused, refuses| refused && refuses),
        }
    }

    /// The calls without those of an `any` that an unknown member may still admit: the others of it are not to blame.
    fn decisive(&self) -> Calls {
        let mut calls: Calls = self.calls.iter().cloned().collect();
        for (node, (kind, end)) in self.nodes.iter().enumerate() {
            let policies = || {
                self.nodes[node..*end].iter().filter_map(|(kind, _)| match kind {
                    PolicyNode::Policy(policy) => Some(*policy),
                    PolicyNode::All | PolicyNode::Any(_) => None,
                })
            };
            let is_open = policies().any(|policy| self.unknown.contains(&policy)) && self.refuses(node) != Some(true);
            if matches!(kind, PolicyNode::Any(_)) && is_open {
                policies().for_each(|policy| calls[policy] = Call::SKIP);
            }
        }
        calls
    }
}
