//! A backend that uses nothing but this crate's public API, as any user could write it.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, LazyLock, Mutex};

use throttle_core::algorithm::State;
use throttle_core::backend::{Answer, Ban, Call, ExceptedKey, Exception, KeyStep, Receipt};
use throttle_core::{
    Algorithm, Backend, Clock, ConfigError, Decision, Gcra, Key, ManualClock, Policy, PolicySet,
    Rate, Timestamp,
};

pub(crate) type Address = (String, Key);
/// Each state names the parameters that wrote it.
pub(crate) type States = HashMap<Address, State>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Naive {
    pub(crate) clock: ManualClock,
    pub(crate) states: Arc<Mutex<States>>,
}

pub(crate) fn address(policy: &Policy, key: &Key) -> Address {
    (policy.name().to_owned(), key.clone())
}

impl Naive {
    pub(crate) fn decide_at(&self, set: &PolicySet, calls: &[Call], now: Timestamp) -> Decision {
        let mut stored = self.states.lock().unwrap();
        let call = |i: usize| {
            calls
                .get(i)
                .filter(|call| call.key().is_some())
                .unwrap_or(&Call::SKIP)
        };
        let address = |policy: &Policy, i: usize| Some(address(policy, call(i).key()?));
        let policies = || set.policies().iter().enumerate();
        let load = |(i, policy)| load(&stored, call(i).parameters(policy), address(policy, i));
        let mut states: Vec<_> = policies().map(load).collect();
        let decision = set.decide(&mut states, now, calls);
        for ((i, policy), state) in policies().zip(states) {
            address(policy, i).map(|address| stored.insert(address, state));
        }
        decision
    }

    pub(crate) fn forget(&self, policy: &Policy, key: &Key) {
        self.states.lock().unwrap().remove(&address(policy, key));
    }

    /// Forgets the keys that are as unused ones at an instant.
    pub(crate) fn expire(&self, at: Timestamp) {
        let mut states = self.states.lock().unwrap();
        states.retain(|_, state| at < fresh_at(state));
    }

    pub(crate) fn settle_at(&self, set: &PolicySet, charge: &Receipt, now: Timestamp) {
        let mut stored = self.states.lock().unwrap();
        for item in charge.items() {
            let policy = &set.policies()[item.policy()];
            let address = address(policy, item.key());
            let mut state = load(&stored, item.parameters(policy), Some(address.clone()));
            item.apply_to(policy, &mut state, now);
            stored.insert(address, state);
        }
    }

    pub(crate) fn except_at(&self, policy: &Policy, key: &Key, exception: Option<Exception>) {
        let mut stored = self.states.lock().unwrap();
        let state = load(&stored, policy.algorithm(), Some(address(policy, key)));
        stored.insert(address(policy, key), state.excepted(exception));
    }

    /// Returns the ban that the strike has begun.
    pub(crate) fn strike_at(
        &self,
        policy: &Policy,
        key: &Key,
        ban: &Ban,
        now: Timestamp,
    ) -> Option<Exception> {
        let mut stored = self.states.lock().unwrap();
        let state = load(&stored, policy.algorithm(), Some(address(policy, key)));
        let struck = ban.strike(exception_of(&state).as_ref(), now)?;
        stored.insert(
            address(policy, key),
            state.excepted(Some(struck.exception.clone())),
        );
        Some(struck.exception).filter(|_| struck.is_ban)
    }

    pub(crate) fn exception(&self, policy: &Policy, key: &Key) -> Option<Exception> {
        let stored = self.states.lock().unwrap();
        exception_of(stored.get(&address(policy, key))?)
    }

    pub(crate) fn list(&self, policy: &Policy, most: usize) -> Vec<ExceptedKey> {
        let stored = self.states.lock().unwrap();
        let of_policy = stored.iter().filter(|((name, _), _)| name == policy.name());
        let listed = of_policy.filter_map(|((_, key), state)| {
            let exception = exception_of(state).filter(|over| self.clock.now() < over.until)?;
            Some(named(key, exception))
        });
        listed.take(most).collect()
    }
}

pub(crate) fn named(key: &Key, exception: Exception) -> ExceptedKey {
    let key = format!("{:02x?}", key.expose_bytes());
    ExceptedKey { key, exception }
}

/// A key's state, whichever parameters wrote it, or a fresh one for those that ask.
fn load(stored: &States, by: &Algorithm, address: Option<Address>) -> State {
    let known = address.and_then(|address| stored.get(&address));
    known
        .cloned()
        .unwrap_or_else(|| by.fresh().written_under(by))
}

// A state names what wrote it, so any algorithm reads what stands over it.
static ANY: LazyLock<Algorithm> = LazyLock::new(|| Gcra::new(Rate::per_second(1)).build().unwrap());

fn exception_of(state: &State) -> Option<Exception> {
    let bytes = state.to_wire(&ANY)?;
    Some(Exception::from_wire(&bytes)?.0)
}

/// The first instant from which a state cannot be distinguished from a fresh one.
pub(crate) fn fresh_at(state: &State) -> Timestamp {
    ANY.fresh_at(state)
}

impl Backend for Naive {
    type Prepared = PolicySet;
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, set: PolicySet) -> Result<PolicySet, ConfigError> {
        Ok(set)
    }

    fn set(prepared: &PolicySet) -> &PolicySet {
        prepared
    }

    fn decide(&self, prepared: &Arc<PolicySet>, calls: &[Call]) -> Self::Decide {
        let checked = prepared.check_keys(calls);
        let decision = checked.map(|()| self.decide_at(prepared, calls, self.clock.now()));
        Box::pin(ready(decision))
    }

    fn now(&self, _: &Arc<PolicySet>, _: &[Call]) -> Option<Timestamp> {
        Some(self.clock.now())
    }

    fn decide_as_of(&self, set: &Arc<PolicySet>, calls: &[Call], at: Timestamp) -> Self::Decide {
        let at = at.min(self.clock.now());
        let checked = set.check_keys(calls);
        Box::pin(ready(checked.map(|()| self.decide_at(set, calls, at))))
    }

    fn settle(&self, prepared: &Arc<PolicySet>, charge: Receipt) -> Self::Done {
        self.settle_at(prepared, &charge, self.clock.now());
        Box::pin(ready(Ok(())))
    }

    fn run(
        &self,
        prepared: &Arc<PolicySet>,
        index: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        let listed = prepared.policy(index).map(|policy| match step {
            KeyStep::Reset(key) => {
                self.forget(policy, &key);
                Vec::new()
            }
            KeyStep::Except(key, exception) => {
                self.except_at(policy, &key, exception);
                Vec::new()
            }
            KeyStep::Strike(key, ban) => {
                let begun = self.strike_at(policy, &key, &ban, self.clock.now());
                begun.into_iter().map(|ban| named(&key, ban)).collect()
            }
            KeyStep::Exceptions { most } => self.list(policy, most),
        });
        Box::pin(ready(listed))
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        let mut states = self.states.lock().unwrap();
        states.retain(|(policy, _), _| !policy.starts_with(prefix));
        Box::pin(ready(Ok(())))
    }

    fn has_exceptions(&self) -> bool {
        true
    }
}
