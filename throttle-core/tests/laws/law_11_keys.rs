//! Law 11, keys are injective: different keys never share a bucket, and equal keys always do.

use std::collections::HashMap;

use proptest::prelude::*;
use throttle_core::backend::Call;
use throttle_core::{Backend, Cost, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicySet, PolicyTree, Rate};

use crate::support::strategies::run;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Text(String),
    Bytes(Vec<u8>),
    Number(u64),
    Missing,
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        // Few letters, so that concatenations often look alike.
        4 => "[a:\\x00]{0,4}".prop_map(Part::Text),
        1 => ".{0,40}".prop_map(Part::Text),
        2 => prop::collection::vec(prop::sample::select(vec![0_u8, 1, 2, b'a', b':']), 0..12).prop_map(Part::Bytes),
        2 => prop::sample::select(vec![0_u64, 1, 97, 256, u64::MAX]).prop_map(Part::Number),
        1 => Just(Part::Missing),
    ]
}

fn key(parts: &[Part]) -> Key {
    let add = |builder: throttle_core::KeyBuilder, part: &Part| match part {
        Part::Text(text) => builder.text(text),
        Part::Bytes(bytes) => builder.bytes(bytes),
        Part::Number(number) => builder.number(*number),
        Part::Missing => builder.missing(),
    };
    parts.iter().fold(Key::builder(), add).finish()
}

fn backend() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder().clock(ManualClock::default()).build()
}

fn policy(name: &str, burst: u64) -> Policy {
    Policy::new(name, Gcra::new(Rate::per_hour(1)).burst(burst)).expect("valid")
}

/// Every key has one unit: it is admitted the first time its parts occur, and never again.
#[test]
fn law_11_different_parts_never_share_a_bucket_in_memory() {
    let keys = prop::collection::vec(prop::collection::vec(part(), 0..4), 1..60);
    run("keys", &keys, |keys| {
        let backend = backend();
        let set = backend.prepare(PolicySet::new(policy("p", 3)).unwrap()).unwrap();
        let mut seen = HashMap::new();
        for parts in keys {
            let times = seen.entry(parts.clone()).or_insert(0);
            *times += 1;
            let decision = backend.decide_now(&set, &[Call::from(key(parts))]);
            prop_assert_eq!(decision.is_admitted(), *times <= 3, "{:?} for the {}th time", parts, times);
            prop_assert_eq!(decision.remaining(), 3_u64.saturating_sub(*times));
        }
        Ok(())
    });
}

#[test]
fn law_11_two_policies_count_one_key_apart() {
    let backend = backend();
    let rule = PolicyTree::All(vec![policy("a", 5).into(), policy("b", 5).into()]);
    let set = backend.prepare(PolicySet::new(rule).unwrap()).unwrap();
    let key = || Key::from("key");
    let call = |cost| Call::new(key(), Cost::new(cost).unwrap());
    assert!(backend.decide_now(&set, &[call(5), Call::SKIP]).is_admitted());
    assert!(!backend.decide_now(&set, &[call(1), Call::SKIP]).is_admitted());
    let decision = backend.decide_now(&set, &[Call::peek(key()), call(2)]);
    assert_eq!([decision.statuses()[0].remaining(), decision.statuses()[1].remaining()], [0, 3]);

    // A policy of the same name in another set has the same budget; a policy of another name has its own.
    let same = backend.prepare(PolicySet::new(policy("a", 5)).unwrap()).unwrap();
    let other = backend.prepare(PolicySet::new(policy("aa", 5)).unwrap()).unwrap();
    assert!(!backend.decide_now(&same, &[call(1)]).is_admitted());
    assert!(backend.decide_now(&other, &[call(5)]).is_admitted());
}

#[test]
fn trap_v32_joined_parts_stay_apart() {
    let backend = backend();
    let set = backend.prepare(PolicySet::new(policy("p", 1)).unwrap()).unwrap();
    let pair = |a: &str, b: &str| Call::from(Key::builder().text(a).text(b).finish());
    assert!(backend.decide_now(&set, &[pair("a:b", "c")]).is_admitted());
    assert!(backend.decide_now(&set, &[pair("a", "b:c")]).is_admitted());
    assert!(!backend.decide_now(&set, &[pair("a:b", "c")]).is_admitted());
    assert!(!backend.decide_now(&set, &[pair("a", "b:c")]).is_admitted());
}
