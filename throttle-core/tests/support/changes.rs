//! The life of one key whose limit changes: requests under some versions of the limit, settlements and time in any
//! order, on several machines, each compared with the reference in every field of every decision.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Algorithm, Backend, Carry, Decision, Key, ManualClock, MemoryBackend, MemorySet, Policy, PolicySet, Timestamp,
};

use super::machines::call;
use super::plans::{KINDS, Plan};
use super::reference::{Paid, Reference, told};
use super::spec::{Leaf, Spec, TODAY, Tree};
use super::strategies::{realistic, small};

/// Something that decides about one key under any of some versions of a limit.
pub(crate) trait Changing {
    fn decide(&mut self, version: usize, t: i64, calls: &[Call; 1]) -> Decision;
    fn settle(&mut self, version: usize, t: i64, receipt: Receipt);
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) version: usize,
    /// In 2^32nds of what the version holds; small and large amounts, 0 and one too many.
    pub(crate) cost: (u8, u32),
    /// In 2^32nds of the longest step.
    pub(crate) ahead: (u8, u32),
    /// Settles this one of the charges instead, with this share of twice the cost.
    pub(crate) settles: Option<(u8, u32)>,
}

pub(crate) fn steps(most: usize, settles: bool) -> impl Strategy<Value = Vec<Step>> {
    let settled = prop::option::weighted(0.25, any::<(u8, u32)>()).prop_map(move |settled| settled.filter(|_| settles));
    let step = (any::<usize>(), any::<(u8, u32)>(), any::<(u8, u32)>(), settled);
    let step = step.prop_map(|(version, cost, ahead, settles)| Step { version, cost, ahead, settles });
    vec(step, 1..most)
}

/// Two to four versions of one kind.
pub(crate) fn alike() -> impl Strategy<Value = Vec<Spec>> {
    let kind = select(KINDS.to_vec());
    kind.prop_flat_map(|kind| vec(prop_oneof![3 => small(kind), 1 => realistic(kind)], 2..5))
}

/// Two to four versions of any kinds.
pub(crate) fn mixed() -> impl Strategy<Value = Vec<Spec>> {
    vec(select(KINDS.to_vec()).prop_flat_map(|kind| prop_oneof![3 => small(kind), 1 => realistic(kind)]), 2..5)
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
    versions: &[Spec],
    steps: &[Step],
    key: &Key,
    machines: &mut [&mut dyn Changing],
) -> Result<usize, TestCaseError> {
    let mut reference = Reference::new(&Tree::Leaf(Plan { tiers: versions.to_vec(), carry: Some(Carry::Keep) }));
    let longest = versions.iter().map(Spec::step).max().unwrap_or(1).unsigned_abs();
    let (mut now, mut wait, mut compared) = (TODAY, 0, 0);
    let mut open: Vec<(usize, Vec<Receipt>, Paid)> = Vec::new();
    for step in steps {
        now = (now + step.micros(wait, longest).min(1 << 49) as i64).min(FAR);
        if let Some((pick, share)) = step.settles.filter(|_| !open.is_empty()) {
            let (version, receipts, paid) = open.swap_remove(usize::from(pick) % open.len());
            let actual = part(2 * paid.cost as u64 + 1, share);
            reference.settle(now, 0, paid, actual);
            for (machine, receipt) in machines.iter_mut().zip(receipts) {
                machine.settle(version, now, receipt.actual(actual));
            }
        }
        let version = step.version % versions.len();
        let cost = if step.settles.is_some() { 0 } else { step.units(versions[version].algorithm().capacity()) };
        let (mut expected, paid) = reference.decide_in(now, &[Some(cost)], &[version as u8]);
        // A limit that changes has no tiers.
        expected.members.iter_mut().flatten().for_each(|member| member.tier = 0);
        let calls = [call(key, Some(cost))];
        let mut receipts = Vec::new();
        for (place, machine) in machines.iter_mut().enumerate() {
            let decision = machine.decide(version, now, &calls);
            prop_assert_eq!(
                &told(&decision),
                &expected,
                "machine {} at {}: {} of version {}",
                place,
                now,
                cost,
                version
            );
            receipts.extend(Receipt::of(&decision, &calls));
        }
        wait = expected.retry.filter(|wait| *wait > 0).unwrap_or(expected.reset);
        open.extend(paid.into_iter().map(|(_, paid)| (version, std::mem::take(&mut receipts), paid)));
        compared += machines.len();
    }
    Ok(compared)
}

pub(crate) fn check(result: Result<usize, TestCaseError>, count: &std::cell::Cell<usize>) -> TestCaseResult {
    count.set(count.get() + result?);
    Ok(())
}

pub(crate) fn one_policy(version: &Spec) -> PolicySet {
    PolicySet::new(version.policy("limit").replace_existing()).expect("a set")
}

/// The memory backend, where each version is put in force when it is asked.
pub(crate) struct Memory {
    pub(crate) backend: MemoryBackend<ManualClock>,
    pub(crate) clock: ManualClock,
    versions: Vec<Spec>,
}

impl Memory {
    pub(crate) fn new(versions: &[Spec]) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(TODAY));
        let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(100).build();
        Self { backend, clock, versions: versions.to_vec() }
    }

    fn put_in_force(&self, version: usize, t: i64) -> MemorySet {
        self.clock.set(Timestamp::from_micros(t));
        self.backend.prepare(one_policy(&self.versions[version])).expect("a set")
    }
}

impl Changing for Memory {
    fn decide(&mut self, version: usize, t: i64, calls: &[Call; 1]) -> Decision {
        self.backend.decide_now(&self.put_in_force(version, t), calls)
    }

    fn settle(&mut self, version: usize, t: i64, receipt: Receipt) {
        self.backend.settle_now(&self.put_in_force(version, t), receipt);
    }
}

/// States in hand.
pub(crate) struct InHand {
    versions: Vec<Spec>,
    /// The state, and the parameters that wrote what names none.
    state: (Algorithm, State),
}

impl InHand {
    pub(crate) fn new(versions: &[Spec]) -> Self {
        let algorithm = versions[0].algorithm();
        Self { versions: versions.to_vec(), state: (algorithm, algorithm.fresh()) }
    }

    fn with<R>(&mut self, version: usize, step: impl FnOnce(&Policy, &mut State) -> R) -> R {
        let policy = self.versions[version].policy("limit");
        let (old, state) = &self.state;
        let same = old.tag() == policy.algorithm().tag();
        let mut state = if same { state.clone() } else { state.clone().written_under(old) };
        let result = step(&policy, &mut state);
        self.state = (*policy.algorithm(), state);
        result
    }
}

impl Changing for InHand {
    fn decide(&mut self, version: usize, t: i64, calls: &[Call; 1]) -> Decision {
        self.with(version, |policy, state| {
            let set = PolicySet::new(policy.clone()).expect("a set");
            set.decide(std::slice::from_mut(state), Timestamp::from_micros(t), calls)
        })
    }

    fn settle(&mut self, version: usize, t: i64, receipt: Receipt) {
        self.with(version, |policy, state| receipt.items()[0].apply_to(policy, state, Timestamp::from_micros(t)));
    }
}
