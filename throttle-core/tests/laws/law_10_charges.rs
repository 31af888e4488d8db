//! Law 10, a charge is used once: it gives back no more than was taken, never into a later window,
//! and debits no more than remains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Backend, Gcra, Key, LeakyBucket, Limiter, ManualClock, MemoryBackend, Policy, PolicySet, Rate,
    Timestamp,
};

use crate::support::bounds::check_every_stretch;
use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::spec::{Cadence, DAY, Kind, Spec, TODAY, Tree};
use crate::support::strategies::{composite, run, small};
use crate::support::trace::{Case, cases};

/// Charges settled in any order, down, up or not at all: the admissions in any stretch are within
/// the bound plus what was given back in it, and no settlement gives or takes more than it may.
fn mixed(case: &Case) -> TestCaseResult {
    let mut machine = Pure::new(&case.tree);
    let (step, mut t) = (case.tree.step(), TODAY);
    let mut open: Vec<(Receipt, u64)> = Vec::new();
    let mut events = Vec::new();
    let capacity = machine.capacities().into_iter().min().unwrap_or(1);
    for raw in &case.raws {
        t += raw.micros(step, false);
        if raw.what >= 5 && !open.is_empty() {
            let (charge, taken) = open.swap_remove(usize::from(raw.pick) % open.len());
            let actual =
                [0, 0, taken / 2, taken, taken + 1, taken + capacity][raw.members as usize % 6];
            let before: Vec<u64> = left(&machine.peek(t));
            machine.settle(t, charge.actual(actual));
            for (before, after) in before.iter().zip(left(&machine.peek(t))) {
                let (most, least) = (
                    before + taken.saturating_sub(actual),
                    before.saturating_sub(actual.saturating_sub(taken)),
                );
                // Without delays all or nothing remains.
                let is_counted = !case
                    .tree
                    .leaves()
                    .iter()
                    .any(|spec| matches!(spec, Spec::Undelayed { .. }));
                prop_assert!(
                    !is_counted || (least..=most).contains(&after),
                    "{} became {} by {} of {}",
                    before,
                    after,
                    actual,
                    taken
                );
            }
            events.push((t, 0, taken.saturating_sub(actual)));
        } else {
            let cost = raw.cost(capacity).clamp(1, capacity);
            if let (decision, Some(charge)) = machine.take(t, cost) {
                prop_assert!(decision.is_admitted());
                open.push((charge, cost));
                events.push((t, cost, 0));
            }
        }
        for (status, capacity) in machine.peek(t).statuses().iter().zip(machine.capacities()) {
            prop_assert!(status.remaining() <= capacity);
        }
    }
    check_every_stretch(&case.tree, 0, &events).map_err(TestCaseError::fail)
}

fn left(decision: &throttle_core::Decision) -> Vec<u64> {
    decision
        .statuses()
        .iter()
        .map(|status| status.remaining())
        .collect()
}

#[test]
fn law_10_admitted_is_within_the_bound_and_what_was_given_back() {
    for kind in Kind::ALL {
        let leaves = small(kind).prop_map(Tree::Leaf).boxed();
        run(&format!("{kind:?}"), &cases(leaves, 60), mixed);
    }
    run("compositions", &cases(composite(), 60), mixed);
}

/// A charge of one window, settled in a later one, moves nothing there.
#[test]
fn law_10_never_into_a_later_window() {
    let day = DAY as i64;
    let noon = TODAY / day * day + day / 2;
    for (spec, later) in [
        (Spec::fixed(5, DAY), day / 2),
        (Spec::fixed(5, DAY), 10 * day),
        (Spec::calendar(5, Cadence::Day, 0), day / 2),
        (Spec::calendar(5, Cadence::Month, 345), 31 * day),
        (Spec::calendar(5, Cadence::Week, -60), 7 * day),
        (Spec::buckets(5, DAY, 10), 2 * day),
        // Later by as many sub-windows as are kept, so that the later one occupies the earlier
        // one's place.
        (Spec::buckets(5, DAY, 10), day / 10 * 11),
        (Spec::log(5, DAY), day),
        (Spec::log(5, DAY), 3 * day),
    ] {
        for actual in [0, 2, 9] {
            let tree = Tree::Leaf(spec);
            let mut machine = Pure::new(&tree);
            let charge = machine.take(noon, 4).1.expect("admitted");
            assert!(machine.take(noon + later, 3).0.is_admitted());
            assert_eq!(machine.peek(noon + later).remaining(), 2, "{spec:?}");
            machine.settle(noon + later, charge.actual(actual));
            assert_eq!(
                machine.peek(noon + later).remaining(),
                2,
                "{spec:?} settled with {actual}"
            );
        }
    }
}

/// Units used beyond the charge are debited as far as units remain, and no other key is affected.
#[test]
fn law_10_settling_up_debits_what_is_left_at_most() {
    for spec in super::law_07_lying_clocks::every_algorithm() {
        for (actual, expected) in [
            (0, 4),
            (1, 3),
            (2, 2),
            (3, 1),
            (4, 0),
            (5, 0),
            (u64::MAX, 0),
        ] {
            let tree = Tree::Leaf(spec);
            let mut machine = Pure::new(&tree);
            assert!(machine.take(TODAY, 1).0.is_admitted());
            let charge = machine.take(TODAY, 2).1.expect("admitted");
            machine.settle(TODAY, charge.actual(actual));
            assert_eq!(
                machine.peek(TODAY).remaining(),
                expected,
                "{spec:?} settled with {actual}"
            );
        }
    }
}

