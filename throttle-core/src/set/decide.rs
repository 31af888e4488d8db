//! Decides one request against every policy of a set: asks all of them, then charges as the tree says, or nothing.

use smallvec::SmallVec;

use super::policy_set::{AnyCharge, PolicyNode, PolicySet};
use crate::algorithm::{Algorithm, Cell, NEVER, State};
use crate::call::Call;
use crate::decision::{Decision, Status, Statuses, Summary};
use crate::policy::Policy;
use crate::time::Timestamp;

/// One policy's part in a decision: the cell of its key, and what the request asks of it.
pub(crate) struct PolicyCell<'a> {
    pub(crate) cell: Cell<'a>,
    /// 0 peeks.
    pub(crate) cost: u64,
    pub(crate) tier: u8,
    /// Whether the key shares an overflow bucket.
    pub(crate) overflow: bool,
}

/// Decides on cells that stand in the order of the set's policies; `None` for a policy that does not apply.
pub(crate) fn decide(set: &PolicySet, cells: &mut [Option<PolicyCell<'_>>]) -> Decision {
    let waits: SmallVec<[Option<u64>; 4]> =
        cells.iter().map(|policy| policy.as_ref().map(|policy| policy.cell.wait(policy.cost))).collect();
    let tree = Tree { set, waits: &waits };
    let asked = tree.wait(0);
    let wait = asked.map_or(0, |asked| asked.wait);
    let mut statuses: Statuses = SmallVec::from_elem(Status::SKIPPED, waits.len());
    let mut delay = 0;
    if wait == 0 {
        tree.each_charged(0, &mut |place| {
            if let Some(policy) = cells[place].as_mut().filter(|policy| policy.cost > 0) {
                let (delayed, taken) = policy.cell.take(policy.cost);
                statuses[place].taken = taken;
                delay = delay.max(delayed);
            }
        });
    } else {
        tree.each_violated(0, &mut |place| statuses[place].violated = true);
    }
    for ((status, policy), wait) in statuses.iter_mut().zip(&*cells).zip(&waits) {
        if let (Some(policy), Some(wait)) = (policy, wait) {
            (status.standing, status.wait, status.applies) = (policy.cell.standing(), *wait, true);
            (status.tier, status.overflow) = (policy.tier, policy.overflow);
        }
    }
    let (mut remaining, mut reset, mut binding) = (u64::MAX, 0, None);
    if let Some(summary) = tree.summary(0, &statuses) {
        (remaining, reset) = (summary.remaining, summary.reset);
        binding = if wait == 0 { summary.binding } else { asked.map(|asked| asked.binding) };
    }
    Decision::of_many(Summary { wait, remaining, reset, delay, binding }, statuses)
}

struct Tree<'a> {
    set: &'a PolicySet,
    /// µs until each policy admits the request; `None` for a policy that does not apply.
    waits: &'a [Option<u64>],
}

/// µs until a subtree admits the request.
#[derive(Clone, Copy)]
struct SubtreeWait {
    wait: u64,
    /// The policy that this wait comes from.
    binding: usize,
}

/// Where a subtree stands after the decision.
#[derive(Clone, Copy)]
struct SubtreeStanding {
    remaining: u64,
    reset: u64,
    binding: Option<usize>,
}

