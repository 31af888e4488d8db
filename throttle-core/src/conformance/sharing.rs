//! The parts of the backend's contract that no law names: clones, cancellation, sets of any size.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::model::Model;
use super::stand::{START, Seen, Stand, call, policy, start};
use super::{Harness, Specimen};
use crate::backend::{Backend, Call};
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::set::{PolicySet, PolicyTree};

/// Clones of a backend, handles handed out later and sets prepared again are the same store.
pub fn contract_clones_share_the_store<H: Harness>() {
    let harness = start::<H>();
    let specimen = Specimen::token_bucket();
    let rule = || policy("policy", specimen.algorithm());
    let key = Key::from("shared");
    let backend = harness.backend();
    let set = PolicySet::new(rule()).expect("one policy");
    let prepared = Arc::new(backend.prepare(set.clone()).expect("one policy"));
    assert_eq!(H::Backend::set(&prepared), &set);
    let cloned = backend.clone();
    let again = Arc::new(cloned.prepare(set).expect("the same policy"));
    drop(backend);
    let calls = [Call::from(key.clone())];
    for prepared in [&prepared, &again, &prepared] {
        assert!(harness.block_on(cloned.decide(prepared, &calls)).expect("the backend decides").is_admitted());
    }
    let elsewhere = Stand::<H>::new(&harness, rule());
    assert_eq!(elsewhere.remaining(&key), specimen.capacity() - 3, "three units taken through clones");
    let limiter = elsewhere.limiter.clone();
    assert!(harness.block_on(limiter.decide(&calls)).expect("the backend decides").is_admitted());
    assert_eq!(elsewhere.remaining(&key), specimen.capacity() - 4);
}

/// A name stands for one limit of a store. Other parameters are refused while a set with the name is in use, and change
/// nothing; a policy that replaces the existing one is in force for both.
pub fn contract_a_name_stands_for_one_limit<H: Harness>() {
    let harness = start::<H>();
    let backend = harness.backend();
    let specimen = Specimen::fixed_window();
    let (own, changed) = (policy("name", specimen.algorithm()), policy("name", specimen.lowered()));
    let set = |policy: &Policy| PolicySet::new(policy.clone()).expect("one policy");
    let look = |prepared: &Arc<<H::Backend as Backend>::Prepared>| {
        let decision = harness.block_on(backend.decide(prepared, &[Call::peek(Key::from("key"))]));
        decision.expect("the backend decides").remaining()
    };
    let first = Arc::new(backend.prepare(set(&own)).expect("one policy"));
    assert!(backend.clone().prepare(set(&own)).is_ok(), "the same parameters are the same limit");
    let Err(error) = backend.clone().prepare(set(&changed)) else {
        panic!("other parameters of a name in use are prepared without a word");
    };
    assert_eq!(error.policy(), Some("name"), "{error}");
    assert_eq!(look(&first), specimen.capacity(), "what was refused is in force");

    let second = backend.prepare(set(&changed.clone().replace_existing()));
    let second = Arc::new(second.expect("it replaces the existing one"));
    assert_eq!(look(&second), specimen.lowered().capacity());
    drop((first, second));
    assert!(backend.prepare(set(&own)).is_ok(), "no set is in use any more");
}

