use std::sync::Arc;

use smallvec::SmallVec;

use super::rule::{AnyCharge, Node, PolicyNode, PolicySet, members};
use crate::algorithm::{Algorithm, Carried, NEVER, Standing, State, Taken};
use crate::backend::Call;
use crate::decision::{Decision, Status, Statuses, Summary};
use crate::policy::Policy;
use crate::time::Timestamp;

/// The states a set decides about, by the policy's place in the set. Whoever implements it holds them still meanwhile:
/// between the first question and the last charge nobody else may change one.
pub(crate) trait Members {
    /// What the request asks of a policy; `None` when the policy does not apply to it.
    fn ask(&mut self, policy: usize) -> Option<Member>;
    /// Charges what was asked.
    fn take(&mut self, policy: usize) -> (u64, Taken);
    /// Where the policy stands now, and whether it shares an overflow bucket.
    fn standing(&mut self, policy: usize) -> (Standing, bool);
}

#[derive(Clone, Copy)]
pub(crate) struct Member {
    /// 0 looks without using.
    pub(crate) cost: u64,
    /// µs until the cost is admitted: 0 for now.
    pub(crate) wait: u64,
    pub(crate) tier: u8,
}

/// Asks every policy, then charges what the composition says, or nothing.
pub(crate) fn decide(set: &PolicySet, states: &mut impl Members) -> Decision {
    let asked: SmallVec<[Option<Member>; 3]> = (0..set.policies().len()).map(|policy| states.ask(policy)).collect();
    let tree = Tree { nodes: set.nodes(), asked: &asked };
    let answer = tree.answer(0);
    let wait = answer.map_or(0, |answer| answer.wait);
    let mut statuses: Statuses = SmallVec::from_elem(Status::SKIPPED, asked.len());
    let mut delay = 0;
    if wait == 0 {
        tree.each_charged(0, &mut |policy| {
            let (delayed, taken) = states.take(policy);
            statuses[policy].taken = taken;
            delay = delay.max(delayed);
        });
    } else {
        tree.each_violated(0, &mut |policy| statuses[policy].violated = true);
    }
    for (policy, member) in asked.iter().enumerate() {
        if let Some(member) = member {
            let (standing, overflow) = states.standing(policy);
            let status = &mut statuses[policy];
            (status.standing, status.overflow) = (standing, overflow);
            (status.wait, status.applies, status.tier) = (member.wait, true, member.tier);
        }
    }
    let (mut remaining, mut reset, mut binding) = (u64::MAX, 0, None);
    if let Some(summary) = tree.summary(0, &statuses) {
        (remaining, reset) = (summary.remaining, summary.reset);
        binding = if wait == 0 { summary.binding } else { answer.map(|answer| answer.binding) };
    }
    Decision::of_many(Summary { wait, remaining, reset, delay, binding }, statuses)
}

struct Tree<'a> {
    nodes: &'a [Node],
    asked: &'a [Option<Member>],
}

/// What a subtree says before anything is charged.
#[derive(Clone, Copy)]
struct Answer {
    wait: u64,
    /// The policy that decided it.
    binding: usize,
}

/// What a subtree says afterwards.
#[derive(Clone, Copy)]
struct Below {
    remaining: u64,
    reset: u64,
    binding: Option<usize>,
}

impl Tree<'_> {
    fn members(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        members(self.nodes, node)
    }

    /// `None` when no policy below applies.
    fn answer(&self, node: usize) -> Option<Answer> {
        match self.nodes[node].kind {
            PolicyNode::Policy(policy) => {
                self.asked[policy].map(|member| Answer { wait: member.wait, binding: policy })
            }
            // The longest wait; the first of equals decides. NEVER is the longest of all.
            PolicyNode::All => self
                .members(node)
                .filter_map(|m| self.answer(m))
                .reduce(|worst, next| if next.wait > worst.wait { next } else { worst }),
            PolicyNode::Any(_) => self
                .members(node)
                .filter_map(|m| self.answer(m))
                .reduce(|best, next| if next.wait < best.wait { next } else { best }),
        }
    }

    /// Visits the policies that an admitted request is charged to.
    fn each_charged(&self, node: usize, charge: &mut impl FnMut(usize)) {
        match self.nodes[node].kind {
            PolicyNode::Policy(policy) => {
                if self.asked[policy].is_some_and(|member| member.cost > 0) {
                    charge(policy);
                }
            }
            PolicyNode::All => self.members(node).for_each(|member| self.each_charged(member, charge)),
            PolicyNode::Any(whom) => {
                let most = if whom == AnyCharge::First { 1 } else { usize::MAX };
                self.admitting(node).take(most).for_each(|member| self.each_charged(member, charge));
            }
        }
    }

    /// Visits the policies that a refusal is due to: those below a member that refuses, and of an `any` all of them.
    fn each_violated(&self, node: usize, blame: &mut impl FnMut(usize)) {
        if self.answer(node).is_none_or(|answer| answer.wait == 0) {
            return;
        }
        match self.nodes[node].kind {
            PolicyNode::Policy(policy) => blame(policy),
            PolicyNode::All | PolicyNode::Any(_) => {
                self.members(node).for_each(|member| self.each_violated(member, blame))
            }
        }
    }

    fn admitting(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.members(node).filter(|member| self.admits(*member))
    }

    fn admits(&self, node: usize) -> bool {
        self.answer(node).is_some_and(|answer| answer.wait == 0)
    }

    fn summary(&self, node: usize, statuses: &[Status]) -> Option<Below> {
        let below = || self.members(node).filter_map(|member| self.summary(member, statuses));
        match self.nodes[node].kind {
            PolicyNode::Policy(policy) => self.asked[policy].map(|_| {
                let Standing { remaining, reset, .. } = statuses[policy].standing;
                Below { remaining, reset, binding: Some(policy) }
            }),
            PolicyNode::All => below().reduce(|least, next| Below {
                reset: least.reset.max(next.reset),
                ..if next.remaining < least.remaining { next } else { least }
            }),
            PolicyNode::Any(_) => {
                // Each member is asked once: asking again for the payer would double the work at every level.
                let mut summary: Option<Below> = None;
                for member in self.members(node) {
                    let Some(next) = self.summary(member, statuses) else { continue };
                    let paid = |policy: &usize| statuses[*policy].taken.cost > 0;
                    let payer = next.binding.filter(paid).filter(|_| self.admits(member));
                    summary = Some(match summary {
                        None => Below { binding: payer, ..next },
                        Some(most) => Below {
                            remaining: most.remaining.max(next.remaining),
                            reset: most.reset.max(next.reset),
                            binding: most.binding.or(payer),
                        },
                    });
                }
                summary
            }
        }
    }
}

