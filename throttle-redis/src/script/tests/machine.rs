//! A set of limits run by its scripts, compared with the core's algorithms on states in hand.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Algorithm, Cost, Decision, Key, Policy, PolicyNode, PolicySet, PolicyTree, Timestamp};

use super::redis::{Entry, Redis};
use crate::decide::settle::words;
use crate::link::call_error::CallError;
use crate::script::Script;
use crate::script::prepared::Prepared;
use crate::script::reply::{Part, answer, split};
use crate::script::request::Ask;

pub(super) type Kept = (Algorithm, State);

/// The name of a key in the store.
pub(super) fn name(policy: usize, key: &Key) -> Vec<u8> {
    [&[policy as u8][..], key.expose_bytes()].concat()
}

pub(super) struct Machine {
    pub(super) redis: Redis,
    pub(super) set: PolicySet,
    pub(super) prepared: Arc<Prepared>,
    /// What must be stored.
    pub(super) model: HashMap<Vec<u8>, Kept>,
    pub(super) slack: i64,
    /// Whether the script reads the server's clock, or is given the time.
    pub(super) told_time: bool,
    /// Whether keys expire.
    pub(super) expires: bool,
}

pub(super) fn call(key: &Key, cost: Option<u64>) -> Call {
    match cost.map(Cost::new) {
        None => Call::SKIP,
        Some(Err(_)) => Call::peek(key.clone()),
        Some(Ok(cost)) => Call::new(key.clone(), cost),
    }
}

/// The part of a set's composition from `node` on, with one policy changed.
fn tree_with(set: &PolicySet, node: usize, place: usize, changed: &Policy) -> PolicyTree {
    let members = || set.members(node).map(|member| tree_with(set, member, place, changed)).collect();
    match set.node(node) {
        PolicyNode::Policy(policy) if policy == place => changed.clone().into(),
        PolicyNode::Policy(policy) => set.policies()[policy].clone().into(),
        PolicyNode::All => PolicyTree::All(members()),
        PolicyNode::Any(charge) => PolicyTree::Any(members(), charge),
    }
}

impl Machine {
    pub(super) fn new(set: PolicySet) -> Self {
        let prepared = Arc::new(Prepared::new(0, set.clone(), &[]));
        Self { redis: Redis::new(), set, prepared, model: HashMap::new(), slack: 0, told_time: false, expires: false }
    }

    pub(super) fn change(&mut self, policy: usize, algorithm: Algorithm) {
        let name = self.set.policies()[policy].name();
        let changed = Policy::new(name, algorithm).unwrap();
        self.set = PolicySet::new(tree_with(&self.set, 0, policy, &changed)).unwrap();
        self.prepared = Arc::new(Prepared::new(0, self.set.clone(), &[]));
    }

    pub(super) fn go_to(&self, now: i64) {
        let mut store = self.redis.store.borrow_mut();
        store.now = now;
        if self.expires {
            store.entries.retain(|_, entry| entry.set_at + entry.ttl * 1_000 > now);
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.redis.store.borrow().now)
    }

    fn header(&self) -> Vec<Vec<u8>> {
        let time = if self.told_time { self.now().as_micros().to_string() } else { String::new() };
        let mut arguments = vec![time.into_bytes(), self.slack.to_string().into_bytes()];
        arguments.extend(self.prepared.headers.iter().cloned());
        arguments
    }

    /// The library's decision from a reply about some calls.
    pub(super) fn answer(&self, calls: Vec<Call>, part: &Part) -> Result<Decision, CallError> {
        let (calls, names) = (calls.into(), SmallVec::new());
        let ask = Ask { prepared: Arc::clone(&self.prepared), calls, names, slot: 0, as_of: None };
        answer(&ask, part)
    }

    /// Runs every script on a value and ignores the results.
    pub(super) fn run_all(&self, key: &Key, value: &[u8], now: i64) {
        let (scripts, key) = (&self.prepared.scripts, name(0, key));
        for script in [&scripts.decide, &scripts.carry, &scripts.settle, &scripts.settle_carried] {
            for rest in [vec![0], vec![1], vec![1, now, 0, 3, 1], vec![1, now, 0, 1, 3]] {
                let entry = Entry { value: value.to_vec(), ttl: 1, set_at: now, list: false };
                let mut store = self.redis.store.borrow_mut();
                store.now = now;
                store.entries.insert(key.clone(), entry);
                drop(store);
                let rest = rest.iter().map(|number| number.to_string().into_bytes());
                let arguments: Vec<Vec<u8>> = self.header().into_iter().chain(rest).collect();
                let _ = self.redis.eval(script, std::slice::from_ref(&key), &arguments);
            }
        }
    }

