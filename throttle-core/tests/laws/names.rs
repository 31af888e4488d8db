//! A policy's name stands for one limit of a store: which parameters are refused, which replace the others, and what
//! both sets decide then.

use std::sync::Arc;

use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendErrorKind, BoxBackend, Carry, Gcra, Key, LocalShare, ManualClock, MemoryBackend, Policy, PolicySet,
    PolicyTree, Rate, SlidingWindow,
};

fn per_minute(name: &str, count: u64) -> Policy {
    Policy::new(name, Gcra::new(Rate::per_minute(count))).unwrap()
}

fn set(rule: impl Into<PolicyTree>) -> PolicySet {
    PolicySet::new(rule).unwrap()
}

fn memory() -> MemoryBackend<ManualClock> {
    MemoryBackend::builder().clock(ManualClock::default()).build()
}

fn call() -> [Call; 1] {
    [Call::from(Key::from("key"))]
}

#[test]
fn other_parameters_of_a_name_in_use_are_refused_and_change_nothing() {
    let backend = memory();
    let login = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    let error = backend.clone().prepare(set(per_minute("per-ip", 100))).unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("per-ip"), "parameters of the limit"));
    let text = error.to_string();
    for part in ["gcra 100/minute with a capacity of 100", "gcra 5/minute with a capacity of 5", ".replace_existing()"]
    {
        assert!(text.contains(part), "{text}");
    }
    let admitted = (0..30).filter(|_| backend.decide_now(&login, &call()).is_admitted()).count();
    assert_eq!(admitted, 5);
}

#[test]
fn the_same_parameters_are_the_same_limit() {
    let backend = memory();
    let first = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    let second = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    assert_eq!(backend.decide_now(&first, &call()).remaining(), 4);
    assert_eq!(backend.decide_now(&second, &call()).remaining(), 3);
}

#[test]
fn a_name_is_free_once_the_last_clone_of_its_set_is_dropped() {
    let backend = memory();
    let first = backend.prepare(set(per_minute("per-ip", 5))).unwrap();
    let clone = first.clone();
    drop(first);
    assert!(backend.prepare(set(per_minute("per-ip", 100))).is_err());
    drop(clone);
    let hundred = Arc::new(backend.prepare(set(per_minute("per-ip", 100))).unwrap());
    assert_eq!(backend.decide_now(&hundred, &call()).remaining(), 99);
    assert!(backend.in_force(&hundred).is_none(), "its own parameters are in force");
}

#[test]
fn every_name_of_a_set_is_free_once_the_set_is_dropped() {
    let backend = memory();
    let both = PolicyTree::All(vec![per_minute("a", 5).into(), per_minute("b", 5).into()]);
    drop(backend.prepare(set(both)).unwrap());
    for name in ["a", "b"] {
        assert!(backend.prepare(set(per_minute(name, 100))).is_ok(), "{name}");
    }
}

#[test]
fn a_unit_a_tier_and_a_rule_are_parameters() {
    let tiers = [("free", Gcra::new(Rate::per_minute(5)))];
    let plain = per_minute("p", 5);
    let tiered = Policy::tiered("p", tiers, Carry::Keep).unwrap();
    let window = |buckets| Policy::new("p", SlidingWindow::new(Rate::per_minute(60)).buckets(buckets)).unwrap();
    for (one, other) in [
        (plain.clone(), plain.clone().with_unit("bytes").unwrap()),
        (plain.clone(), tiered.clone()),
        (tiered.clone(), Policy::tiered("p", tiers, Carry::Reset).unwrap()),
        (window(10), window(20)),
    ] {
        let backend = memory();
        let _in_use = backend.prepare(set(one)).unwrap();
        let error = backend.prepare(set(other)).unwrap_err();
        let text = error.to_string();
        let (_, existing) = text.split_once("with other parameters, ").unwrap();
        assert!(!existing.starts_with(&format!("{}, and a name", error.value())), "both are described alike: {text}");
    }
}

