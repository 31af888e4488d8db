//! The crate's two ways to decide, behind one trait: the algorithms on states in hand, and the
//! memory backend.

use std::error::Error;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use throttle_core::algorithm::State;
use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt, drain};
use throttle_core::{
    Algorithm, Backend, Cost, Decision, IntoAlgorithm, Key, ManualClock, MemoryBackend, MemorySet,
    Policy, PolicySet, Timestamp,
};

use super::spec::Tree;

pub(crate) fn call(key: &Key, cost: Option<u64>) -> Call {
    match cost {
        None => Call::SKIP,
        Some(cost) => Cost::new(cost).map_or_else(
            |_| Call::peek(key.clone()),
            |cost| Call::new(key.clone(), cost),
        ),
    }
}

pub(crate) fn calls(key: &Key, costs: &[Option<u64>]) -> Vec<Call> {
    costs.iter().map(|cost| call(key, *cost)).collect()
}

pub(crate) trait Machine {
    fn set(&self) -> &PolicySet;
    fn decide_calls(&mut self, t: i64, calls: &[Call]) -> Decision;
    fn settle(&mut self, t: i64, charge: Receipt);

    /// One cost per policy for the key that traces use.
    fn decide(&mut self, t: i64, costs: &[Option<u64>]) -> (Decision, Option<Receipt>) {
        let calls = calls(&Key::from("trace"), costs);
        let decision = self.decide_calls(t, &calls);
        let charge = Receipt::of(&decision, &calls);
        (decision, charge)
    }

    /// The same cost for every policy.
    fn take(&mut self, t: i64, cost: u64) -> (Decision, Option<Receipt>) {
        let policies = self.set().policies().len();
        self.decide(t, &vec![Some(cost); policies])
    }

    fn peek(&mut self, t: i64) -> Decision {
        self.take(t, 0).0
    }

    fn capacities(&self) -> Vec<u64> {
        self.set()
            .policies()
            .iter()
            .map(|policy| policy.algorithm().capacity())
            .collect()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Pure {
    pub(crate) set: PolicySet,
    pub(crate) states: Vec<State>,
}

impl Pure {
    pub(crate) fn new(tree: &Tree) -> Self {
        Self::of(tree.set())
    }

    pub(crate) fn of(set: PolicySet) -> Self {
        let states = set
            .policies()
            .iter()
            .map(|policy| fresh(policy.algorithm()))
            .collect();
        Self { set, states }
    }
}

impl Machine for Pure {
    fn set(&self) -> &PolicySet {
        &self.set
    }

    fn decide_calls(&mut self, t: i64, calls: &[Call]) -> Decision {
        self.set
            .decide(&mut self.states, Timestamp::from_micros(t), calls)
    }

    fn settle(&mut self, t: i64, charge: Receipt) {
        for item in charge.items() {
            let policy = &self.set.policies()[item.policy()];
            item.apply_to(
                policy,
                &mut self.states[item.policy()],
                Timestamp::from_micros(t),
            );
        }
    }
}

/// An unused state that names its parameters, because a call may bring others.
fn fresh(algorithm: &Algorithm) -> State {
    algorithm.fresh().written_under(algorithm)
}

#[derive(Debug)]
pub(crate) struct InMemory {
    pub(crate) clock: ManualClock,
    pub(crate) backend: MemoryBackend<ManualClock>,
    pub(crate) prepared: Arc<MemorySet>,
}

/// The answer of a store that does not wait, or the reason of its error.
pub(crate) fn answered<T>(mut answer: Answer<T>) -> Result<T, String> {
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(answer) = answer.as_mut().poll(&mut context) else {
        panic!("memory does not wait")
    };
    answer.map_err(|error| error.source().expect("a reason").to_string())
}

impl InMemory {
    pub(crate) fn new(tree: &Tree) -> Self {
        Self::of(tree.set(), 1_000)
    }

    pub(crate) fn of(set: PolicySet, max_keys: usize) -> Self {
        let clock = ManualClock::default();
        let backend = MemoryBackend::builder()
            .clock(clock.clone())
            .max_keys(max_keys)
            .build();
        let prepared = Arc::new(backend.prepare(set).expect("the backend holds it"));
        Self {
            clock,
            backend,
            prepared,
        }
    }

    /// A store of so many keys of one limit.
    pub(crate) fn of_limit(algorithm: impl IntoAlgorithm, max_keys: usize) -> Self {
        let policy = Policy::new("p", algorithm).expect("a policy");
        Self::of(PolicySet::new(policy).expect("a set"), max_keys)
    }

    pub(crate) fn run(&self, policy: usize, step: KeyStep) -> Result<Vec<ExceptedKey>, String> {
        answered(self.backend.run(&self.prepared, policy, step))
    }

    pub(crate) fn drain(&self, policy: usize, call: &Call) -> Result<(), String> {
        let (backend, prepared) = (self.backend.clone(), Arc::clone(&self.prepared));
        let call = call.clone();
        answered(Box::pin(async move {
            drain(&backend, &prepared, policy, &call).await
        }))
    }

    /// Decides about another key.
    pub(crate) fn take_for(
        &self,
        t: i64,
        key: impl Into<Key>,
        cost: u64,
    ) -> (Decision, Option<Receipt>) {
        self.clock.set(Timestamp::from_micros(t));
        let policies = MemoryBackend::<ManualClock>::set(&self.prepared)
            .policies()
            .len();
        let calls = calls(&key.into(), &vec![Some(cost); policies]);
        let decision = self.backend.decide_now(&self.prepared, &calls);
        let charge = Receipt::of(&decision, &calls);
        (decision, charge)
    }
}

impl Machine for InMemory {
    fn set(&self) -> &PolicySet {
        MemoryBackend::<ManualClock>::set(&self.prepared)
    }

    fn decide_calls(&mut self, t: i64, calls: &[Call]) -> Decision {
        self.clock.set(Timestamp::from_micros(t));
        self.backend.decide_now(&self.prepared, calls)
    }

    fn settle(&mut self, t: i64, charge: Receipt) {
        self.clock.set(Timestamp::from_micros(t));
        self.backend.settle_now(&self.prepared, charge);
    }
}