const _: () = assert!(NEVER == u64::MAX, "the longest wait must compare greater than every other");

impl PolicySet {
    /// Decides about one request on states that the caller holds still: all that the rule says is charged, or nothing.
    ///
    /// The pure heart of every backend. `states` and `calls` stand in the order of the set's policies; policies without
    /// both are skipped. A state that changes is replaced in place.
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
    /// let denied = set.decide(&mut states, Timestamp::EPOCH, &calls);
    /// assert_eq!(denied.binding(), Some(1));
    /// assert_eq!(states, before, "a denied request charges nobody");
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub fn decide(&self, states: &mut [State], now: Timestamp, calls: &[Call]) -> Decision {
        decide(self, &mut Held { set: self, states, calls, now: Now::Everywhere(now) })
    }

    /// The same where each policy's state is at an instant of its own, as states are that different servers hold.
    ///
    /// # Panics
    ///
    /// If there are fewer instants than policies.
    #[must_use]
    pub fn decide_each(&self, states: &mut [State], times: &[Timestamp], calls: &[Call]) -> Decision {
        assert!(times.len() >= self.policies().len(), "an instant for every policy");
        decide(self, &mut Held { set: self, states, calls, now: Now::Each(times) })
    }
}

enum Now<'a> {
    Everywhere(Timestamp),
    Each(&'a [Timestamp]),
}

impl Now<'_> {
    fn of(&self, policy: usize) -> Timestamp {
        match self {
            Self::Everywhere(now) => *now,
            Self::Each(times) => times[policy],
        }
    }
}

/// States in the caller's hands.
struct Held<'a> {
    set: &'a PolicySet,
    states: &'a mut [State],
    calls: &'a [Call],
    now: Now<'a>,
}

impl Held<'_> {
    fn policy(&self, policy: usize) -> &Policy {
        &self.set.policies()[policy]
    }

    /// The algorithm of the call's tier.
    fn algorithm(&self, policy: usize) -> &Algorithm {
        self.policy(policy).tier(self.calls.get(policy).map_or(0, |call| call.tier)).algorithm()
    }

    /// The state of a policy with tiers, if other parameters wrote it than those of the call's tier.
    fn carried(&self, policy: usize) -> Option<Carried<'_>> {
        let (of, new, state) = (self.policy(policy), self.algorithm(policy), self.states.get(policy)?);
        let old = state.under.as_deref().unwrap_or(of.algorithm());
        let foreign = of.is_tiered() && !old.is_alike(new);
        foreign.then(|| Carried { new, old, rule: of.carry(), repr: &state.repr, clipped: state.clipped })
    }
}

impl Members for Held<'_> {
    fn ask(&mut self, policy: usize) -> Option<Member> {
        let call = self.calls.get(policy).filter(|call| call.key.is_some())?;
        let (state, now) = (self.states.get(policy)?, self.now.of(policy));
        let wait = match self.carried(policy) {
            Some(carried) => carried.wait(now, call.cost),
            None => self.algorithm(policy).wait(&state.repr, now, call.cost),
        };
        Some(Member { cost: call.cost, wait, tier: self.policy(policy).effective_tier(call.tier) })
    }

    fn take(&mut self, policy: usize) -> (u64, Taken) {
        let (algorithm, now) = (*self.algorithm(policy), self.now.of(policy));
        if let Some((repr, clipped)) = self.carried(policy).map(|carried| carried.start(now)) {
            let first = self.policy(policy).algorithm().is_alike(&algorithm);
            let under = if first { None } else { Some(Arc::new(algorithm)) };
            self.states[policy] = State { repr, clipped, under };
        }
        let state = &mut self.states[policy];
        state.clipped = algorithm.still_clipped(&state.repr, state.clipped, now);
        algorithm.take(&mut state.repr, now, self.calls[policy].cost)
    }

    fn standing(&mut self, policy: usize) -> (Standing, bool) {
        let now = self.now.of(policy);
        let standing = match self.carried(policy) {
            Some(carried) => carried.standing(now),
            None => self.algorithm(policy).standing(&self.states[policy].repr, now),
        };
        (standing, false)
    }
}
