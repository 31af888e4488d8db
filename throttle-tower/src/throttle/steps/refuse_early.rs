//! Refuses a request before its keys and tiers are looked up, where they cannot change the
//! decision.

use std::sync::Arc;

use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, PolicyNode, PolicySet, Status};

use super::ask::{Asked, Calls};
use super::decide::{self, Decided};
use super::{give_back_unserved, refuse, wait_queue};
use crate::limit::Keying;
use crate::throttle::shared::Shared;

/// What is known of a request before its lookups.
pub(super) enum Early {
    /// The decision depends on the lookups.
    Undecided,
    /// The request is refused whatever they return.
    Refused(Box<Decided>),
    /// The store failed. It is not asked again, because a request waits for it no longer than one
    /// deadline.
    Failed(BackendError),
}

/// Looks at the limits whose keys and tiers are known. `unknown` are the places of the others.
///
/// In memory a look is synchronous. Over a store it is a question of its own, which only lookups of
/// tiers are worth: their results are remembered, so that few requests need one.
pub(super) async fn refuse_early<B: Backend>(
    shared: &Arc<Shared<B>>,
    asked: &Asked,
    unknown: &[usize],
) -> Early {
    let calls = &asked.calls;
    if let Some(saturated) = decide::saturated(shared, &asked.needs) {
        return Early::Refused(Box::new(saturated));
    }
    let needs_key = |policy: &usize| shared.applied[*policy].charge_rules.charge_refused;
    if calls.iter().all(|call| call.cost() == 0) || unknown.iter().any(needs_key) {
        return Early::Undecided;
    }
    let peek: Calls = calls.iter().map(|call| call.clone().costing(0)).collect();
    let is_tiered = |policy: &usize| matches!(shared.applied[*policy].keying, Keying::Tiered(_));
    let peeked = match shared.backend.decide_at_once(&shared.prepared, &peek) {
        Some(decision) => Ok(decision),
        None if unknown.iter().any(is_tiered) => {
            shared.backend.decide(&shared.prepared, &peek).await
        }
        None => return Early::Undecided,
    };
    let decision = match peeked {
        Ok(decision) => decision,
        Err(error) => return failed(shared, error, calls),
    };
    let known = Known {
        set: B::set(&shared.prepared),
        calls,
        statuses: decision.statuses(),
        unknown,
    };
    if known.refuses(0) != Some(true) {
        return Early::Undecided;
    }
    // A peek does not tell how long to wait. Refused, this charges nothing either.
    let decisive = Asked {
        calls: known.decisive(),
        needs: asked.needs.clone(),
    };
    match decide::decide(shared, &decisive).await {
        Decided::Failed(error) => failed(shared, error, calls),
        Decided::Made(decision) if decision.is_admitted() => {
            // Units have become free in between.
            give_back_unserved::refund_all(shared, &decision, &decisive.calls);
            Early::Undecided
        }
        Decided::Made(decision) if wait_queue::may_wait(shared, &decision) => Early::Undecided,
        decided => Early::Refused(Box::new(decided)),
    }
}

fn failed<B: Backend>(shared: &Shared<B>, error: BackendError, calls: &[Call]) -> Early {
    if refuse::closed(shared, calls, &error).is_empty() {
        return Early::Failed(error);
    }
    Early::Refused(Box::new(Decided::Failed(error)))
}

/// What a peek tells of a composition while some keys are unknown.
struct Known<'a> {
    set: &'a PolicySet,
    calls: &'a [Call],
    statuses: &'a [Status],
    unknown: &'a [usize],
}

impl Known<'_> {
    /// Whether a part of the composition refuses whatever the unknown keys are; `None` if no policy
    /// below applies.
    fn refuses(&self, node: usize) -> Option<bool> {
        let below = || {
            self.set
                .members(node)
                .filter_map(|member| self.refuses(member))
        };
        match self.set.node(node) {
            PolicyNode::Policy(policy) if self.unknown.contains(&policy) => Some(false),
            PolicyNode::Policy(policy) => {
                let status = self
                    .statuses
                    .get(policy)
                    .filter(|status| status.is_enforced())?;
                Some(self.calls[policy].cost() > status.remaining())
            }
            PolicyNode::All => below().reduce(|refused, refuses| refused || refuses),
            PolicyNode::Any(_) => below().reduce(|refused, refuses| refused && refuses),
        }
    }

    /// The calls without those of an `any` that an unknown member may still admit, because its
    /// other members are not to blame.
    fn decisive(&self) -> Calls {
        let mut calls: Calls = self.calls.iter().cloned().collect();
        for (node, (kind, end)) in self.set.tree().enumerate() {
            let policies = || {
                self.set
                    .tree()
                    .take(end)
                    .skip(node)
                    .filter_map(|(kind, _)| match kind {
                        PolicyNode::Policy(policy) => Some(policy),
                        PolicyNode::All | PolicyNode::Any(_) => None,
                    })
            };
            let is_open = policies().any(|policy| self.unknown.contains(&policy))
                && self.refuses(node) != Some(true);
            if matches!(kind, PolicyNode::Any(_)) && is_open {
                policies().for_each(|policy| calls[policy] = Call::SKIP);
            }
        }
        calls
    }
}
