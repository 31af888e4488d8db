//! Uses the memory store in any order, beside a map of states that `PolicySet::decide` decides:
//! each decision is the same, as long as the store has room. A full store admits no more than the
//! map.

#![no_main]

use std::collections::HashMap;
use std::sync::Arc;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{
    Backend, Clock, Key, ManualClock, MemoryBackend, MemorySet, PolicyNode, PolicySet,
};
use throttle_fuzz::at_once;
use throttle_fuzz::limits::{START, calls, exception, micros, set};

/// The keys that most requests are about.
const KEYS: u64 = 5;

/// What a run may do beside deciding.
#[derive(Clone, Copy, PartialEq)]
enum World {
    /// The clock goes on. Keys come and go, charges are settled, exceptions set, the store saved
    /// and restored.
    Honest,
    /// The clock steps back, too. No key is new, or the store would be more careful with it than
    /// the map.
    Lying,
    /// The store has room for few keys.
    Full,
}

struct Run {
    world: World,
    clock: ManualClock,
    memory: MemoryBackend<ManualClock>,
    sets: Vec<(PolicySet, Arc<MemorySet>)>,
    states: HashMap<(usize, Key), State>,
    receipts: Vec<(usize, Receipt)>,
    max_keys: usize,
    strangers: u64,
}

impl Run {
    fn new(of: &mut Unstructured<'_>) -> Result<Self> {
        let world = *of.choose(&[World::Honest, World::Honest, World::Lying, World::Full])?;
        let max_keys = if world == World::Full {
            of.int_in_range(1..=6)?
        } else {
            1_000
        };
        let clock = ManualClock::new(START);
        let memory = MemoryBackend::builder()
            .clock(clock.clone())
            .max_keys(max_keys)
            .build();
        // A second set of the same names: the limits are changed, or two versions of a program
        // share the store.
        let sets = (0..if world == World::Full { 1 } else { 2 })
            .map(|_| set(of))
            .collect::<Result<Vec<_>>>()?;
        let prepare = |set: PolicySet| {
            (
                set.clone(),
                Arc::new(memory.prepare(set).expect(
                    "room \
            for policies",
                )),
            )
        };
        let sets = sets.into_iter().map(prepare).collect();
        let (states, receipts) = (HashMap::new(), Vec::new());
        let mut run = Self {
            world,
            clock,
            memory,
            sets,
            states,
            receipts,
            max_keys,
            strangers: KEYS,
        };
        if world == World::Lying {
            for key in 0..KEYS {
                for set in 0..run.sets.len() {
                    let policies = run.sets[set].0.policies().len();
                    (0..policies).for_each(|policy| run.charge_one(set, policy, key));
                }
            }
        }
        Ok(run)
    }

    /// A request about one policy alone, so that its key is in the store.
    fn charge_one(&mut self, set: usize, policy: usize, key: u64) {
        let mut calls = vec![Call::SKIP; self.sets[set].0.policies().len()];
        calls[policy] = Call::from(Key::from(key));
        self.decide(set, &calls);
    }

    fn state(&self, set: usize, policy: usize, call: &Call) -> State {
        let by = call.parameters(&self.sets[set].0.policies()[policy]);
        let known = call
            .key()
            .and_then(|key| self.states.get(&(policy, key.clone())));
        known
            .cloned()
            .unwrap_or_else(|| by.fresh().written_under(by))
    }

    fn decide(&mut self, set: usize, calls: &[Call]) {
        let (limits, prepared) = &self.sets[set];
        let mut states: Vec<State> = calls
            .iter()
            .enumerate()
            .map(|(policy, call)| self.state(set, policy, call))
            .collect();
        let expected = limits.decide(&mut states, self.clock.now(), calls);
        let decision = self.memory.decide_now(prepared, calls);
        if self.world == World::Full {
            assert!(
                expected.is_admitted() || !decision.is_admitted(),
                "{decision:?}, not \
                {expected:?}"
            );
        } else {
            assert_eq!(decision, expected, "{calls:?}");
            self.receipts
                .extend(Receipt::of(&decision, calls).map(|receipt| (set, receipt)));
        }
        assert!(self.memory.keys() <= self.max_keys);
        if decision.is_admitted() {
            for (policy, (call, state)) in calls.iter().zip(states).enumerate() {
                call.key()
                    .map(|key| self.states.insert((policy, key.clone()), state));
            }
        }
    }