/// Sixteen threads charge and refund at random; at the end exactly the charges that were kept count
/// as used.
#[test]
fn law_10_racing_refunds_give_back_exactly_once() {
    for spec in super::law_07_lying_clocks::every_algorithm() {
        let machine = Arc::new(InMemory::new(&Tree::Leaf(spec)));
        let (kept, refunded) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..16_u64 {
                let (machine, kept, refunded) = (&machine, &kept, &refunded);
                scope.spawn(move || {
                    for round in 0..200 {
                        let (decision, charge) = machine.take_for(TODAY, "shared", 1);
                        assert_eq!(decision.is_admitted(), charge.is_some());
                        let Some(charge) = charge else { continue };
                        if (thread + round) % 61 == 0 {
                            kept.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        machine
                            .backend
                            .settle_now(&machine.prepared, charge.actual(0));
                        refunded.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let (kept, left) = (
            kept.into_inner(),
            machine.take_for(TODAY, "shared", 0).0.remaining(),
        );
        if matches!(spec, Spec::Shaper { .. }) {
            // A slot is returned only while no later slot is scheduled.
            assert!(kept + left <= 5, "{spec:?}: {kept} kept, {left} left");
        } else {
            assert_eq!(kept + left, 5, "{spec:?}: {refunded:?} given back");
        }
    }
}

/// A cancelled waiter returns its slot, unless a later waiter is scheduled.
#[test]
fn trap_v14_a_cancelled_slot_returns() {
    let mut machine = InMemory::new(&Tree::Leaf(Spec::shaper(1, 1_000_000, 10_000_000)));
    let second = |seconds: u64| std::time::Duration::from_secs(seconds);
    let (first, _) = machine.take(TODAY, 1);
    let (dropped, charge) = machine.take(TODAY, 1);
    assert_eq!([first.delay(), dropped.delay()], [second(0), second(1)]);
    machine.settle(TODAY, charge.expect("admitted").actual(0));
    let (next, charge) = machine.take(TODAY, 1);
    assert_eq!(next.delay(), second(1), "the dead slot is used again");
    let _ = machine.take(TODAY, 1);
    machine.settle(TODAY, charge.expect("admitted").actual(0));
    assert_eq!(
        machine.take(TODAY, 1).0.delay(),
        second(3),
        "no later waiter moves up"
    );
}

/// A quota whose period begins with first use: a charge of one period is not given back in the
/// next.
#[test]
fn law_10_a_rolling_quota_takes_nothing_back_from_an_earlier_period() {
    use throttle_core::{CalendarQuota, Limiter, ManualClock, MemoryBackend, Policy, PolicySet};
    let clock = ManualClock::default();
    let backend = MemoryBackend::builder().clock(clock.clone()).build();
    let quota = CalendarQuota::rolling(5, std::time::Duration::from_secs(60));
    let limiter = Limiter::new(
        backend,
        PolicySet::new(Policy::new("quota", quota).unwrap()).unwrap(),
    )
    .unwrap();
    let early = limiter.charge("key", 5).1.unwrap();
    clock.advance(std::time::Duration::from_secs(61));
    let late = limiter.charge("key", 5).1.unwrap();
    early.refund_now();
    assert_eq!(limiter.peek("key").remaining(), 0, "a later period");
    late.refund_now();
    assert_eq!(limiter.peek("key").remaining(), 5, "its own period");
}

/// A key that was forgotten is stored again only if it owes something.
#[test]
fn a_settlement_of_a_forgotten_key_stores_it_only_for_a_debit() {
    let mut machine = InMemory::new(&Tree::Leaf(Spec::gcra(9, DAY, 9)));
    for (actual, keys) in [(0, 0), (2, 0), (3, 1)] {
        let charge = machine.take(TODAY, 2).1.expect("admitted");
        drop(machine.backend.reset_all(""));
        assert_eq!(machine.backend.keys(), 0);
        machine.settle(TODAY, charge.actual(actual));
        assert_eq!(machine.backend.keys(), keys, "{actual} of two used");
    }
}

/// A charge is never of nothing: a cost of 0 takes one unit, as it does without a charge.
#[test]
fn law_10_a_charge_of_0_units_is_one_of_1() {
    let limiter =
        Limiter::in_memory(Policy::new("p", Gcra::new(Rate::per_day(9))).unwrap()).unwrap();
    let (decision, charge) = limiter.charge("ada", 0);
    assert_eq!(
        (decision.remaining(), limiter.check("ada", 0).remaining()),
        (8, 7)
    );
    charge.expect("it was admitted").refund_now();
    assert_eq!(limiter.peek("ada").remaining(), 8);
}

/// Two charges whose time has passed are settled around a later one, which keeps its units.
#[test]
fn law_10_a_refund_on_an_idle_schedule_touches_no_later_charge() {
    let clock = ManualClock::new(Timestamp::from_micros(TODAY));
    let memory = MemoryBackend::builder().clock(clock.clone()).build();
    let second = Duration::from_secs(1);
    let shaper = LeakyBucket::new(Rate::new(7, 3 * second))
        .max_wait(3 * second)
        .without_delay();
    let set = memory
        .prepare(PolicySet::new(Policy::new("p", shaper).unwrap()).unwrap())
        .unwrap();
    let take = |at: i64, units| {
        clock.set(Timestamp::from_micros(TODAY + at));
        let calls = [Call::from(Key::from("ada")).costing(units)];
        Receipt::of(&memory.decide_now(&set, &calls), &calls).expect("a charge")
    };
    let (first, second) = (take(0, 3), take(1_285_715, 3));
    clock.set(Timestamp::from_micros(TODAY + 10_000_000));
    memory.settle_now(&set, first.actual(1));
    let _ = take(10_000_000, 8);
    memory.settle_now(&set, second.actual(1));
    let left = memory.decide_now(&set, &[Call::peek(Key::from("ada"))]);
    assert_eq!(
        left.reset_after(),
        Duration::from_micros(3_428_572),
        "eight units at seven in three seconds"
    );
}
