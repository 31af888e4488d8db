//! Decides one request against every policy of a set: asks all of them, then charges as the tree
//! says, or nothing.

use smallvec::SmallVec;

use super::policy_set::{AnyCharge, PolicyNode, PolicySet};
use crate::algorithm::{Cell, NEVER, State, StateCharge};
use crate::call::Call;
use crate::decision::{Decision, Status, Summary};
use crate::policy::Policy;
use crate::time::Timestamp;

/// One policy's part in a decision: the cell of its key, and what the request asks of it.
struct PolicyCell<'a> {
    /// The policy's index in the set.
    index: usize,
    cell: Cell<'a>,
    is_peek: bool,
}

impl Cell<'_> {
    /// Asks for a cost as if the request was decided by this policy alone.
    pub(crate) fn ask(&self, cost: u64, status: &mut Status) {
        status.ask(self.wait(cost), cost);
        status.excepted = self.excepted();
    }

    /// Charges what the status has left to be charged, unless it is a peek. Returns the µs to wait
    /// before going on.
    pub(crate) fn charge(&mut self, is_peek: bool, status: &mut Status) -> u64 {
        let delay = match status.taken.cost {
            0 => 0,
            cost if is_peek => self.clone().take(cost).0,
            cost => {
                let (delay, taken) = self.take(cost);
                status.taken = taken;
                delay
            }
        };
        status.standing = self.standing();
        delay
    }
}

/// Withdraws the charges that the set does not make, once every policy has been asked. Until then
/// each status holds the charge that its policy would make alone.
#[inline(always)]
pub(crate) fn conclude(set: &PolicySet, summary: &mut Summary, statuses: &mut [Status]) {
    if !set.is_plain() {
        if set.has_audited() {
            set.mark_audited(statuses);
            (summary.wait, summary.binding) = (0, None);
        }
        if let Some(binding) = set.longest_wait(0, statuses) {
            (summary.wait, summary.binding) = (statuses[binding].wait, Some(binding));
        }
    }
    if summary.wait > 0 {
        statuses
            .iter_mut()
            .for_each(|status| status.taken = StateCharge::default());
    }
}

/// Sums up, once every policy has been charged what its status says.
#[inline(always)]
pub(crate) fn sum_up(set: &PolicySet, summary: &mut Summary, statuses: &mut [Status]) {
    if !set.is_plain() {
        if set.has_audited() {
            summary.reset = set.mark_audited(statuses);
            summary.remaining = u64::MAX;
            summary.binding = summary.binding.filter(|_| summary.wait > 0);
        }
        if let Some(standing) = set.standing(0, statuses) {
            summary.remaining = standing.remaining;
            if summary.wait == 0 {
                summary.binding = standing.binding;
            }
        }
    }
}

/// Where a subtree stands after the decision.
#[derive(Clone, Copy)]
struct SubtreeStanding {
    remaining: u64,
    binding: Option<usize>,
}

impl PolicySet {
    /// The policy that the wait of an `all` or `any` comes from; `None` when no enforced policy
    /// below applies. Withdraws what an `any` does not charge. Below an `any` that admits, no
    /// policy is violated.
    fn longest_wait(&self, node: usize, statuses: &mut [Status]) -> Option<usize> {
        let (kind, mut found, mut refuses) = (self.node(node), None::<(usize, u64)>, false);
        for member in self.members(node) {
            let next = match self.node(member) {
                PolicyNode::Policy(policy) => {
                    Some(policy).filter(|policy| statuses[*policy].is_enforced())
                }
                PolicyNode::All | PolicyNode::Any(_) => self.longest_wait(member, statuses),
            };
            let Some(next) = next else { continue };
            let (wait, before) = (statuses[next].wait, found.map(|(_, wait)| wait));
            refuses |= wait > 0;
            let is_ahead = match kind {
                PolicyNode::Any(_) => before.is_none_or(|before| wait < before),
                _ => before.is_none_or(|before| wait > before),
            };
            if let PolicyNode::Any(rule) = kind
                && (wait > 0 || (rule == AnyCharge::First && before == Some(0)))
            {
                match self.node(member) {
                    PolicyNode::Policy(policy) => statuses[policy].taken = StateCharge::default(),
                    _ => self
                        .policies_below(member)
                        .for_each(|policy| statuses[policy].taken = StateCharge::default()),
                }
            }
            if is_ahead {
                found = Some((next, wait));
            }
        }
        if refuses && matches!(kind, PolicyNode::Any(_)) && found.is_some_and(|(_, wait)| wait == 0)
        {
            self.policies_below(node)
                .for_each(|policy| statuses[policy].violated = false);
        }
        found.map(|(policy, _)| policy)
    }

    /// Where an `all` or `any` stands; `None` when no enforced policy below applies.
    fn standing(&self, node: usize, statuses: &[Status]) -> Option<SubtreeStanding> {
        let is_any = matches!(self.node(node), PolicyNode::Any(_));
        let mut found: Option<SubtreeStanding> = None;
        for member in self.members(node) {
            let next = match self.node(member) {
                PolicyNode::Policy(policy) => Some(&statuses[policy])
                    .filter(|status| status.is_enforced())
                    .map(|status| SubtreeStanding {
                        remaining: status.standing.remaining,
                        binding: Some(policy),
                    }),
                PolicyNode::All | PolicyNode::Any(_) => self.standing(member, statuses),
            };
            let Some(mut next) = next else { continue };
            if is_any {
                // The first member that was charged binds.
                next.binding = next
                    .binding
                    .filter(|binding| statuses[*binding].taken.cost > 0);
            }
            found = Some(match found {
                None => next,
                Some(found) if is_any => SubtreeStanding {
                    remaining: found.remaining.max(next.remaining),
                    binding: found.binding.or(next.binding),
                },
                Some(found) if next.remaining < found.remaining => next,
                Some(found) => found,
            });
        }
        found
    }