    fn settle(&mut self, pick: usize, actual: u64) {
        if self.receipts.is_empty() {
            return;
        }
        let (set, receipt) = self.receipts.swap_remove(pick % self.receipts.len());
        let (receipt, limits) = (receipt.actual(actual), self.sets[set].0.clone());
        for item in receipt.items() {
            let policy = &limits.policies()[item.policy()];
            let by = item.parameters(policy);
            let known = self.states.entry((item.policy(), item.key().clone()));
            item.apply_to(
                policy,
                known.or_insert_with(|| by.fresh().written_under(by)),
                self.clock.now(),
            );
        }
        self.memory.settle_now(&self.sets[set].1, receipt);
    }

    fn except(&mut self, of: &mut Unstructured<'_>, set: usize) -> Result<()> {
        let (limits, prepared) = &self.sets[set];
        let policy = of.choose_index(limits.policies().len())?;
        let key = Key::from(of.int_in_range(0..=KEYS - 1)?);
        let exception = exception(of, &limits.policies()[policy], self.clock.now())?;
        let answer = self.memory.run(
            prepared,
            policy,
            KeyStep::Except(key.clone(), exception.clone()),
        );
        if at_once(answer).is_ok() {
            let state = self.state(set, policy, &Call::from(key.clone()));
            self.states.insert((policy, key), state.excepted(exception));
        }
        Ok(())
    }

    fn restart(&mut self) {
        let mut bytes = Vec::new();
        self.memory.snapshot(&mut bytes).expect("a vector");
        let builder = MemoryBackend::builder()
            .clock(self.clock.clone())
            .max_keys(self.max_keys);
        self.memory = builder.restore(&mut &*bytes).expect("a snapshot");
        for (limits, prepared) in &mut self.sets {
            *prepared = Arc::new(
                self.memory
                    .prepare(limits.clone())
                    .expect("room for policies"),
            );
        }
    }

    fn step(&mut self, of: &mut Unstructured<'_>) -> Result<()> {
        let set = of.choose_index(self.sets.len())?;
        let limits = self.sets[set].0.clone();
        match (of.int_in_range(0..=15_u8)?, self.world) {
            (0..=6, _) => {
                let calls = calls(of, &limits, KEYS)?;
                // Each tier of a key may have a budget in the buckets of a full store, and an `any`
                // that refuses early in one member may charge the next.
                let is_plain = |call: &Call| call.own().is_none() && call.tier() == 0;
                let is_all = !matches!(limits.node(0), PolicyNode::Any(_));
                if self.world != World::Full || is_all && calls.iter().all(is_plain) {
                    self.decide(set, &calls);
                }
            }
            (7..=9, _) => self.clock.set(self.clock.now().after_micros(micros(of)?)),
            (10, World::Lying) => {
                let back = i64::try_from(micros(of)?).unwrap_or(i64::MAX);
                let at = self.clock.now().as_micros().saturating_sub(back);
                self.clock.set(throttle_core::Timestamp::from_micros(at));
            }
            (10 | 11, World::Honest) => self.settle(of.arbitrary()?, of.int_in_range(0..=14)?),
            (12, World::Honest) => self.except(of, set)?,
            (13, World::Honest) => {
                let policy = of.choose_index(limits.policies().len())?;
                let key = Key::from(of.int_in_range(0..=KEYS - 1)?);
                at_once(
                    self.memory
                        .run(&self.sets[set].1, policy, KeyStep::Reset(key.clone())),
                )
                .expect(
                    "memory does \
                    not fail",
                );
                self.states.remove(&(policy, key));
            }
            (14, World::Honest) => self.restart(),
            // New keys make a store look for stale ones.
            (15, World::Honest | World::Full)
                if self.world == World::Full || self.memory.keys() < 900 =>
            {
                let policy = of.choose_index(limits.policies().len())?;
                for _ in 0..of.int_in_range(1..=20_u8)? {
                    self.strangers += 1;
                    self.charge_one(set, policy, self.strangers);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut of = Unstructured::new(bytes);
    let Ok(mut run) = Run::new(&mut of) else {
        return;
    };
    while !of.is_empty() && run.step(&mut of).is_ok() {}
});
