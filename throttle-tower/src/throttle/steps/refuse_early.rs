//! Refuses a request before its keys and tiers are looked up, where they cannot change the
//! decision.

use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, PolicyNode, PolicySet, Status};

use super::ask::{Calls, RequestCalls};
use super::decide::{self, DecisionOutcome};
use super::{refuse, wait_queue};
use crate::limit::{KeySource, LimitSettings};
use crate::throttle::shared_layer::SharedLayer;

/// What is known of a request before its lookups.
pub(super) enum Early {
    /// The decision depends on the lookups.
    Undecided,
    /// The request is refused whatever they return. Its calls are those that the decision is about.
    Refused(Box<DecisionOutcome>),
    /// The store failed. It is not asked again, because a request waits for it no longer than one
    /// deadline.
    Failed(BackendError),
}

/// A limit whose key is looked up.
pub(super) struct Unknown {
    pub(super) index: usize,
    /// The call of the key in its last known tier, without a class.
    pub(super) last: Option<Call>,
}

/// Peeks at the limits whose keys and tiers are known.
///
/// A key whose tier is looked up counts in its last known tier. It cannot refuse the request, and
/// it can make the wait longer: a client that has used up its plan, too, is not asked to come back
/// sooner. The wait does not count limits of which no key is known.
///
/// In memory a peek is synchronous. Over a store it is a question of its own, which only lookups of
/// tiers are worth: their results are remembered, so that few requests need one.
pub(super) async fn refuse_early<B: Backend>(
    shared: &Arc<SharedLayer<B>>,
    request: &mut RequestCalls,
    unknown: &[Unknown],
    parts: &Parts,
) -> Early {
    if let Some(full) = decide::saturated(shared, &request.needs) {
        return Early::Refused(Box::new(DecisionOutcome::Saturated(full)));
    }
    let limit = |unknown: &Unknown| &shared.applied[unknown.index];
    let counts_attempts = |unknown| limit(unknown).charge_rules.charge_refused;
    if request.calls.iter().all(|call| call.cost() == 0) || unknown.iter().any(counts_attempts) {
        return Early::Undecided;
    }
    let mut calls: Calls = request.calls.iter().cloned().collect();
    for one in unknown {
        if let Some(last) = one.last.clone() {
            calls[one.index] = limit(one).in_class(last, parts);
        }
    }
    let is_tiered = |unknown| matches!(limit(unknown).key_source, KeySource::Tiered(_));
    let peek = peeking(&calls);
    let peeked = match shared.backend.decide_at_once(&shared.prepared, &peek) {
        Some(decision) => Ok(decision),
        None if unknown.iter().any(is_tiered) => {
            shared.backend.decide(&shared.prepared, &peek).await
        }
        None => return Early::Undecided,
    };
    let decision = match peeked {
        Ok(decision) => decision,
        // The lookup may return parameters that the store does enforce.
        Err(error) if refuse::not_enforced(&error).is_some() => return Early::Undecided,
        Err(error) => return failed(shared, error, &request.calls),
    };
    let known = KnownStatuses {
        set: B::set(&shared.prepared),
        applied: &shared.applied,
        statuses: decision.statuses(),
        unknown,
    };
    if known.refuses(0, Lookups::Admit) != Some(true) {
        return Early::Undecided;
    }
    known.keep_decisive(&mut calls);
    let decisive = RequestCalls {
        calls: peeking(&calls),
        needs: request.needs.clone(),
    };
    match decide::decide(&shared.erased(), &decisive).await {
        DecisionOutcome::Failed(error) => failed(shared, error, &request.calls),
        // Units have become free in between, or the request is held until some are.
        DecisionOutcome::Made(decision)
            if decision.is_admitted() || wait_queue::held_for(shared, &decision).is_some() =>
        {
            Early::Undecided
        }
        decided => {
            request.calls = calls;
            Early::Refused(Box::new(decided))
        }
    }
}

fn peeking(calls: &[Call]) -> Calls {
    calls.iter().cloned().map(Call::peeking).collect()
}

fn failed<B: Backend>(shared: &SharedLayer<B>, error: BackendError, calls: &[Call]) -> Early {
    // The store is healthy. Parameters of the last known tier may have been corrected since.
    if refuse::not_enforced(&error).is_some() {
        return Early::Undecided;
    }
    if refuse::closed(shared, calls, &error).is_empty() {
        return Early::Failed(error);
    }
    Early::Refused(Box::new(DecisionOutcome::Failed(error)))
}

/// What a peek tells of a composition while some keys are looked up.
struct KnownStatuses<'a> {
    set: &'a PolicySet,
    applied: &'a [LimitSettings],
    statuses: &'a [Status],
    unknown: &'a [Unknown],
}

/// What the limits do whose keys are looked up.
#[derive(Clone, Copy)]
enum Lookups {
    Admit,
    /// As in the last known tier; without one, they admit.
    DecideByLast,
}

impl KnownStatuses<'_> {
    fn is_looked_up(&self, index: usize) -> bool {
        self.unknown.iter().any(|unknown| unknown.index == index)
    }

    /// Whether a policy that applies refuses.
    fn violates(&self, index: usize) -> bool {
        self.statuses[index].retry_after() != Some(Duration::ZERO)
    }

    /// Whether a part of the composition refuses; `None` if no policy below applies.
    fn refuses(&self, node: usize, lookups: Lookups) -> Option<bool> {
        let below = || {
            self.set
                .members(node)
                .filter_map(|member| self.refuses(member, lookups))
        };
        match self.set.node(node) {
            PolicyNode::Policy(index) if self.is_looked_up(index) => {
                Some(matches!(lookups, Lookups::DecideByLast) && self.violates(index))
            }
            PolicyNode::Policy(index) => self.statuses[index]
                .is_enforced()
                .then(|| self.violates(index)),
            PolicyNode::All => below().reduce(|refused, refuses| refused || refuses),
            PolicyNode::Any(_) => below().reduce(|refused, refuses| refused && refuses),
        }
    }

    /// Skips what is not to blame: a key that is looked up and not used up in its last known tier,
    /// and the members of an `any` that such a key may still admit. Of these, limits for which
    /// attempts count stay while they admit, because a refused attempt is charged to them.
    fn keep_decisive(&self, calls: &mut [Call]) {
        for unknown in self.unknown {
            if !self.violates(unknown.index) {
                calls[unknown.index] = Call::SKIP;
            }
        }
        for (node, (kind, end)) in self.set.tree().enumerate() {
            let below = self.set.tree().take(end).skip(node);
            let indices = below.filter_map(|(kind, _)| match kind {
                PolicyNode::Policy(index) => Some(index),
                PolicyNode::All | PolicyNode::Any(_) => None,
            });
            let indices: SmallVec<[usize; 8]> = indices.collect();
            let is_open = indices.iter().any(|index| self.is_looked_up(*index))
                && self.refuses(node, Lookups::DecideByLast) != Some(true);
            if !matches!(kind, PolicyNode::Any(_)) || !is_open {
                continue;
            }
            for index in indices {
                let counts_attempts = self.applied[index].charge_rules.charge_refused;
                if !counts_attempts || self.violates(index) {
                    calls[index] = Call::SKIP;
                }
            }
        }
    }
}
