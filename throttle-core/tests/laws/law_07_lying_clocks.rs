//! Law 7, time may lie: the admissions in any stretch stay within the algorithm's bound. On a clock
//! that steps back, time counts forward only; on two clocks that differ, the bound is real time
//! plus the skew, once.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::Call;
use throttle_core::{
    Backend, BoxBackend, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicySet, Rate, Timestamp,
};

use crate::support::bounds::{check_every_stretch, most_in_tree};
use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::spec::{Cadence, DAY, Kind, Spec, TODAY, Tree};
use crate::support::strategies::{composite, for_every_tree, run, small};
use crate::support::trace::{Case, cases};

/// Costs that can be admitted, mostly 1.
fn cost(raw: &crate::support::trace::Raw, capacity: u64) -> u64 {
    raw.cost(capacity).clamp(1, capacity)
}

fn forward_time(case: &Case, machine: &mut impl Machine) -> TestCaseResult {
    let (step, start) = (case.tree.step(), TODAY);
    let (mut t, mut forward, mut events) = (start, 0, Vec::new());
    let capacity = machine.capacities().into_iter().min().unwrap_or(1);
    for raw in &case.raws {
        let micros = raw.micros(step, true);
        (t, forward) = (t + micros, forward + micros.max(0));
        let cost = cost(raw, capacity);
        if machine.take(t, cost).0.is_admitted() {
            events.push((forward, cost, 0));
        }
    }
    check_every_stretch(&case.tree, 0, &events).map_err(TestCaseError::fail)
}

fn two_clocks(case: &Case, machine: &mut impl Machine) -> TestCaseResult {
    let step = case.tree.step();
    let skew = case.start.rem_euclid(5 * step + 1);
    let (mut real, mut events) = (TODAY, Vec::new());
    let capacity = machine.capacities().into_iter().min().unwrap_or(1);
    for raw in &case.raws {
        real += raw.micros(step, false);
        let cost = cost(raw, capacity);
        let read = real + if raw.pick % 2 == 0 { skew } else { 0 };
        if machine.take(read, cost).0.is_admitted() {
            events.push((real, cost, 0));
        }
    }
    check_every_stretch(&case.tree, skew, &events).map_err(TestCaseError::fail)
}

/// Compositions of limits whose bounds hold in every stretch.
fn for_every_small_tree(length: usize, check: impl Fn(&Case) -> TestCaseResult) {
    for kind in Kind::ALL {
        run(
            &format!("{kind:?}"),
            &cases(small(kind).prop_map(Tree::Leaf).boxed(), length),
            &check,
        );
    }
    run("compositions", &cases(composite(), length), check);
}

#[test]
fn law_07_a_step_back_buys_nothing() {
    for_every_small_tree(50, |case| forward_time(case, &mut Pure::new(&case.tree)));
}

#[test]
fn law_07_two_skewed_clocks_buy_the_skew_once() {
    for_every_small_tree(60, |case| two_clocks(case, &mut Pure::new(&case.tree)));
}

/// A single jump forward of any length buys at most one full burst.
fn one_jump(case: &Case) -> TestCaseResult {
    let mut machine = Pure::new(&case.tree);
    let drain = |machine: &mut Pure, t| {
        let left = machine.peek(t).remaining();
        let _ = machine.take(t, left);
        machine.peek(t).remaining()
    };
    let t = TODAY;
    drain(&mut machine, t);
    let fresh = Pure::new(&case.tree).peek(t).remaining();
    let jumped = t + case
        .raws
        .iter()
        .map(|raw| raw.micros(case.tree.step(), false))
        .max()
        .unwrap_or(0)
        .min(1 << 50);
    let bought = machine.peek(jumped).remaining();
    prop_assert!(
        bought <= fresh,
        "{} bought by a jump of {}, a burst is {}",
        bought,
        jumped - t,
        fresh
    );
    Ok(())
}

#[test]
fn law_07_a_jump_forward_buys_at_most_one_burst() {
    for_every_tree(|trees| cases(trees, 10), one_jump);
}

/// The clock stands at either end of time: nothing panics, and no more than a burst is admitted.
#[test]
fn law_07_the_ends_of_time_admit_one_burst() {
    run_at_ends(Pure::new);
    run_at_ends(InMemory::new);
}

fn run_at_ends<M: Machine>(make: impl Fn(&Tree) -> M) {
    for spec in every_algorithm() {
        let tree = Tree::Leaf(spec);
        for t in [Timestamp::MIN, Timestamp::MAX].map(Timestamp::as_micros) {
            let mut machine = make(&tree);
            let admitted = (0..100)
                .filter(|_| machine.take(t, 1).0.is_admitted())
                .count() as u64;
            assert_eq!(admitted, machine.capacities()[0], "{spec:?} at {t}");
        }
    }
}