/// Polls once and drops what is not ready.
fn give_up<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A future that is dropped, unpolled or polled once, has charged all of its request or nothing, and never twice; the
/// store stays usable.
pub fn contract_dropped_futures_charge_at_most_once<H: Harness>() {
    let harness = start::<H>();
    let specimen = Specimen::fixed_window();
    let (one, other) = (policy("one", specimen.algorithm()), policy("other", specimen.algorithm()));
    let stand = Stand::<H>::new(&harness, PolicyTree::All(vec![one.into(), other.into()]));
    let capacity = specimen.capacity();
    let key = Key::from("given up");
    let calls = [Call::from(key.clone()), Call::from(key.clone())];
    let left = || {
        let peek = stand.peek(&key);
        let [one, other] = peek.statuses() else { panic!("two policies") };
        let (one, other) = (one.remaining(), other.remaining());
        assert!(one == other || !H::ATOMIC_SETS, "given up, a request left {one} of one policy and {other} of another");
        one.min(other)
    };
    for dropped in 1..=3 {
        harness.block_on(async { drop(stand.limiter.decide(&calls)) });
        assert!(left() >= capacity - dropped, "{dropped} futures dropped before they were polled");
    }
    let before = left();
    for dropped in 1..=3 {
        let answer = harness.block_on(async { give_up(stand.limiter.decide(&calls)) });
        assert!(answer.is_none_or(|answer| answer.is_ok_and(|decision| decision.is_admitted())));
        assert!(left() + dropped >= before, "{dropped} futures dropped after one poll");
    }
    let used = Key::from("settled");
    let _ = stand.charged(&used, 2);
    let charge = stand.charged(&used, 2);
    harness.block_on(async { drop(give_up(stand.limiter.settle(charge.actual(0)))) });
    let left = stand.remaining(&used);
    assert!([capacity - 4, capacity - 2].contains(&left), "settled once or not at all, and {left} are left");
    assert_eq!(stand.drain(&Key::from("usable")), capacity);
}

/// Sets of one, three and ten policies of every kind decide as the model does, whether keys are shared or not.
pub fn contract_sets_of_every_size<H: Harness>() {
    for size in [1, 3, 10] {
        let harness = start::<H>();
        let specimens = Specimen::all().into_iter().cycle().skip(size).take(size);
        let members = specimens.enumerate().map(|(i, s)| policy(&format!("policy {i}"), s.algorithm()).into());
        let stand = Stand::<H>::new(&harness, PolicyTree::All(members.collect()));
        let own = |i: u64| Key::from(i);
        let mut model = Model::new();
        for step in 0..30 {
            let key = |i: u64| if step % 2 == 0 { Key::from("everybody") } else { own(i % 4) };
            let calls: Vec<Call> = (0..size as u64).map(|i| call(&key(i), (step + i) % 3)).collect();
            let now = START.after_micros(step * 3_456_789);
            harness.set_time(now);
            let expected = Seen::new(stand.limiter.set(), &model.decide(stand.limiter.set(), now, &calls));
            assert_eq!(stand.seen(&stand.decide(&calls)), expected, "step {step} of {size} policies");
        }
    }
}

/// A policy without a key in a request neither refuses nor is charged; when none applies, the request is admitted.
pub fn contract_skipped_policies<H: Harness>() {
    let harness = start::<H>();
    let specimen = Specimen::sliding_window();
    let members = ["a", "b", "c"].map(|name| policy(name, specimen.algorithm()).into()).to_vec();
    let stand = Stand::<H>::new(&harness, PolicyTree::All(members));
    let (key, capacity) = (Key::from("key"), specimen.capacity());
    let skipping = [Call::SKIP, call(&key, 1), Call::SKIP];
    let applied = |decision: &Decision| -> Vec<bool> { decision.statuses().iter().map(|s| s.applies()).collect() };
    for left in (0..capacity).rev() {
        let decision = stand.decide(&skipping);
        assert!(decision.is_admitted());
        assert_eq!((decision.remaining(), applied(&decision)), (left, vec![false, true, false]));
    }
    assert_eq!(stand.decide(&skipping).binding(), Some(1));
    let left: Vec<u64> = stand.peek(&key).statuses().iter().map(|status| status.remaining()).collect();
    assert_eq!(left, [capacity, 0, capacity], "skipped policies were not charged");

    let short = stand.decide(&[call(&key, 1)]);
    assert!(short.is_admitted(), "policies beyond the last call are skipped: {short:?}");
    assert_eq!(applied(&short), [true, false, false]);
    for nothing in [&[Call::SKIP, Call::SKIP, Call::SKIP][..], &[]] {
        let decision = stand.decide(nothing);
        assert!(decision.is_admitted());
        assert_eq!((decision.remaining(), decision.binding()), (u64::MAX, None));
    }
}
