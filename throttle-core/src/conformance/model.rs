use std::collections::HashMap;

use crate::algorithm::{Algorithm, State};
use crate::backend::{Call, Receipt};
use crate::decision::Decision;
use crate::key::Key;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// The reference that a backend is compared with: the pure algorithms on states that are never
/// forgotten.
#[derive(Debug)]
pub(super) struct Model {
    /// Each state names the parameters that wrote it.
    states: HashMap<(String, Key), State>,
    floor: Timestamp,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            states: HashMap::new(),
            floor: Timestamp::MIN,
        }
    }

    pub(super) fn decide(&mut self, set: &PolicySet, now: Timestamp, calls: &[Call]) -> Decision {
        self.look(now);
        let at = |policy: usize| {
            Some((
                set.policies()[policy].name().to_owned(),
                calls.get(policy)?.key()?.clone(),
            ))
        };
        let by = |policy: usize| {
            calls
                .get(policy)
                .unwrap_or(&Call::SKIP)
                .parameters(&set.policies()[policy])
        };
        let places = 0..set.policies().len();
        let mut states: Vec<State> = places
            .map(|policy| self.state(by(policy), at(policy).as_ref()))
            .collect();
        let decision = set.decide(&mut states, now, calls);
        for (policy, state) in states.into_iter().enumerate() {
            if let Some(place) = at(policy) {
                self.states.insert(place, state);
            }
        }
        self.look(now);
        decision
    }

    pub(super) fn settle(&mut self, set: &PolicySet, now: Timestamp, charge: &Receipt) {
        self.look(now);
        for item in charge.items() {
            let policy = &set.policies()[item.policy()];
            let place = (policy.name().to_owned(), item.key().clone());
            let mut state = self.state(item.parameters(policy), Some(&place));
            item.apply_to(policy, &mut state, now);
            self.states.insert(place, state);
        }
        self.look(now);
    }

    pub(super) fn reset(&mut self, set: &PolicySet, policy: usize, key: &Key) {
        self.states
            .remove(&(set.policies()[policy].name().to_owned(), key.clone()));
    }

    /// The earliest instant that the clock may step back to. At each step a backend may have
    /// forgotten the keys that cannot be distinguished from unused ones; before the instant at
    /// which the last of them became so, it may miss them.
    pub(super) fn floor(&self) -> Timestamp {
        self.floor
    }

    fn look(&mut self, now: Timestamp) {
        let fresh = self
            .states
            .values()
            .filter_map(|state| Some(state.writer.as_deref()?.fresh_at(state)));
        self.floor = fresh
            .filter(|at| *at <= now)
            .fold(self.floor, Timestamp::max);
    }

    fn state(&self, by: &Algorithm, place: Option<&(String, Key)>) -> State {
        let known = place.and_then(|place| self.states.get(place));
        known
            .cloned()
            .unwrap_or_else(|| by.fresh().written_under(by))
    }
}
