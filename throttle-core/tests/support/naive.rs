//! A backend that uses nothing but this crate's public API, as any user could write it.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::sync::{Arc, LazyLock, Mutex};

use throttle_core::algorithm::State;
use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{
    Algorithm, Backend, BackendError, Clock, ConfigError, Decision, Gcra, Key, ManualClock, Policy,
    PolicySet, Rate, Timestamp,
};

pub(crate) type Place = (String, Key);
/// Each state names the parameters that wrote it.
pub(crate) type States = HashMap<Place, State>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Naive {
    pub(crate) clock: ManualClock,
    pub(crate) states: Arc<Mutex<States>>,
}

pub(crate) fn place(policy: &Policy, key: &Key) -> Place {
    (policy.name().to_owned(), key.clone())
}

impl Naive {
    pub(crate) fn decide_at(&self, set: &PolicySet, calls: &[Call], now: Timestamp) -> Decision {
        let mut stored = self.states.lock().unwrap();
        let asked = |i: usize| {
            calls
                .get(i)
                .filter(|call| call.key().is_some())
                .unwrap_or(&Call::SKIP)
        };
        let place = |policy: &Policy, i: usize| Some(place(policy, asked(i).key()?));
        let policies = || set.policies().iter().enumerate();
        let load = |(i, policy)| load(&stored, asked(i).parameters(policy), place(policy, i));
        let mut states: Vec<_> = policies().map(load).collect();
        let decision = set.decide(&mut states, now, calls);
        for ((i, policy), state) in policies().zip(states) {
            place(policy, i).map(|place| stored.insert(place, state));
        }
        decision
    }

    pub(crate) fn forget(&self, policy: &Policy, key: &Key) {
        self.states.lock().unwrap().remove(&place(policy, key));
    }

    pub(crate) fn settle_at(&self, set: &PolicySet, charge: &Receipt, now: Timestamp) {
        let mut stored = self.states.lock().unwrap();
        for item in charge.items() {
            let policy = &set.policies()[item.policy()];
            let place = place(policy, item.key());
            let mut state = load(&stored, item.parameters(policy), Some(place.clone()));
            item.apply_to(policy, &mut state, now);
            stored.insert(place, state);
        }
    }
}

/// A key's state, whichever parameters wrote it, or a fresh one for those that ask.
fn load(stored: &States, by: &Algorithm, place: Option<Place>) -> State {
    let known = place.and_then(|place| stored.get(&place));
    known
        .cloned()
        .unwrap_or_else(|| by.fresh().written_under(by))
}

/// The first instant from which a state cannot be distinguished from a fresh one.
pub(crate) fn fresh_at(state: &State) -> Timestamp {
    // The state names what wrote it, so any algorithm will do.
    static ANY: LazyLock<Algorithm> =
        LazyLock::new(|| Gcra::new(Rate::per_second(1)).build().unwrap());
    ANY.fresh_at(state)
}

impl Backend for Naive {
    type Prepared = PolicySet;
    type Decide = Ready<Result<Decision, BackendError>>;
    type Done = Ready<Result<(), BackendError>>;

    fn prepare(&self, set: PolicySet) -> Result<PolicySet, ConfigError> {
        Ok(set)
    }

    fn set(prepared: &PolicySet) -> &PolicySet {
        prepared
    }

    fn decide(&self, prepared: &Arc<PolicySet>, calls: &[Call]) -> Self::Decide {
        ready(Ok(self.decide_at(prepared, calls, self.clock.now())))
    }

    fn settle(&self, prepared: &Arc<PolicySet>, charge: Receipt) -> Self::Done {
        self.settle_at(prepared, &charge, self.clock.now());
        ready(Ok(()))
    }

    fn run(
        &self,
        prepared: &Arc<PolicySet>,
        policy: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        let policy = prepared.policy(policy);
        Box::pin(ready(policy.and_then(|policy| match &step {
            KeyStep::Reset(key) => {
                self.forget(policy, key);
                Ok(Vec::new())
            }
            _ => Err(step.unsupported()),
        })))
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.states
            .lock()
            .unwrap()
            .retain(|(policy, _), _| !policy.starts_with(prefix));
        ready(Ok(()))
    }
}
