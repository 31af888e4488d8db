//! The life of one key whose limit changes: requests under some limits of one name, settlements and time in any order,
//! on several machines, each compared with the reference in every field of every decision.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Decision, Key, ManualClock, MemoryBackend, MemorySet, PolicySet, Timestamp};

use super::machines::call;
use super::plans::Plan;
use super::reference::{Paid, Reference, told};
use super::spec::{Kind, Leaf, Spec, TODAY, Tree};
use super::strategies::{realistic, small};

/// Something that decides about one key by any of some limits.
pub(crate) trait Changing {
    fn decide(&mut self, limit: usize, t: i64, calls: &[Call; 1]) -> Decision;
    fn settle(&mut self, limit: usize, t: i64, receipt: Receipt);
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) limit: usize,
    /// In 2^32nds of what the limit holds; small and large amounts, 0 and one too many.
    pub(crate) cost: (u8, u32),
    /// In 2^32nds of the longest step.
    pub(crate) ahead: (u8, u32),
    /// Settles this one of the charges instead, with this share of twice the cost.
    pub(crate) settles: Option<(u8, u32)>,
}

pub(crate) fn steps(most: usize, settles: bool) -> impl Strategy<Value = Vec<Step>> {
    let settled = prop::option::weighted(0.25, any::<(u8, u32)>()).prop_map(move |settled| settled.filter(|_| settles));
    let step = (any::<usize>(), any::<(u8, u32)>(), any::<(u8, u32)>(), settled);
    let step = step.prop_map(|(limit, cost, ahead, settles)| Step { limit, cost, ahead, settles });
    vec(step, 1..most)
}

/// Two to four limits of one kind.
pub(crate) fn alike() -> impl Strategy<Value = Vec<Spec>> {
    let kind = select(Kind::ALL.to_vec());
    kind.prop_flat_map(|kind| vec(prop_oneof![3 => small(kind), 1 => realistic(kind)], 2..5))
}

/// Two to four limits of any kinds.
pub(crate) fn mixed() -> impl Strategy<Value = Vec<Spec>> {
    vec(select(Kind::ALL.to_vec()).prop_flat_map(|kind| prop_oneof![3 => small(kind), 1 => realistic(kind)]), 2..5)
}

impl Step {
    fn units(&self, capacity: u64) -> u64 {
        match self.cost.0 % 16 {
            0 | 1 => 0,
            2 => capacity,
            3 => capacity + 1,
            4..=7 => 1 + part(capacity, self.cost.1),
            _ => 1 + u64::from(self.cost.1) % 3,
        }
    }

    fn micros(&self, wait: u64, step: u64) -> u64 {
        match self.ahead.0 % 10 {
            0..=2 => 0,
            3 => 1,
            4 => wait,
            5 => wait.saturating_sub(1),
            6 => part(20 * step, self.ahead.1),
            _ => part(step, self.ahead.1),
        }
    }
}

fn part(whole: u64, part: u32) -> u64 {
    ((u128::from(whole) * u128::from(part)) >> 32) as u64
}

/// Up to here, instants and what is added to them are exact in a double.
const FAR: i64 = 1 << 52;

/// Returns how many decisions were compared.
pub(crate) fn live(
    limits: &[Spec],
    steps: &[Step],
    key: &Key,
    machines: &mut [&mut dyn Changing],
) -> Result<usize, TestCaseError> {
    let mut reference = Reference::new(&Tree::Leaf(Plan::of(limits.to_vec())));
    let longest = limits.iter().map(Spec::step).max().unwrap_or(1).unsigned_abs();
    let (mut now, mut wait, mut compared) = (TODAY, 0, 0);
    let mut open: Vec<(usize, Vec<Receipt>, Paid)> = Vec::new();
    for step in steps {
        now = (now + step.micros(wait, longest).min(1 << 49) as i64).min(FAR);
        if let Some((pick, share)) = step.settles.filter(|_| !open.is_empty()) {
            let (limit, receipts, paid) = open.swap_remove(usize::from(pick) % open.len());
            let actual = part(2 * paid.cost as u64 + 1, share);
            reference.settle(now, 0, paid, actual);
            for (machine, receipt) in machines.iter_mut().zip(receipts) {
                machine.settle(limit, now, receipt.actual(actual));
            }
        }
        let limit = step.limit % limits.len();
        let cost = if step.settles.is_some() { 0 } else { step.units(limits[limit].algorithm().capacity()) };
        let (mut expected, paid) = reference.decide_in(now, &[Some(cost)], &[limit as u8]);
        // Each limit is a policy without tiers.
        expected.members.iter_mut().flatten().for_each(|member| member.tier = 0);
        let calls = [call(key, Some(cost))];
        let mut receipts = Vec::new();
        for (place, machine) in machines.iter_mut().enumerate() {
            let decision = machine.decide(limit, now, &calls);
            prop_assert_eq!(&told(&decision), &expected, "machine {} at {}: {} of limit {}", place, now, cost, limit);
            receipts.extend(Receipt::of(&decision, &calls));
        }
        wait = expected.retry.filter(|wait| *wait > 0).unwrap_or(expected.reset);
        open.extend(paid.into_iter().map(|(_, paid)| (limit, std::mem::take(&mut receipts), paid)));
        compared += machines.len();
    }
    Ok(compared)
}

pub(crate) fn check(result: Result<usize, TestCaseError>, count: &std::cell::Cell<usize>) -> TestCaseResult {
    count.set(count.get() + result?);
    Ok(())
}

fn sets(limits: &[Spec]) -> impl Iterator<Item = PolicySet> {
    limits.iter().map(|limit| PolicySet::new(limit.policy("limit")).expect("a set"))
}

/// The memory backend, which has prepared every limit.
pub(crate) struct Memory {
    pub(crate) backend: MemoryBackend<ManualClock>,
    pub(crate) clock: ManualClock,
    sets: Vec<MemorySet>,
}

impl Memory {
    pub(crate) fn new(limits: &[Spec]) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(TODAY));
        let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(100).build();
        let sets = sets(limits).map(|set| backend.prepare(set).expect("a set")).collect();
        Self { backend, clock, sets }
    }
}

impl Changing for Memory {
    fn decide(&mut self, limit: usize, t: i64, calls: &[Call; 1]) -> Decision {
        self.clock.set(Timestamp::from_micros(t));
        self.backend.decide_now(&self.sets[limit], calls)
    }

    fn settle(&mut self, limit: usize, t: i64, receipt: Receipt) {
        self.clock.set(Timestamp::from_micros(t));
        self.backend.settle_now(&self.sets[limit], receipt);
    }
}

/// A state in hand.
pub(crate) struct InHand {
    sets: Vec<PolicySet>,
    state: State,
}

impl InHand {
    pub(crate) fn new(limits: &[Spec]) -> Self {
        let algorithm = limits[0].algorithm();
        Self { sets: sets(limits).collect(), state: algorithm.fresh().written_under(&algorithm) }
    }
}

impl Changing for InHand {
    fn decide(&mut self, limit: usize, t: i64, calls: &[Call; 1]) -> Decision {
        self.sets[limit].decide(std::slice::from_mut(&mut self.state), Timestamp::from_micros(t), calls)
    }

    fn settle(&mut self, limit: usize, t: i64, receipt: Receipt) {
        let policy = &self.sets[limit].policies()[0];
        receipt.items()[0].apply_to(policy, &mut self.state, Timestamp::from_micros(t));
    }
}
