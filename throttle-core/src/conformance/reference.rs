//! The reference that a backend is compared with: [`PolicySet::decide`] on states that are never
//! forgotten.

use std::collections::HashMap;

use crate::algorithm::{Algorithm, Exception, Repr, State};
use crate::backend::{Call, KeyStep, Receipt};
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::set::PolicySet;
use crate::time::Timestamp;

#[derive(Clone, Debug)]
pub(super) struct Reference {
    /// Each state names the parameters that wrote it.
    states: HashMap<(String, Key), State>,
    floor: Timestamp,
}

impl Reference {
    pub(super) fn new() -> Self {
        Self {
            states: HashMap::new(),
            floor: Timestamp::MIN,
        }
    }

    pub(super) fn decide(&mut self, set: &PolicySet, now: Timestamp, calls: &[Call]) -> Decision {
        let call = |policy: usize| calls.get(policy).unwrap_or(&Call::SKIP);
        let policies = || set.policies().iter().enumerate();
        let mut states: Vec<State> = policies()
            .map(|(index, policy)| {
                let by = call(index).parameters(policy);
                let known = call(index).key().map(|key| self.state(policy, key, by));
                known.unwrap_or_else(|| by.fresh())
            })
            .collect();
        let decision = set.decide(&mut states, now, calls);
        for ((index, policy), state) in policies().zip(states) {
            if let Some(key) = call(index).key() {
                self.put(policy, key, state);
            }
        }
        decision
    }

    pub(super) fn settle(&mut self, set: &PolicySet, now: Timestamp, receipt: &Receipt) {
        for item in receipt.items() {
            let policy = &set.policies()[item.policy()];
            self.look(now);
            if self.is_forgettable(policy, item.key(), now) {
                // Earlier than now, an unused key that was settled differs from a forgotten one.
                self.forget(now);
            }
            let mut state = self.state(policy, item.key(), item.parameters(policy));
            item.apply_to(policy, &mut state, now);
            self.put(policy, item.key(), state);
        }
    }

    pub(super) fn reset_all(&mut self, prefix: &str) {
        self.states.retain(|(name, _), _| !name.starts_with(prefix));
    }

    /// Returns the ban that a strike begins, or the exceptions that are not over.
    pub(super) fn run(
        &mut self,
        policy: &Policy,
        step: &KeyStep,
        now: Timestamp,
    ) -> Vec<Exception> {
        match step {
            KeyStep::Reset(key) => {
                self.states.remove(&(policy.name().to_owned(), key.clone()));
                Vec::new()
            }
            KeyStep::Except(key, exception) => {
                self.except(policy, key, exception.clone());
                Vec::new()
            }
            KeyStep::Strike(key, ban) => {
                let state = self.state(policy, key, policy.algorithm());
                let Some(struck) = ban.strike(exception_of(&state), now) else {
                    return Vec::new();
                };
                self.except(policy, key, Some(struck.exception.clone()));
                Some(struck.exception)
                    .filter(|_| struck.is_ban)
                    .into_iter()
                    .collect()
            }
            KeyStep::Exceptions { .. } => {
                let of_policy = |(name, _): &&(String, Key)| name == policy.name();
                let states = self.states.iter().filter(|(address, _)| of_policy(address));
                states
                    .filter_map(|(_, state)| exception_of(state))
                    .filter(|exception| now < exception.until)
                    .cloned()
                    .collect()
            }
        }
    }

    fn except(&mut self, policy: &Policy, key: &Key, exception: Option<Exception>) {
        let state = self.state(policy, key, policy.algorithm());
        self.put(policy, key, state.excepted(exception));
    }

    /// Uses up what a key has left. Returns whether that is possible: the key is not banned.
    pub(super) fn drain(
        &mut self,
        set: &PolicySet,
        now: Timestamp,
        policy: usize,
        call: &Call,
    ) -> bool {
        let mut calls = vec![Call::SKIP; set.policies().len()];
        calls[policy] = call.clone().charging().costing(1).reserving(0);
        let limit = &set.policies()[policy];
        let mut decision = self.decide(set, now, &calls);
        if decision.statuses()[policy].is_banned() {
            return false;
        }
        if let Some(key) = call
            .key()
            .filter(|_| decision.statuses()[policy].is_excepted())
        {
            self.except(limit, key, None);
            decision = self.decide(set, now, &calls);
        }
        if let Some(receipt) = Receipt::of(&decision, &calls) {
            self.settle(set, now, &receipt.actual(call.parameters(limit).capacity()));
        }
        true
    }

    /// Notes that every key may be forgotten which cannot be distinguished from an unused one now.
    pub(super) fn look(&mut self, now: Timestamp) {
        let forgettable = self.states.values().flat_map(|state| {
            let fresh = state.writer.as_deref().map(|writer| writer.fresh_at(state));
            let over = exception_of(state).map(|exception| exception.until);
            [fresh, over].into_iter().flatten()
        });
        self.floor = forgettable
            .filter(|at| *at <= now)
            .fold(self.floor, Timestamp::max);
    }

    /// Whether the trace has used a key of the calls.
    pub(super) fn knows(&self, set: &PolicySet, calls: &[Call]) -> bool {
        let mut keys = set.policies().iter().zip(calls);
        keys.any(|(policy, call)| {
            let key = call
                .key()
                .cloned()
                .map(|key| (policy.name().to_owned(), key));
            key.is_some_and(|key| self.states.contains_key(&key))
        })
    }

    fn is_forgettable(&self, policy: &Policy, key: &Key, now: Timestamp) -> bool {
        let state = self.states.get(&(policy.name().to_owned(), key.clone()));
        state.is_none_or(|state| policy.algorithm().fresh_at(state) <= now)
    }

    /// Notes that every key that is as an unused one at this instant is forgotten.
    pub(super) fn forget(&mut self, now: Timestamp) {
        self.floor = self.floor.max(now);
    }

    /// The earliest instant to which the clock may step back. Before the instant at which a
    /// forgotten key became as an unused one, a backend may miss it.
    pub(super) fn floor(&self) -> Timestamp {
        self.floor
    }

    fn state(&self, policy: &Policy, key: &Key, by: &Algorithm) -> State {
        let known = self.states.get(&(policy.name().to_owned(), key.clone()));
        known
            .cloned()
            .unwrap_or_else(|| by.fresh().written_under(by))
    }

    fn put(&mut self, policy: &Policy, key: &Key, state: State) {
        self.states
            .insert((policy.name().to_owned(), key.clone()), state);
    }
}

fn exception_of(state: &State) -> Option<&Exception> {
    match &state.repr {
        Repr::Excepted(exception, _) => Some(exception),
        _ => None,
    }
}
