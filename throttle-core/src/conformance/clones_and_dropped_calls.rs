//! The parts of the backend's contract that no law names: clones, cancellation, sets of any size.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::fixture::{Fixture, Observed, START, call, policy, start};
use super::model::Model;
use super::{Harness, Sample};
use crate::algorithm::Algorithm;
use crate::backend::{Backend, Call};
use crate::decision::Decision;
use crate::key::Key;
use crate::set::{PolicySet, PolicyTree};

/// Clones of a backend, later handles on it and sets that are prepared again share one store.
pub fn contract_clones_share_the_store<H: Harness>() {
    let harness = start::<H>();
    let sample = Sample::token_bucket();
    let rule = || policy("policy", sample.algorithm());
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
        assert!(
            harness
                .block_on(cloned.decide(prepared, &calls))
                .expect("the backend decides")
                .is_admitted()
        );
    }
    let elsewhere = Fixture::<H>::new(&harness, rule());
    assert_eq!(
        elsewhere.remaining(&key),
        sample.capacity() - 3,
        "three units taken through clones"
    );
    let limiter = elsewhere.limiter.clone();
    assert!(
        harness
            .block_on(limiter.decide(&calls))
            .expect("the backend decides")
            .is_admitted()
    );
    assert_eq!(elsewhere.remaining(&key), sample.capacity() - 4);
}

/// Sets that name one policy share its budgets, and each decides by its own parameters, whichever
/// was prepared last.
pub fn contract_each_set_decides_by_its_own_parameters<H: Harness>() {
    let harness = start::<H>();
    let sample = Sample::fixed_window();
    let limits = [sample.algorithm(), sample.lowered()];
    let [high, low] = limits.map(|limit| Fixture::<H>::of(&harness, limit));
    let again = Fixture::<H>::of(&harness, sample.algorithm());
    let key = Key::from("key");
    let left = || [&high, &low, &again].map(|fixture| fixture.remaining(&key));
    let [most, least] = limits.map(Algorithm::capacity);
    assert_eq!(left(), [most, least, most]);
    assert!(low.take(&key, 1).is_admitted() && high.take(&key, 1).is_admitted());
    assert_eq!(left(), [most - 2, least - 2, most - 2]);
    drop(high);
    assert!(low.take(&key, 1).is_admitted());
    assert_eq!(
        [&low, &again].map(|fixture| fixture.remaining(&key)),
        [least - 3, most - 3]
    );
}

/// Polls once, and drops a future that is not ready.
fn give_up<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A future that is dropped before or after its first poll has charged its whole request once or
/// not at all, and the store stays usable.
pub fn contract_dropped_futures_charge_at_most_once<H: Harness>() {
    let harness = start::<H>();
    let sample = Sample::fixed_window();
    let (one, other) = (
        policy("one", sample.algorithm()),
        policy("other", sample.algorithm()),
    );
    let fixture = Fixture::<H>::new(&harness, PolicyTree::All(vec![one.into(), other.into()]));
    let capacity = sample.capacity();
    let key = Key::from("dropped");
    let calls = [Call::from(key.clone()), Call::from(key.clone())];
    let left = || {
        let peek = fixture.peek(&key);
        let [one, other] = peek.statuses() else {
            panic!("two policies")
        };
        let (one, other) = (one.remaining(), other.remaining());
        assert!(
            one == other || !H::ATOMIC_SETS,
            "a dropped request left {one} of one policy and {other} of another"
        );
        one.min(other)
    };
    for dropped in 1..=3 {
        harness.block_on(async { drop(fixture.limiter.decide(&calls)) });
        assert!(
            left() >= capacity - dropped,
            "{dropped} futures dropped before they were polled"
        );
    }
    let before = left();
    for dropped in 1..=3 {
        let answer = harness.block_on(async { give_up(fixture.limiter.decide(&calls)) });
        assert!(answer.is_none_or(|answer| answer.is_ok_and(|decision| decision.is_admitted())));
        assert!(
            left() + dropped >= before,
            "{dropped} futures dropped after one poll"
        );
    }
    let used = Key::from("settled");
    let _ = fixture.charged(&used, 2);
    let charge = fixture.charged(&used, 2);
    harness.block_on(async { drop(give_up(fixture.limiter.settle(charge.actual(0)))) });
    let left = fixture.remaining(&used);
    assert!(
        [capacity - 4, capacity - 2].contains(&left),
        "settled once or not at all, and {left} are left"
    );
    assert_eq!(fixture.drain(&Key::from("usable")), capacity);
}

/// Sets of one, three and ten policies of every kind decide as the model does, whether keys are
/// shared or not.
pub fn contract_sets_of_every_size<H: Harness>() {
    for size in [1, 3, 10] {
        let harness = start::<H>();
        let samples = Sample::all().into_iter().cycle().skip(size).take(size);
        let members = samples
            .enumerate()
            .map(|(i, s)| policy(&format!("policy {i}"), s.algorithm()).into());
        let fixture = Fixture::<H>::new(&harness, PolicyTree::All(members.collect()));
        let own = |i: u64| Key::from(i);
        let mut model = Model::new();
        for step in 0..30 {
            let key = |i: u64| {
                if step % 2 == 0 {
                    Key::from("shared")
                } else {
                    own(i % 4)
                }
            };
            let calls: Vec<Call> = (0..size as u64)
                .map(|i| call(&key(i), (step + i) % 3))
                .collect();
            let now = START.after_micros(step * 3_456_789);
            harness.set_time(now);
            let expected = Observed::new(
                fixture.limiter.set(),
                &model.decide(fixture.limiter.set(), now, &calls),
            );
            assert_eq!(
                fixture.observed(&fixture.decide(&calls)),
                expected,
                "step {step} of {size} policies"
            );
        }
    }
}

/// A policy without a key in a request neither refuses nor is charged; when none applies, the
/// request is admitted.
pub fn contract_skipped_policies<H: Harness>() {
    let harness = start::<H>();
    let sample = Sample::sliding_window();
    let members = ["a", "b", "c"]
        .map(|name| policy(name, sample.algorithm()).into())
        .to_vec();
    let fixture = Fixture::<H>::new(&harness, PolicyTree::All(members));
    let (key, capacity) = (Key::from("key"), sample.capacity());
    let skipping = [Call::SKIP, call(&key, 1), Call::SKIP];
    let applied = |decision: &Decision| -> Vec<bool> {
        decision.statuses().iter().map(|s| s.applies()).collect()
    };
    for left in (0..capacity).rev() {
        let decision = fixture.decide(&skipping);
        assert!(decision.is_admitted());
        assert_eq!(
            (decision.remaining(), applied(&decision)),
            (left, vec![false, true, false])
        );
    }
    assert_eq!(fixture.decide(&skipping).binding(), Some(1));
    assert_eq!(
        fixture.left(&key),
        [capacity, 0, capacity],
        "skipped policies were not charged"
    );

    let short = fixture.decide(&[call(&key, 1)]);
    assert!(
        short.is_admitted(),
        "policies beyond the last call are skipped: {short:?}"
    );
    assert_eq!(applied(&short), [true, false, false]);
    for nothing in [&[Call::SKIP, Call::SKIP, Call::SKIP][..], &[]] {
        let decision = fixture.decide(nothing);
        assert!(decision.is_admitted());
        assert_eq!((decision.remaining(), decision.binding()), (u64::MAX, None));
    }
}
