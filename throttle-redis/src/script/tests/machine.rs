//! A set of limits run by its scripts, compared with the core's algorithms on states in hand.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use throttle_core::algorithm::State;
use throttle_core::backend::{Ban, Call, Exception, Receipt};
use throttle_core::{
    Cost, Decision, IntoAlgorithm, Key, Policy, PolicyNode, PolicySet, PolicyTree, Timestamp,
};

use super::redis::{Entry, Redis};
use crate::decide::settle::{headers, words};
use crate::link::call_error::CallError;
use crate::script::prepared_set::PreparedSet;
use crate::script::reply::{Part, answer, split};
use crate::script::request::{self, Ask};

/// The name of a key in the store.
pub(super) fn name(policy: usize, key: &Key) -> Vec<u8> {
    [&[policy as u8][..], key.expose_bytes()].concat()
}

/// A key is kept for at most so long beyond its reset and the slack.
const STEP: i64 = 5_000_000;

pub(super) struct Machine {
    pub(super) redis: Redis,
    pub(super) prepared: Arc<PreparedSet>,
    /// What must be stored. Each state names its writer.
    pub(super) model: HashMap<Vec<u8>, State>,
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
    let members = || {
        set.members(node)
            .map(|member| tree_with(set, member, place, changed))
            .collect()
    };
    match set.node(node) {
        PolicyNode::Policy(policy) if policy == place => changed.clone().into(),
        PolicyNode::Policy(policy) => set.policies()[policy].clone().into(),
        PolicyNode::All => PolicyTree::All(members()),
        PolicyNode::Any(charge) => PolicyTree::Any(members(), charge),
    }
}

impl Machine {
    pub(super) fn new(tree: impl Into<PolicyTree>) -> Self {
        Self::of(PolicySet::new(tree).unwrap())
    }

    pub(super) fn of(set: PolicySet) -> Self {
        let prepared = Arc::new(PreparedSet::new(set));
        Self {
            redis: Redis::new(),
            prepared,
            model: HashMap::new(),
            slack: 0,
            told_time: false,
            expires: false,
        }
    }

    pub(super) fn set(&self) -> &PolicySet {
        &self.prepared.set
    }

    /// Deploys other limits of the same names.
    pub(super) fn deploy(&mut self, tree: impl Into<PolicyTree>) {
        self.prepared = Arc::new(PreparedSet::new(PolicySet::new(tree).unwrap()));
    }

    /// Deploys another limit of the same name.
    pub(super) fn change(&mut self, policy: usize, algorithm: impl IntoAlgorithm) {
        let former = &self.set().policies()[policy];
        let changed = Policy::new(former.name(), algorithm).unwrap();
        let changed = if former.is_audited() {
            changed.audit()
        } else {
            changed
        };
        self.deploy(tree_with(self.set(), 0, policy, &changed));
    }

    pub(super) fn go_to(&self, now: i64) {
        let mut store = self.redis.store.borrow_mut();
        store.now = now;
        if self.expires {
            store.entries.retain(|_, entry| entry.expires > now);
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.redis.store.borrow().now)
    }

    /// The arguments before the costs, for requests in the first tiers.
    pub(super) fn head(&self) -> Vec<Vec<u8>> {
        self.head_for(headers(self.set(), |_| None))
    }

    fn head_for(&self, headers: impl Iterator<Item: Into<Vec<u8>>>) -> Vec<Vec<u8>> {
        let time = if self.told_time {
            self.now().as_micros().to_string()
        } else {
            String::new()
        };
        let mut head = vec![time.into_bytes(), self.slack.to_string().into_bytes()];
        head.extend(headers.map(Into::into));
        head
    }

    fn ask(&self, calls: &[Call]) -> Ask {
        let named = |(policy, call): (usize, &Call)| call.key().map(|key| name(policy, key));
        let names = calls.iter().enumerate().filter_map(named).collect();
        Ask {
            prepared: Arc::clone(&self.prepared),
            calls: calls.iter().cloned().collect(),
            names,
            slot: 0,
            as_of: None,
        }
    }

    /// The library's decision from a reply about some calls.
    pub(super) fn answer(&self, calls: &[Call], part: &Part) -> Result<Decision, CallError> {
        answer(&self.ask(calls), part)
    }

    /// Runs both scripts on a value and ignores the results.
    pub(super) fn run_all(&self, key: &Key, value: &[u8], now: i64) {
        let (scripts, key) = (&self.prepared.scripts, name(0, key));
        for (script, rest) in [
            (&scripts.decide, vec![0]),
            (&scripts.decide, vec![1]),
            (&scripts.settle, vec![1, now, 0, 3, 1]),
            (&scripts.settle, vec![1, now, 0, 1, 3]),
        ] {
            let entry = Entry {
                value: value.to_vec(),
                expires: now + 1_000,
                set_at: now,
                written: now,
                list: false,
            };
            let mut store = self.redis.store.borrow_mut();
            store.now = now;
            store.entries.insert(key.clone(), entry);
            drop(store);
            let rest = rest.iter().map(|number| number.to_string().into_bytes());
            let arguments: Vec<Vec<u8>> = self.head().into_iter().chain(rest).collect();
            let _ = self
                .redis
                .eval(script, std::slice::from_ref(&key), &arguments);
        }
    }

