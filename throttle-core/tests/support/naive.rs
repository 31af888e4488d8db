//! A backend that uses nothing but this crate's public API, as any user could write it.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};

use throttle_core::algorithm::State;
use throttle_core::backend::{Call, PolicyRegistry, Receipt, RegisteredSet};
use throttle_core::{
    Algorithm, Backend, BackendError, Clock, ConfigError, Decision, Key, ManualClock, Policy, PolicySet, Timestamp,
};

pub(crate) type Place = (String, Key);
pub(crate) type States = HashMap<Place, (Algorithm, State)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Naive {
    pub(crate) clock: ManualClock,
    pub(crate) states: Arc<Mutex<States>>,
    pub(crate) names: PolicyRegistry,
}

pub(crate) fn place(policy: &Policy, key: &Key) -> Place {
    (policy.name().to_owned(), key.clone())
}

impl Naive {
    pub(crate) fn decide_at(&self, set: &PolicySet, calls: &[Call], now: Timestamp) -> Decision {
        let mut stored = self.states.lock().unwrap();
        let place = |policy: &Policy, i: usize| Some(place(policy, calls.get(i)?.key()?));
        let policies = || set.policies().iter().enumerate();
        let mut states: Vec<_> = policies().map(|(i, policy)| load(&stored, policy, place(policy, i))).collect();
        let decision = set.decide(&mut states, now, calls);
        for ((i, policy), state) in policies().zip(states) {
            place(policy, i).map(|place| stored.insert(place, (*policy.algorithm(), state)));
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
            let mut state = load(&stored, policy, Some(place.clone()));
            item.apply_to(policy, &mut state, now);
            stored.insert(place, (*policy.algorithm(), state));
        }
    }
}

/// A key's state, whichever parameters wrote it.
fn load(stored: &States, policy: &Policy, place: Option<Place>) -> State {
    let algorithm = policy.algorithm();
    place.and_then(|place| stored.get(&place)).map_or_else(|| algorithm.fresh(), |(_, state)| state.clone())
}

impl Backend for Naive {
    type Prepared = RegisteredSet;
    type Decide = Ready<Result<Decision, BackendError>>;
    type Done = Ready<Result<(), BackendError>>;

    fn prepare(&self, set: PolicySet) -> Result<RegisteredSet, ConfigError> {
        self.names.register(set)
    }

    fn set(prepared: &RegisteredSet) -> &PolicySet {
        prepared.set()
    }

    fn decide(&self, prepared: &Arc<RegisteredSet>, calls: &[Call]) -> Self::Decide {
        ready(Ok(self.decide_at(prepared.set(), calls, self.clock.now())))
    }

    fn settle(&self, prepared: &Arc<RegisteredSet>, charge: Receipt) -> Self::Done {
        self.settle_at(prepared.set(), &charge, self.clock.now());
        ready(Ok(()))
    }

    fn reset(&self, prepared: &Arc<RegisteredSet>, policy: usize, key: &Key) -> Self::Done {
        self.forget(&prepared.set().policies()[policy], key);
        ready(Ok(()))
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.states.lock().unwrap().retain(|(policy, _), _| !policy.starts_with(prefix));
        ready(Ok(()))
    }
}