    /// Runs a deciding script about some calls.
    fn ask(&self, script: &Script, calls: &[Vec<Call>]) -> Vec<(Ask, Part)> {
        let (mut keys, mut arguments) = (Vec::new(), self.header());
        let named = |call: &Vec<Call>| {
            let member = |(policy, call): (usize, &Call)| call.key().map(|key| name(policy, key));
            let names = call.iter().enumerate().filter_map(member).collect();
            let calls = call.iter().cloned().collect();
            Ask { prepared: Arc::clone(&self.prepared), calls, names, slot: 0, as_of: None }
        };
        let asks: Vec<Ask> = calls.iter().map(named).collect();
        for ask in &asks {
            keys.extend(ask.names.iter().cloned());
            arguments.extend(ask.costs().map(|cost| cost.to_vec()));
        }
        let reply = self.redis.eval(script, &keys, &arguments).unwrap();
        let parts = split(reply, asks.iter().map(|ask| ask.names.len())).expect("a reply about these calls");
        assert!(parts.iter().all(|part| part.now == self.now()));
        asks.into_iter().zip(parts).collect()
    }

    /// Decides several calls in one run, then runs the carrying script for the calls that need it. Every answer and
    /// every written value must equal the model's.
    pub(super) fn decide(&mut self, calls: &[Vec<Call>]) -> Vec<Decision> {
        let writes = self.redis.store.borrow().writes;
        let told = self.ask(&self.prepared.scripts.decide, calls);
        let (mut decisions, mut written) = (Vec::new(), HashSet::new());
        for (call, (ask, part)) in calls.iter().zip(&told) {
            let foreign = self.is_foreign(call);
            decisions.push(if part.flag() == Some(b'C') {
                assert!(foreign, "nothing to carry over");
                None
            } else {
                assert!(!foreign, "something to carry over");
                let decision = answer(ask, part).unwrap_or_else(|error| panic!("{error:?} about {call:?}"));
                let (model, wrote) = self.expect(call);
                assert_eq!(decision, model, "of {call:?}");
                written.extend(wrote);
                Some(model)
            });
        }
        // Charges of several calls to one key are written once.
        let wrote = self.redis.store.borrow().writes - writes;
        assert!(wrote >= written.len() && (calls.len() > 1 || wrote == written.len()), "{wrote} writes");
        let decisions = calls.iter().zip(decisions).map(|(call, decision)| match decision {
            Some(decision) => decision,
            None => self.carry(call),
        });
        let decisions: Vec<_> = decisions.collect();
        self.compare();
        decisions
    }

    fn carry(&mut self, call: &[Call]) -> Decision {
        let writes = self.redis.store.borrow().writes;
        let (ask, part) = self.ask(&self.prepared.scripts.carry, &[call.to_vec()]).remove(0);
        let decision = answer(&ask, &part).unwrap_or_else(|error| panic!("{error:?} about {call:?}, carried over"));
        let (model, written) = self.expect(call);
        assert_eq!(decision, model, "of {call:?}, carried over");
        let wrote = self.redis.store.borrow().writes - writes;
        assert_eq!(wrote, written.len(), "writes where something is carried over");
        decision
    }

    /// Whether a call meets a value whose header is not the current one.
    fn is_foreign(&self, call: &[Call]) -> bool {
        call.iter().zip(self.set.policies()).enumerate().any(|(policy, (member, of))| {
            let Some(key) = member.key().map(|key| name(policy, key)) else { return false };
            let stored = self.redis.store.borrow().entries.contains_key(&key);
            let header = [of.algorithm().tag(), b"0".to_vec()].concat();
            let differs = |(by, state): &Kept| !state.to_wire(by).unwrap().starts_with(&header);
            stored && self.model.get(&key).is_some_and(differs)
        })
    }