    /// Decides several requests in one run. All have the parameters of the first. Every answer and
    /// every written value must equal the model's.
    pub(super) fn decide(&mut self, requests: &[Vec<Call>]) -> Vec<Decision> {
        let writes = self.redis.store.borrow().writes;
        let asks: Vec<Ask> = requests.iter().map(|calls| self.ask(calls)).collect();
        assert!(
            asks.iter().all(|ask| ask.headers().eq(asks[0].headers())),
            "one list of headers for all"
        );
        let keys: Vec<Vec<u8>> = asks
            .iter()
            .flat_map(|ask| ask.names.iter().cloned())
            .collect();
        let costs = request::words(asks.iter()).map(|word| word.to_vec());
        let arguments: Vec<Vec<u8>> = self
            .head_for(asks[0].headers())
            .into_iter()
            .chain(costs)
            .collect();
        let reply = self
            .redis
            .eval(&self.prepared.scripts.decide, &keys, &arguments)
            .unwrap();
        let parts = split(reply, asks.iter().map(|ask| ask.names.len()))
            .expect("a reply about these requests");
        let (mut decisions, mut written) = (Vec::new(), HashSet::new());
        for ((calls, ask), part) in requests.iter().zip(&asks).zip(&parts) {
            assert_eq!(part.now, self.now());
            let decision =
                answer(ask, part).unwrap_or_else(|error| panic!("{error:?} about {calls:?}"));
            assert_eq!(decision, self.expect(calls, &mut written), "of {calls:?}");
            decisions.push(decision);
        }
        // Charges of several requests to one key are written once.
        let wrote = self.redis.store.borrow().writes - writes;
        assert!(
            wrote >= written.len() && (requests.len() > 1 || wrote == written.len()),
            "{wrote} writes"
        );
        self.compare();
        decisions
    }

    /// What the model holds of a key.
    fn held(&self, key: &[u8]) -> Option<&State> {
        // What has expired is idle: nothing is there.
        let is_gone = self.expires && !self.redis.store.borrow().entries.contains_key(key);
        self.model.get(key).filter(|_| !is_gone)
    }

    /// The model's decision on one request, and the keys that it writes.
    fn expect(&mut self, calls: &[Call], written: &mut HashSet<Vec<u8>>) -> Decision {
        let key = |policy: usize| calls[policy].key().map(|key| name(policy, key));
        let policies = self.set().policies();
        let state = |policy: usize| key(policy).and_then(|key| self.held(&key).cloned());
        let fresh = |policy: usize| calls[policy].parameters(&policies[policy]).fresh();
        let mut states: Vec<State> = (0..calls.len())
            .map(|policy| state(policy).unwrap_or_else(|| fresh(policy)))
            .collect();
        let before = states.clone();
        let decision = self.set().decide(&mut states, self.now(), calls);
        let by: Vec<_> = calls
            .iter()
            .zip(policies)
            .map(|(call, policy)| *call.parameters(policy))
            .collect();
        for (policy, (state, before)) in states.into_iter().zip(before).enumerate() {
            if decision.statuses()[policy].charged() > 0 {
                let key = key(policy).unwrap();
                self.model
                    .insert(key.clone(), state.written_under(&by[policy]));
                written.insert(key);
            } else {
                assert_eq!(state, before, "only a charge writes");
            }
        }
        decision
    }

    pub(super) fn settle(&mut self, receipt: &Receipt) {
        let of = |policy| receipt.items().iter().find(|item| item.policy() == policy);
        let (mut keys, mut arguments) = (Vec::new(), self.head_for(headers(self.set(), of)));
        for item in receipt.items() {
            keys.push(name(item.policy(), item.key()));
            arguments.extend(words(item).map(String::into_bytes));
        }
        let reply = self
            .redis
            .eval(&self.prepared.scripts.settle, &keys, &arguments)
            .unwrap();
        assert_eq!(reply, b"A");
        for (item, key) in receipt.items().iter().zip(keys) {
            let policy = &self.set().policies()[item.policy()];
            let by = *item.parameters(policy);
            let mut state = self.held(&key).cloned().unwrap_or_else(|| by.fresh());
            item.apply_to(policy, &mut state, self.now());
            if self.model.contains_key(&key) || by.peek(&state, self.now()).reset_after_micros() > 0
            {
                self.model.insert(key, state.written_under(&by));
            }
        }
        self.compare();
    }