impl Tree<'_> {
    /// `None` when no policy below applies.
    fn wait(&self, node: usize) -> Option<SubtreeWait> {
        match self.set.node(node) {
            PolicyNode::Policy(policy) => self.waits[policy].map(|wait| SubtreeWait { wait, binding: policy }),
            // The longest wait; the first of equals decides. NEVER is the longest of all.
            PolicyNode::All => self
                .set
                .members(node)
                .filter_map(|member| self.wait(member))
                .reduce(|worst, next| if next.wait > worst.wait { next } else { worst }),
            PolicyNode::Any(_) => self
                .set
                .members(node)
                .filter_map(|member| self.wait(member))
                .reduce(|best, next| if next.wait < best.wait { next } else { best }),
        }
    }

    /// Visits the policies that an admitted request is charged to.
    fn each_charged(&self, node: usize, charge: &mut impl FnMut(usize)) {
        match self.set.node(node) {
            PolicyNode::Policy(policy) => charge(policy),
            PolicyNode::All => self.set.members(node).for_each(|member| self.each_charged(member, charge)),
            PolicyNode::Any(rule) => {
                let most = if rule == AnyCharge::First { 1 } else { usize::MAX };
                let admitting = self.set.members(node).filter(|member| self.admits(*member));
                admitting.take(most).for_each(|member| self.each_charged(member, charge));
            }
        }
    }

    /// Visits the policies that cause a refusal: those below a node that refuses.
    fn each_violated(&self, node: usize, violated: &mut impl FnMut(usize)) {
        if self.wait(node).is_none_or(|asked| asked.wait == 0) {
            return;
        }
        match self.set.node(node) {
            PolicyNode::Policy(policy) => violated(policy),
            PolicyNode::All | PolicyNode::Any(_) => {
                self.set.members(node).for_each(|member| self.each_violated(member, violated));
            }
        }
    }

    fn admits(&self, node: usize) -> bool {
        self.wait(node).is_some_and(|asked| asked.wait == 0)
    }

    fn summary(&self, node: usize, statuses: &[Status]) -> Option<SubtreeStanding> {
        let below = self.set.members(node).filter_map(|member| Some((member, self.summary(member, statuses)?)));
        match self.set.node(node) {
            PolicyNode::Policy(policy) => self.waits[policy].map(|_| {
                let standing = statuses[policy].standing;
                SubtreeStanding { remaining: standing.remaining, reset: standing.reset, binding: Some(policy) }
            }),
            PolicyNode::All => below.map(|(_, standing)| standing).reduce(|least, next| SubtreeStanding {
                reset: least.reset.max(next.reset),
                ..if next.remaining < least.remaining { next } else { least }
            }),
            PolicyNode::Any(_) => {
                let mut payers = below.map(|(member, standing)| {
                    let paid = |policy: &usize| statuses[*policy].taken.cost > 0;
                    let payer = standing.binding.filter(paid).filter(|_| self.admits(member));
                    SubtreeStanding { binding: payer, ..standing }
                });
                let first = payers.next()?;
                Some(payers.fold(first, |most, next| SubtreeStanding {
                    remaining: most.remaining.max(next.remaining),
                    reset: most.reset.max(next.reset),
                    binding: most.binding.or(next.binding),
                }))
            }
        }
    }
}

const _: () = assert!(NEVER == u64::MAX, "the longest wait must compare greater than every other");

impl PolicySet {
    /// Decides one request on states that the caller holds exclusively. It charges what the tree says, or nothing.
    ///
    /// A backend that can lock its states during a decision needs no more than this function. `states` and `calls`
    /// stand in the order of the set's policies; a policy without a state or without a call is skipped. A state that
    /// changes is replaced in place.
    ///
    /// ```
    /// use throttle_core::{FixedWindow, Gcra, Key, PolicySet, Policy, Rate, PolicyTree, Timestamp};
    /// use throttle_core::backend::Call;
    ///
    /// let fast = Policy::new("fast", Gcra::new(Rate::per_second(10)).burst(5))?;
    /// let slow = Policy::new("slow", FixedWindow::new(Rate::per_minute(3)))?;
    /// let set = PolicySet::new(PolicyTree::All(vec![fast.into(), slow.into()]))?;
    ///
    /// let mut states: Vec<_> = set.policies().iter().map(|p| p.algorithm().fresh()).collect();
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

    /// Decides like [`decide`](Self::decide), with a separate instant for each state, for states on different servers.
    ///
    /// # Panics
    ///
    /// If there are fewer instants than policies.
    #[must_use]
    pub fn decide_each(&self, states: &mut [State], times: &[Timestamp], calls: &[Call]) -> Decision {
        assert!(times.len() >= self.policies().len(), "an instant for every policy");
        self.decide_states(states, |policy| times[policy], calls)
    }

    fn decide_states(&self, states: &mut [State], at: impl Fn(usize) -> Timestamp, calls: &[Call]) -> Decision {
        let policies = self.policies();
        let by = |place: usize| {
            let call = calls.get(place).filter(|call| call.key.is_some())?;
            Some((call, call.parameters(&policies[place])))
        };
        let writers: SmallVec<[Algorithm; 3]> = (states.iter().zip(policies).enumerate())
            .map(|(place, (state, policy))| state.writer(by(place).map_or(policy.algorithm(), |(_, by)| by)))
            .collect();
        let cells = policies.iter().enumerate().map(|(place, policy)| {
            let (call, by) = by(place)?;
            let cell = Cell::new(by, &writers[place], states.get_mut(place)?.take(), at(place));
            let tier = if call.own.is_some() { Policy::OWN } else { policy.effective_tier(call.tier) };
            Some(PolicyCell { cell, cost: call.cost, tier, overflow: false })
        });
        let mut cells: SmallVec<[_; 3]> = cells.collect();
        let decision = decide(self, &mut cells);
        for (place, ((state, cell), status)) in states.iter_mut().zip(cells).zip(decision.statuses()).enumerate() {
            if let (Some(PolicyCell { cell, .. }), Some((_, by))) = (cell, by(place)) {
                state.put(cell, by, status.charged() > 0);
            }
        }
        decision
    }
}