/// One limit of each algorithm, five units in about a day.
pub(crate) fn every_algorithm() -> [Spec; 9] {
    let (limit, burst, period) = (5, 5, DAY);
    [
        Spec::gcra(limit, period, burst),
        Spec::token_bucket(limit, period, burst),
        Spec::leaky_meter(limit, period, burst),
        Spec::Interval {
            capacity: 5,
            refill: 5,
            interval: DAY,
            aligned: false,
        },
        Spec::fixed(limit, DAY),
        Spec::log(limit, DAY),
        Spec::buckets(limit, DAY, 10),
        Spec::calendar(limit, Cadence::Day, 0),
        Spec::shaper(limit, period, DAY / 5 * 4),
    ]
}

/// Steps of an hour and of ten years, both ways: a step back admits nothing, a step forward one
/// burst.
#[test]
fn attack_41_clock_jumps_by_an_hour_and_by_ten_years() {
    for spec in every_algorithm() {
        let tree = Tree::Leaf(spec);
        for jump in [3_600_000_000_i64, 3_652 * DAY as i64] {
            let mut machine = Pure::new(&tree);
            let noon = TODAY / DAY as i64 * DAY as i64 + DAY as i64 / 2;
            let mut burst = |t| {
                (0..20)
                    .filter(|_| machine.take(t, 1).0.is_admitted())
                    .count()
            };
            assert_eq!(burst(noon), 5, "{spec:?}");
            assert_eq!(burst(noon - jump), 0, "{spec:?} back by {jump}");
            assert_eq!(burst(noon), 0, "{spec:?} and forth");
            let ahead = burst(noon + jump);
            assert!(ahead <= 5, "{spec:?} forward by {jump}: {ahead}");
            assert_eq!(burst(noon), 0, "{spec:?}: home again from {jump}");
            for _ in 0..10 {
                assert_eq!(
                    burst(noon + jump) + burst(noon - jump),
                    0,
                    "{spec:?} there and back"
                );
            }
        }
    }
}

/// At most two bursts are admitted across a boundary, however a client times its requests.
#[test]
fn attack_42_a_fixed_window_edge_lets_two_limits_through_and_no_more() {
    let tree = Tree::Leaf(Spec::fixed(100, 60_000_000));
    let mut machine = InMemory::new(&tree);
    let edge = TODAY / 60_000_000 * 60_000_000 + 60_000_000;
    let mut admitted = |t| {
        (0..150)
            .filter(|_| machine.take(t, 1).0.is_admitted())
            .count()
    };
    assert_eq!(admitted(edge - 1), 100);
    assert_eq!(admitted(edge), 100);
    assert_eq!(
        admitted(edge - 1) + admitted(edge) + admitted(edge + 59_999_999),
        0
    );
    assert_eq!(most_in_tree(&tree, 1), Some(200));
    // Half a second on each side of a second's end, for an algorithm without windows.
    let mut gcra = InMemory::new(&Tree::Leaf(Spec::gcra(100, 60_000_000, 100)));
    let mut admitted = |t| (0..150).filter(|_| gcra.take(t, 1).0.is_admitted()).count();
    assert_eq!((admitted(edge - 1), admitted(edge)), (100, 0));
}

/// A decision as of a past instant is made as it would have been then; a future instant counts as
/// now.
#[test]
fn law_07_as_of_another_instant_nothing_comes_early() {
    let ms = |ms: i64| Timestamp::from_micros(TODAY + ms * 1_000);
    let clock = ManualClock::new(ms(0));
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    let backend = BoxBackend::new(memory);
    let policy = Policy::new("p", Gcra::new(Rate::per_second(10)).burst(1)).unwrap();
    let prepared = Arc::new(backend.prepare(PolicySet::new(policy).unwrap()).unwrap());
    let calls = [Call::from(Key::CONSTANT)];
    let wait = |at| {
        let mut deciding = backend.decide_as_of(&prepared, &calls, ms(at));
        let Poll::Ready(decided) = deciding
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        else {
            panic!("memory decides at once")
        };
        decided.unwrap().retry_after().unwrap().as_millis()
    };
    assert_eq!(backend.now(&prepared, &calls), Some(ms(0)));
    assert_eq!((wait(0), wait(100)), (0, 100), "as of an instant to come");
    clock.advance(Duration::from_millis(350));
    // Three units have become free one after the other, and none twice.
    assert_eq!(
        (wait(99), wait(100), wait(150), wait(200), wait(300)),
        (1, 0, 50, 0, 0)
    );
    assert_eq!((wait(100), wait(350), wait(400)), (300, 50, 50));
}