#[test]
fn a_set_of_which_one_policy_is_refused_replaces_nothing() {
    let backend = memory();
    let first = Arc::new(backend.prepare(set(per_minute("a", 5))).unwrap());
    let _second = backend.prepare(set(per_minute("b", 5))).unwrap();
    let members = vec![per_minute("a", 100).replace_existing().into(), per_minute("b", 100).into()];
    assert_eq!(backend.prepare(set(PolicyTree::All(members))).unwrap_err().policy(), Some("b"));
    assert_eq!(backend.decide_now(&first, &call()).remaining(), 4);
    assert!(backend.in_force(&first).is_none());
}

#[test]
fn replacing_is_in_force_for_every_set_and_each_reports_it() {
    let backend = memory();
    let former = Arc::new(backend.prepare(set(per_minute("per-ip", 5))).unwrap());
    assert!(backend.in_force(&former).is_none());
    let unrelated = backend.prepare(set(per_minute("other", 7))).unwrap();
    let changed = Arc::new(backend.prepare(set(per_minute("per-ip", 100).replace_existing())).unwrap());
    assert_eq!(backend.decide_now(&former, &call()).remaining(), 99);

    let in_force = backend.in_force(&former).expect("its parameters were replaced");
    assert_eq!(in_force.policies()[0].algorithm().capacity(), 100);
    drop(unrelated);
    let _another = backend.prepare(set(per_minute("third", 7))).unwrap();
    assert!(Arc::ptr_eq(&in_force, &backend.in_force(&former).unwrap()), "nothing about these has changed");
    assert!(backend.in_force(&changed).is_none());

    let _back = backend.prepare(set(per_minute("per-ip", 5).replace_existing())).unwrap();
    assert!(backend.in_force(&former).is_none(), "its own are in force again");
    assert_eq!(backend.in_force(&changed).unwrap().policies()[0].algorithm().capacity(), 5);
}

#[test]
fn a_boxed_backend_reports_what_is_in_force() {
    let backend = BoxBackend::new(memory());
    let former = Arc::new(backend.prepare(set(per_minute("per-ip", 5))).unwrap());
    assert!(backend.prepare(set(per_minute("per-ip", 100))).is_err());
    let _changed = backend.prepare(set(per_minute("per-ip", 100).replace_existing())).unwrap();
    assert_eq!(backend.in_force(&former).unwrap().policies()[0].algorithm().capacity(), 100);
}

#[test]
fn shares_on_one_store_follow_the_same_rule() {
    let (store, limits) = (memory(), set(per_minute("per-ip", 60)));
    let of = |processes: u32| processes.try_into().unwrap();
    let first = LocalShare::new(&store, &limits, of(2)).unwrap();
    assert!(LocalShare::new(&store, &limits, of(2)).is_ok());
    assert!(LocalShare::new(&store, &limits, of(3)).is_err());
    let _second = LocalShare::new(&store, &limits.replace_existing(), of(3)).unwrap();
    assert_eq!(first.decide(&call(), BackendErrorKind::Timeout).remaining(), 19);
}

#[test]
fn a_name_that_is_wrong_is_shown_with_the_bound_and_what_to_do() {
    let error = |name: &str| Policy::new(name, Gcra::new(Rate::per_minute(1))).unwrap_err();
    let long = error(&"x".repeat(97));
    assert_eq!(long.value(), format!("\"{}\" and so on, 97 characters long", "x".repeat(24)));
    assert!(
        long.to_string()
            .ends_with("1 to 64 printable ASCII characters, because clients read it in headers; shorten it")
    );
    assert_eq!(error("").value(), "\"\"");
    assert_eq!(error("größe").value(), "\"größe\"");
    assert!(error("größe").to_string().contains("ASCII letters"));
}

#[test]
fn a_burst_of_zero_is_to_be_raised() {
    let error = Gcra::new(Rate::per_minute(1)).burst(0).build().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("between 1 and") && text.contains("raise it") && !text.contains("lower it"), "{text}");
}