    /// Tells the statuses of audited policies from those of others. Returns the reset of the
    /// others.
    fn mark_audited(&self, statuses: &mut [Status]) -> u64 {
        let mut reset = 0;
        for (policy, status) in self.policies().iter().zip(statuses) {
            match policy.is_audited() {
                true => status.mark_audited(),
                false => reset = reset.max(status.standing.reset),
            }
        }
        reset
    }
}

const _: () = assert!(
    NEVER == u64::MAX,
    "the longest wait must compare greater than every other"
);

impl PolicySet {
    /// Decides one request on states that the caller holds exclusively. It charges what the tree
    /// says, or nothing.
    ///
    /// A backend that can lock its states during a decision needs no more than this function.
    /// `states` and `calls` stand in the order of the set's policies; a policy without a state or
    /// without a call is skipped. A key that was never used has a [fresh](crate::Algorithm::fresh)
    /// state that [names](State::written_under) its parameters, so that every tier reads it as
    /// unused. A state that changes is replaced in place.
    ///
    /// ```
    /// use throttle_core::{FixedWindow, Gcra, Key, PolicySet, Policy, Rate, PolicyTree, Timestamp};
    /// use throttle_core::backend::Call;
    ///
    /// let fast = Policy::new("fast", Gcra::new(Rate::per_second(10)).burst(5))?;
    /// let slow = Policy::new("slow", FixedWindow::new(Rate::per_minute(3)))?;
    /// let set = PolicySet::new(PolicyTree::All(vec![fast.into(), slow.into()]))?;
    ///
    /// let unused = |policy: &Policy| {
    ///     let algorithm = policy.algorithm();
    ///     algorithm.fresh().written_under(algorithm)
    /// };
    /// let mut states: Vec<_> = set.policies().iter().map(unused).collect();
    /// let calls = vec![Call::from(Key::from("me")); 2];
    /// for _ in 0..3 {
    ///     assert!(set.decide(&mut states, Timestamp::EPOCH, &calls).is_admitted());
    /// }
    /// let before = states.clone();
    /// let refused = set.decide(&mut states, Timestamp::EPOCH, &calls);
    /// assert_eq!(refused.binding(), Some(1));
    /// assert_eq!(states, before, "a refused request charges nothing");
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn decide(&self, states: &mut [State], now: Timestamp, calls: &[Call]) -> Decision {
        self.decide_states(states, |_| now, calls)
    }

    /// Decides like [`decide`](Self::decide), with a separate instant for each state, for states on
    /// different servers.
    ///
    /// # Panics
    ///
    /// If there are fewer instants than policies.
    #[must_use]
    pub fn decide_each(
        &self,
        states: &mut [State],
        times: &[Timestamp],
        calls: &[Call],
    ) -> Decision {
        assert!(
            times.len() >= self.policies().len(),
            "an instant for every policy"
        );
        self.decide_states(states, |policy| times[policy], calls)
    }

    fn decide_states(
        &self,
        states: &mut [State],
        at: impl Fn(usize) -> Timestamp,
        calls: &[Call],
    ) -> Decision {
        let policies = self.policies();
        let by = |index: usize| {
            let call = calls.get(index).filter(|call| call.key.is_some())?;
            Some((call, call.parameters(&policies[index])))
        };
        let mut decision = Decision::not_limited(policies.len());
        let (summary, statuses) = decision.parts_mut();
        let mut cells: SmallVec<[PolicyCell<'_>; 3]> = SmallVec::new();
        for (index, policy) in policies.iter().enumerate() {
            let (Some((call, by)), Some(state)) = (by(index), states.get_mut(index)) else {
                continue;
            };
            let mut cell = Cell::new(by, state.writer(), state.take(), at(index));
            cell.leave(call.reserve());
            let status = &mut statuses[index];
            cell.ask(call.cost, status);
            status.tier = match call.own {
                Some(_) => Policy::OWN,
                None => policy.effective_tier(call.tier()),
            };
            summary.ask(index, status);
            cells.push(PolicyCell {
                index,
                cell,
                is_peek: call.is_peek(),
            });
        }
        conclude(self, summary, statuses);
        for PolicyCell {
            index,
            cell,
            is_peek,
        } in &mut cells
        {
            let status = &mut statuses[*index];
            let delay = cell.charge(*is_peek, status);
            // An audited policy delays no request.
            if !policies[*index].is_audited() {
                summary.delay = summary.delay.max(delay);
            }
            summary.answer(*index, status);
        }
        sum_up(self, summary, statuses);
        for PolicyCell {
            index,
            cell,
            is_peek,
        } in cells
        {
            // Only here: until now the charge says which member of an `any` is chosen.
            if is_peek {
                statuses[index].taken = StateCharge::default();
            }
            if let Some((_, by)) = by(index) {
                states[index].put(cell, by, statuses[index].charged() > 0);
            }
        }
        decision.set_form();
        decision
    }
}