    /// Sets an exception for a key, or lifts it.
    pub(super) fn except(&mut self, policy: usize, key: &Key, exception: Option<Exception>) {
        let (name, by) = (
            name(policy, key),
            *self.set().policies()[policy].algorithm(),
        );
        let mut arguments = self.head_for([by.tag()].into_iter());
        arguments.push(
            exception
                .as_ref()
                .map(Exception::to_wire)
                .unwrap_or_default(),
        );
        let is_over = exception
            .as_ref()
            .is_some_and(|exception| exception.until <= self.now());
        let reply = self
            .redis
            .eval(
                crate::script::except(),
                std::slice::from_ref(&name),
                &arguments,
            )
            .unwrap();
        assert_eq!(reply, if is_over { b"P" } else { b"A" });
        if !is_over {
            let state = self
                .held(&name)
                .cloned()
                .unwrap_or_else(|| by.fresh().written_under(&by));
            self.model.insert(name.clone(), state.excepted(exception));
            if !self.redis.store.borrow().entries.contains_key(&name) {
                self.model.remove(&name);
            }
        }
        self.compare();
    }

    /// Counts a strike of a key, and returns the ban that it begins.
    pub(super) fn strike(&mut self, policy: usize, key: &Key, ban: &Ban) -> Option<Exception> {
        let (name, by) = (
            name(policy, key),
            *self.set().policies()[policy].algorithm(),
        );
        let mut arguments = self.head_for([by.tag()].into_iter());
        arguments.push(Vec::new());
        arguments.extend(ban.numbers().map(|number| number.to_string().into_bytes()));
        let state = self
            .held(&name)
            .cloned()
            .unwrap_or_else(|| by.fresh().written_under(&by));
        let over = Exception::from_wire(&state.to_wire(&by).unwrap()).map(|(over, _)| over);
        let struck = ban.strike(over.as_ref(), self.now());
        let writes = self.redis.store.borrow().writes;
        let reply = self
            .redis
            .eval(
                crate::script::except(),
                std::slice::from_ref(&name),
                &arguments,
            )
            .unwrap();
        assert_eq!(
            self.redis.store.borrow().writes - writes,
            usize::from(struck.is_some()),
            "a banned key costs no write"
        );
        let begun = struck
            .as_ref()
            .filter(|struck| struck.is_ban)
            .map(|struck| struck.exception.to_wire());
        assert_eq!(
            reply,
            begun.map_or(b"A".to_vec(), |ban| [b"B", &ban[..]].concat())
        );
        let struck = struck?;
        self.model
            .insert(name, state.excepted(Some(struck.exception.clone())));
        self.compare();
        Some(struck.exception).filter(|_| struck.is_ban)
    }

    /// The store holds what the model holds, and keeps it long enough.
    fn compare(&self) {
        let (store, now) = (self.redis.store.borrow(), self.now());
        for (key, state) in &self.model {
            let policies = self.set().policies();
            // A set that was deployed later may have fewer policies.
            let policy = policies.get(usize::from(key[0])).unwrap_or(&policies[0]);
            let look = |state: &State| {
                let set = PolicySet::new(policy.tier(0).clone()).unwrap();
                set.decide(&mut [state.clone()], now, &[Call::peek(Key::from("key"))])
            };
            let Some(entry) = store.entries.get(key) else {
                assert!(self.expires, "a key is missing");
                assert!(
                    look(state).reset_after().is_zero(),
                    "expired too early: {state:?}"
                );
                continue;
            };
            let read = State::from_wire(policy.algorithm(), &entry.value);
            if self.expires {
                let Some(read) = read else {
                    panic!("{:?} is not {state:?}", entry.value)
                };
                assert_eq!(look(&read), look(state));
            } else if Exception::from_wire(&entry.value)
                .is_some_and(|(_, beneath)| beneath.is_empty())
            {
                // Nothing stands beneath, where the model has the state of an unused key.
                let model = state.to_wire(policy.algorithm()).unwrap();
                assert!(model.starts_with(&entry.value) && look(&read.unwrap()) == look(state));
            } else {
                assert_eq!(
                    Some(&entry.value),
                    state.to_wire(policy.algorithm()).as_ref(),
                    "{read:?} is not {state:?}"
                );
            }
            if entry.written == now.as_micros() {
                let fresh_at = policy.algorithm().fresh_at(state);
                let lives = entry.expires - self.slack * 1_000 - fresh_at.max(now).as_micros();
                // Where a timestamp cannot represent a later instant, the script keeps the key for
                // longer.
                // A clock that has stepped back since then, too.
                let may_live_on = fresh_at == Timestamp::MAX || entry.set_at != now.as_micros();
                assert!(
                    lives >= 0 && (lives <= STEP + 1_000 || may_live_on || self.expires),
                    "{lives} beyond {fresh_at:?}",
                );
                assert!(
                    i128::from(entry.expires - now.as_micros())
                        >= look(state).reset_after().as_micros() as i128
                );
            }
        }
        assert!(
            store.entries.keys().all(|key| self.model.contains_key(key)),
            "a key too many"
        );
    }
}
