//! Stored bytes and replies that no script of this library wrote.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use throttle_core::algorithm::State;
use throttle_core::{
    Algorithm, AnyCharge, Gcra, IntoAlgorithm, Key, Policy, PolicySet, PolicyTree, Rate,
    SlidingLog, SlidingWindow, Timestamp, TokenBucket,
};

use super::machine::{Machine, call, name};
use super::random::{KINDS, algorithm, any_algorithm, tree};
use super::redis::{Entry, Redis};
use crate::link::script::Script;
use crate::script::Scripts;
use crate::script::reply::split;

const NOW: i64 = 1_790_000_000_000_000;

fn numbers() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        (-10_i64..10).prop_map(|number| number as f64),
        (NOW - 1_000..NOW + 1_000).prop_map(|number| number as f64),
        prop::sample::select(vec![
            f64::NAN,
            f64::INFINITY,
            -f64::INFINITY,
            0.5,
            1e300,
            -1e300,
            9e15,
            -9e15
        ]),
    ]
}

/// A header of some algorithm followed by anything, or anything at all.
fn stored() -> impl Strategy<Value = (Algorithm, Vec<u8>)> {
    let payload = prop::collection::vec(numbers(), 0..14);
    let bytes = |numbers: &[f64]| {
        numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    (
        any_algorithm(),
        any_algorithm(),
        payload,
        0..8_u8,
        prop::collection::vec(any::<u8>(), 0..60),
    )
        .prop_map(move |(algorithm, other, numbers, what, noise)| {
            let tag = |of: Algorithm| of.tag();
            let value = match what {
                0 => noise,
                1 => [tag(other), bytes(&numbers)].concat(),
                // Parameters that no algorithm can have.
                2 => [tag(other)[..2].to_vec(), bytes(&numbers), noise].concat(),
                // A kind without parameters, or with some of them.
                3 => [
                    tag(algorithm)[..2].to_vec(),
                    bytes(&numbers[..numbers.len().min(2)]),
                ]
                .concat(),
                4 => {
                    let mut value = algorithm.fresh().to_wire(&algorithm).unwrap();
                    let last = value.len();
                    value.truncate(last - noise.len().min(last));
                    value
                }
                5 | 6 => {
                    // A fresh state with one number replaced.
                    let algorithm = if what == 5 { algorithm } else { other };
                    let mut value = algorithm.fresh().to_wire(&algorithm).unwrap();
                    let places = (value.len() / 8).max(1);
                    let at = value.len().saturating_sub(8 * (1 + noise.len() % places));
                    let end = (at + 8).min(value.len());
                    let new = numbers.first().copied().unwrap_or(0.0).to_le_bytes();
                    value[at..end].copy_from_slice(&new[..end - at]);
                    value
                }
                _ => [tag(algorithm), bytes(&numbers)].concat(),
            };
            (algorithm, value)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is stored, a script answers or fails before it writes, and no value that is not a
    /// state is decided on.
    #[test]
    fn hostile_values_are_answered((algorithm, value) in stored(), cost in 0..5_u64) {
        let (machine, key) = (Machine::new(Policy::new("p", algorithm).unwrap()), Key::from("key"));
        let stored = name(0, &key);
        {
            let mut store = machine.redis.store.borrow_mut();
            store.now = NOW;
            let entry = Entry { value: value.clone(), expires: NOW + 1_000, set_at: NOW, written: NOW, list: false };
            store.entries.insert(stored.clone(), entry);
        }
        let scripts = &machine.prepared.scripts;
        let arguments = [machine.head(), vec![cost.to_string().into_bytes()]].concat();
        let reply = machine.redis.eval(&scripts.decide, std::slice::from_ref(&stored), &arguments);
        let state = State::from_wire(&algorithm, &value);
        if let Ok(reply) = reply {
            let parts = split(reply, [1].into_iter()).expect("a reply about one call");
            let decided = machine.answer(&[call(&key, Some(cost))], &parts[0]);
            match (parts[0].flag().unwrap(), state) {
                (b'W', state) => prop_assert!(state.is_none(), "{:?}", state),
                (_, Some(state)) => {
                    let calls = [call(&key, Some(cost))];
                    let expected = machine.set().decide(&mut [state], Timestamp::from_micros(NOW), &calls);
                    prop_assert_eq!(decided.ok(), Some(expected));
                }
                // The reply about a log has the runs that matter now, so what is wrong with the
                // others is not seen.
                (_, None) => prop_assert!(decided.is_err() || algorithm.name() == "sliding_log"),
            }
        } else {
            prop_assert_eq!(state, None);
            prop_assert_eq!(machine.redis.store.borrow().writes, 0);
        }
        let numbers = [1, NOW, 0, 3, 1].map(|number: i64| number.to_string().into_bytes());
        let arguments = [&arguments[..3], &numbers[..]].concat();
        let _ = machine.redis.eval(&scripts.settle, std::slice::from_ref(&stored), &arguments);
    }

    /// If one of several batched requests meets a value that is not a state, it fails alone: the
    /// others are decided and charged as they would be without it.
    #[test]
    fn a_hostile_value_fails_no_request_but_its_own(
        (algorithm, value) in stored(), policies in 1..3_usize
    ) {
        let member = |place: usize| Policy::new(&format!("p{place}"), algorithm).unwrap().into();
        let machine = Machine::new(PolicyTree::All((0..policies).map(member).collect()));
        let requests = ["good", "bad", "other", "bad", "good"].map(Key::from);
        let calls = |key: &Key| vec![call(key, Some(1)); policies];
        {
            let mut store = machine.redis.store.borrow_mut();
            store.now = NOW;
            let entry = Entry { value, expires: NOW + 1_000, set_at: NOW, written: NOW, list: false };
            store.entries.insert(name(0, &Key::from("bad")), entry);
        }
        let keys: Vec<_> =
            requests.iter().flat_map(|key| (0..policies).map(move |policy| name(policy, key))).collect();
        let mut arguments = machine.head();
        arguments.extend(vec![b"1".to_vec(); keys.len()]);
        let reply = machine.redis.eval(&machine.prepared.scripts.decide, &keys, &arguments);
        prop_assert!(reply.is_ok(), "{:?}", reply);
        let parts = split(reply.unwrap(), [policies; 5].into_iter()).expect("a reply about five \
            requests");
        let mut model = std::collections::HashMap::new();
        for (key, part) in requests.iter().zip(&parts).filter(|(key, _)| **key != Key::from("bad")) {
            let states = model.entry(key.clone()).or_insert_with(|| vec![algorithm.fresh(); policies]);
            let decision = machine.set().decide(states, Timestamp::from_micros(NOW), &calls(key));
            prop_assert_eq!(machine.answer(&calls(key), part).ok(), Some(decision));
        }
        let store = machine.redis.store.borrow();
        for (key, states) in &model {
            for (policy, state) in states.iter().enumerate().filter(|(_, state)| **state != algorithm.fresh()) {
                let held = store.entries.get(&name(policy, key)).map(|entry| entry.value.clone());
                prop_assert_eq!(held, state.to_wire(&algorithm));
            }
        }
        let admitted = [1, 3].iter().any(|place| parts[*place].flag() == Some(b'A'));
        prop_assert!(admitted || !store.entries.contains_key(&name(1, &Key::from("bad"))), "charged in part");
    }

    /// Truncated, prolonged and random replies are errors.
    #[test]
    fn hostile_replies_are_errors(
        tree in tree(),
        noise in prop::collection::vec(any::<u8>(), 0..200),
        cut in any::<u32>(),
    ) {
        let (machine, key) = (Machine::new(tree.named()), Key::from("key"));
        machine.redis.store.borrow_mut().now = NOW;
        let policies = machine.set().policies().len();
        let keys: Vec<_> = (0..policies).map(|policy| name(policy, &key)).collect();
        let mut arguments = machine.head();
        arguments.extend(vec![b"1".to_vec(); policies]);
        let mut reply = machine.redis.eval(&machine.prepared.scripts.decide, &keys, &arguments).unwrap();
        prop_assert!(split(reply.clone(), [policies].into_iter()).is_some());
        let calls = vec![call(&key, Some(1)); policies];
        for bytes in [&reply[..cut as usize % reply.len()], &noise, &[&reply[..], &[0]].concat()] {
            if let Some(parts) = split(bytes.to_vec(), [policies].into_iter()) {
                prop_assert!(bytes == noise);
                let _ = machine.answer(&calls, &parts[0]);
            }
        }
        // A flipped flag contradicts the values.
        reply[8] = if reply[8] == b'A' { b'D' } else { b'A' };
        let turned = split(reply, [policies].into_iter()).unwrap();
        prop_assert!(machine.answer(&calls, &turned[0]).is_err());
    }
}

/// The reply about a log is short, however long the log is.
#[test]
fn reply_holds_a_long_log_in_a_few_runs() {
    let algorithm = SlidingLog::new(Rate::per_second(1_000)).build().unwrap();
    let set = PolicySet::new(Policy::new("p", algorithm).unwrap()).unwrap();
    let (scripts, redis) = (Scripts::of(&set), Redis::new());
    for step in 0..1_200_i64 {
        redis.store.borrow_mut().now = NOW + step;
        let arguments = [
            b"".to_vec(),
            b"0".to_vec(),
            algorithm.tag(),
            (1 + step % 2).to_string().into_bytes(),
        ];
        let reply = redis
            .eval(&scripts.decide, &[b"key".to_vec()], &arguments)
            .unwrap();
        assert!(reply.len() <= 13 + 26 + 3 * 16, "{}", reply.len());
    }
}

/// Adding one to a double this large does not change it. A script that counts up to it, or down
/// from it, never ends, and blocks the server.
#[test]
fn no_number_keeps_the_server_busy() {
    for kind in 0..KINDS {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        for _ in 0..8 {
            let algorithm = algorithm(kind).new_tree(&mut runner).unwrap().current();
            let machine = Machine::new(Policy::new("p", algorithm).unwrap());
            let fresh = algorithm.fresh().to_wire(&algorithm).unwrap();
            let payload = algorithm.tag().len();
            for place in (payload..fresh.len()).step_by(8) {
                for number in [
                    9_007_199_254_740_992.0,
                    -9_007_199_254_740_992.0,
                    1e18,
                    -1e18,
                    1e300,
                    -1e300,
                    f64::INFINITY,
                    f64::NAN,
                ] {
                    let mut value = fresh.clone();
                    value[place..place + 8].copy_from_slice(&f64::to_le_bytes(number));
                    machine.run_all(&Key::from("key"), &value, NOW);
                }
            }
        }
    }
}

/// What the scripts of a set answer about stored values.
struct Told {
    machine: Machine,
}

impl Told {
    fn new(tree: impl Into<PolicyTree>) -> Self {
        let machine = Machine::new(tree);
        machine.redis.store.borrow_mut().now = NOW;
        Self { machine }
    }

    fn store(&self, policy: usize, key: &str, value: Vec<u8>) {
        let entry = Entry {
            list: value.is_empty(),
            value,
            expires: NOW + 1_000,
            set_at: NOW,
            written: NOW,
        };
        self.machine
            .redis
            .store
            .borrow_mut()
            .entries
            .insert(name(policy, &Key::from(key)), entry);
    }

    fn writes(&self) -> usize {
        self.machine.redis.store.borrow().writes
    }

    fn eval(&self, script: &Script, keys: &[Vec<u8>], rest: &[i64]) -> Result<Vec<u8>, String> {
        let mut arguments = self.machine.head();
        arguments.extend(rest.iter().map(|number| number.to_string().into_bytes()));
        self.machine.redis.eval(script, keys, &arguments)
    }

    /// The flag of each request for one unit of every policy.
    fn decide(&self, requests: &[&str]) -> Result<String, String> {
        let policies = self.machine.set().policies().len();
        let named = |key: &&str| {
            (0..policies)
                .map(|policy| name(policy, &Key::from(*key)))
                .collect::<Vec<_>>()
        };
        let keys: Vec<_> = requests.iter().flat_map(named).collect();
        let reply = self.eval(
            &self.machine.prepared.scripts.decide,
            &keys,
            &vec![1; keys.len()],
        )?;
        let parts =
            split(reply, requests.iter().map(|_| policies)).expect("a reply about these requests");
        Ok(parts
            .iter()
            .map(|part| char::from(part.flag().unwrap()))
            .collect())
    }

    /// The flag of settling a charge of one unit of each policy as three.
    fn settle(&self, key: &str) -> Result<String, String> {
        let policies = 0..self.machine.set().policies().len();
        let keys: Vec<_> = policies
            .clone()
            .map(|policy| name(policy, &Key::from(key)))
            .collect();
        let items: Vec<i64> = policies
            .flat_map(|policy| [policy as i64 + 1, NOW, 0, 1, 3])
            .collect();
        let reply = self.eval(&self.machine.prepared.scripts.settle, &keys, &items)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }
}

fn gcra() -> Algorithm {
    Gcra::new(Rate::per_hour(10)).build().unwrap()
}

/// A state that names an instant for which the server accepts no time to live.
fn out_of_time() -> (Algorithm, Vec<u8>) {
    let algorithm = TokenBucket::new(Rate::per_hour(10)).build().unwrap();
    let mut value = algorithm.fresh().to_wire(&algorithm).unwrap();
    let at = algorithm.tag().len();
    value[at..at + 8].copy_from_slice(&1e300_f64.to_le_bytes());
    (algorithm, value)
}

fn policy(name: &str, algorithm: impl IntoAlgorithm) -> PolicyTree {
    Policy::new(name, algorithm).unwrap().into()
}

#[test]
fn instant_that_no_limit_can_reach_is_not_written_and_charges_nothing() {
    let (algorithm, value) = out_of_time();
    let members = || vec![policy("sound", gcra()), policy("poisoned", algorithm)];
    for tree in [
        PolicyTree::All(members()),
        PolicyTree::Any(members(), AnyCharge::EveryAdmitting),
    ] {
        let told = Told::new(tree.clone());
        told.store(1, "bad", value.clone());
        assert_eq!(told.decide(&["bad"]), Ok("W".to_owned()));
        assert_eq!(told.settle("bad"), Ok("W".to_owned()));
        assert_eq!(told.writes(), 0);
        assert_eq!(told.decide(&["good", "bad", "good"]), Ok("AWA".to_owned()));
        assert_eq!(told.writes(), 2, "the keys of the good requests");
    }
    let told = Told::new(policy("poisoned", algorithm));
    told.store(0, "bad", value);
    assert_eq!(told.decide(&["good", "bad", "good"]), Ok("AWA".to_owned()));
    assert_eq!(told.settle("bad"), Ok("W".to_owned()));
}

#[test]
fn request_with_one_value_that_makes_no_sense_is_not_decided() {
    let former = Gcra::new(Rate::per_hour(11)).build().unwrap();
    let tree = PolicyTree::All(vec![policy("nonsense", gcra()), policy("former", gcra())]);
    for [nonsense, other] in [[0, 1], [1, 0]] {
        let told = Told::new(tree.clone());
        told.store(nonsense, "key", Vec::new());
        told.store(other, "key", former.fresh().to_wire(&former).unwrap());
        assert_eq!(told.decide(&["key"]), Ok("W".to_owned()));
    }
}

/// The script stops in the middle of a call. What it has decided before that is charged once.
#[test]
fn value_that_a_script_cannot_calculate_with_fails_its_own_request_only() {
    let window = SlidingWindow::new(Rate::per_hour(10)).build().unwrap();
    let mut value = window.fresh().to_wire(&window).unwrap();
    let at = window.tag().len();
    value[at..at + 8].copy_from_slice(&f64::INFINITY.to_le_bytes());
    for tree in [
        policy("one", window),
        PolicyTree::All(vec![policy("one", window), policy("two", window)]),
    ] {
        let told = Told::new(tree.clone());
        told.store(0, "bad", value.clone());
        assert_eq!(
            told.decide(&["good", "bad", "other", "bad", "good"]),
            Ok("AWAWA".to_owned())
        );
        let policies = told.machine.set().policies().len();
        assert!(told.writes() <= 3 * policies, "{} writes", told.writes());
        for (key, used) in [("good", 2), ("other", 1)] {
            let held = told.machine.redis.store.borrow().entries[&name(0, &Key::from(key))]
                .value
                .clone();
            let state = State::from_wire(&window, &held).unwrap();
            assert_eq!(
                window.peek(&state, Timestamp::from_micros(NOW)).remaining(),
                10 - used,
                "{key}"
            );
        }
    }
}

/// A width below zero, or none: the sub-windows of another writer must be few whatever it says.
#[test]
fn no_parameter_of_another_writer_keeps_the_server_busy() {
    for kind in 0..KINDS {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        for _ in 0..8 {
            let algorithm = algorithm(kind).new_tree(&mut runner).unwrap().current();
            let machine = Machine::new(Policy::new("p", gcra()).unwrap());
            let used = algorithm
                .decide(algorithm.fresh(), Timestamp::from_micros(NOW), 1)
                .0;
            let value = used.to_wire(&algorithm).unwrap();
            for place in (2..algorithm.tag().len()).step_by(8) {
                for number in [
                    0.0,
                    -0.0,
                    -1.0,
                    1e-300,
                    -1e-300,
                    1e300,
                    -1e300,
                    f64::INFINITY,
                    f64::NAN,
                ] {
                    let mut value = value.clone();
                    value[place..place + 8].copy_from_slice(&f64::to_le_bytes(number));
                    machine.run_all(&Key::from("key"), &value, NOW);
                }
            }
        }
    }
}