    /// What the model holds of a key, under the parameters that a policy has now.
    fn state(&self, key: Option<&Vec<u8>>, of: &Policy) -> State {
        let algorithm = of.algorithm();
        let stored = key.filter(|key| self.redis.store.borrow().entries.contains_key(*key)).is_some();
        match key.and_then(|key| self.model.get(key)) {
            None => algorithm.fresh(),
            // Expired, so idle: nothing is there.
            Some(_) if self.expires && !stored => algorithm.fresh(),
            Some((old, state)) if old.tag() == algorithm.tag() => state.clone(),
            Some((old, state)) => state.clone().written_under(old),
        }
    }

    /// The model's decision on one call, and the keys that it writes.
    fn expect(&mut self, call: &[Call]) -> (Decision, HashSet<Vec<u8>>) {
        let now = self.now();
        let key = |policy: usize, member: &Call| member.key().map(|key| name(policy, key));
        let policies = || call.iter().zip(self.set.policies()).enumerate();
        let mut states: Vec<State> =
            policies().map(|(policy, (member, of))| self.state(key(policy, member).as_ref(), of)).collect();
        let before = states.clone();
        let decision = self.set.decide(&mut states, now, call);
        let mut names = HashSet::new();
        for (policy, (state, before)) in states.into_iter().zip(before).enumerate() {
            let algorithm = *self.set.policies()[policy].algorithm();
            // Parameters of one tag have one state, whichever of them it names: 2 in 2 µs are 1 in 1 µs.
            let has_changed = state.to_wire(&algorithm) != before.to_wire(&algorithm);
            if decision.statuses()[policy].charged() > 0 || has_changed {
                let key = key(policy, &call[policy]).unwrap();
                self.model.insert(key.clone(), (algorithm, state));
                names.insert(key);
            }
        }
        (decision, names)
    }

    pub(super) fn settle(&mut self, receipt: &Receipt) {
        let now = self.now();
        let (mut keys, mut arguments) = (Vec::new(), self.header());
        for item in receipt.items() {
            keys.push(name(item.policy(), item.key()));
            arguments.extend(words(item).map(String::into_bytes));
        }
        let mut reply = self.redis.eval(&self.prepared.scripts.settle, &keys, &arguments).unwrap();
        if reply == b"C" {
            reply = self.redis.eval(&self.prepared.scripts.settle_carried, &keys, &arguments).unwrap();
        }
        assert_eq!(reply, b"A");
        for (item, key) in receipt.items().iter().zip(keys) {
            let of = &self.set.policies()[item.policy()];
            let algorithm = *of.algorithm();
            let mut state = self.state(Some(&key), of);
            item.apply_to(of, &mut state, now);
            if self.model.contains_key(&key) || algorithm.peek(&state, now).reset_after_micros() > 0 {
                self.model.insert(key, (algorithm, state));
            }
        }
        self.compare();
    }

    /// The store holds what the model holds, and keeps it long enough.
    fn compare(&self) {
        let (store, now) = (self.redis.store.borrow(), self.now());
        for (key, (algorithm, state)) in &self.model {
            let policy = Policy::new("p", *algorithm).unwrap();
            let look = |state: &State| {
                let set = PolicySet::new(policy.clone()).unwrap();
                set.decide(&mut [state.clone()], now, &[Call::peek(Key::from("key"))])
            };
            let Some(entry) = store.entries.get(key) else {
                assert!(self.expires, "a key is missing");
                assert!(look(state).reset_after().is_zero(), "expired too early: {state:?}");
                continue;
            };
            if self.expires {
                let read = State::from_wire_of(&policy, 0, &entry.value);
                let Some(read) = read else { panic!("{:?} is not of {algorithm:?}", entry.value) };
                assert_eq!(look(&read), look(state));
            } else {
                assert_eq!(
                    Some(&entry.value),
                    state.to_wire(algorithm).as_ref(),
                    "{:?} is not {state:?} of {algorithm:?}",
                    { State::from_wire_of(&policy, 0, &entry.value) }
                );
            }
            if entry.set_at == now.as_micros() {
                let fresh_at = algorithm.fresh_at(state);
                let live = fresh_at.micros_since(now).max(1);
                // Where a timestamp cannot represent a later instant, the script keeps the key for longer.
                assert!(
                    fresh_at == Timestamp::MAX || self.expires || entry.ttl == (live + 999) / 1_000 + self.slack,
                    "{} for {live}",
                    entry.ttl
                );
                assert!(i128::from(entry.ttl) * 1_000 >= look(state).reset_after().as_micros() as i128);
            }
        }
        assert!(store.entries.keys().all(|key| self.model.contains_key(key)), "a key too many");
    }
}
