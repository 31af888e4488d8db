//! Wrong decisions seen in other rate limiters, each with the right one.

use std::time::Duration;

use throttle_core::backend::{Call, KeyStep};
use throttle_core::{Cost, Key, Policy, PolicySet, PolicyTree};

use crate::support::machines::{InMemory, Machine};
use crate::support::spec::{Cadence, DAY, MINUTE, SECOND, Spec, Tree};

const T0: i64 = 1_700_000_000_000_000;
const S: i64 = 1_000_000;

fn machine(spec: Spec) -> InMemory {
    InMemory::new(&Tree::Leaf(spec))
}

/// How many of `tries` requests of one unit are admitted at an instant.
fn admitted(machine: &mut InMemory, t: i64, tries: usize) -> usize {
    (0..tries)
        .filter(|_| machine.take(t, 1).0.is_admitted())
        .count()
}

fn allowed(machine: &mut InMemory, t: i64, cost: u64) -> bool {
    machine.take(t, cost).0.is_admitted()
}

#[test]
fn trap_v01_a_cold_key_admits_the_whole_burst() {
    let mut gcra = machine(Spec::gcra(600, 10 * SECOND, 7));
    assert_eq!(admitted(&mut gcra, 1_704_698_091_148_000, 20), 7);
}

#[test]
fn trap_v02_remaining_counts_down_to_zero() {
    let mut gcra = machine(Spec::gcra(600, 10 * SECOND, 7));
    let remaining: Vec<u64> = (0..7)
        .map(|_| gcra.take(1_704_698_091_148_000, 1).0.remaining())
        .collect();
    assert_eq!(remaining, [6, 5, 4, 3, 2, 1, 0]);
}

#[test]
fn trap_v03_a_step_back_is_not_refilled_twice() {
    let mut bucket = machine(Spec::token_bucket(1, SECOND, 10));
    let remaining =
        [(100, 5), (90, 1), (100, 1)].map(|(s, cost)| bucket.take(T0 + s * S, cost).0.remaining());
    assert_eq!(remaining, [5, 4, 3]);
}

#[test]
fn trap_v04_a_step_back_reopens_no_window() {
    let mut fixed = machine(Spec::fixed(100, MINUTE));
    let start = T0 / MINUTE as i64 * MINUTE as i64;
    let each = [1_000, -1_000, 2_000].map(|offset| admitted(&mut fixed, start + offset, 150));
    assert_eq!(each, [100, 0, 0]);
}

#[test]
fn trap_v05_a_step_back_over_the_whole_window_admits_nothing() {
    let mut sliding = machine(Spec::buckets(100, MINUTE, 10));
    let each = [0, -72 * S, 0].map(|offset| admitted(&mut sliding, T0 + offset, 200));
    assert_eq!(each, [100, 0, 0]);
}

#[test]
fn trap_v06_the_wait_follows_the_estimate() {
    // At the start of a sub-window, and two seconds into one.
    for (t, wait) in [(T0 - 2 * S, 59_060), (T0, 57_060)] {
        let mut sliding = machine(Spec::buckets(100, MINUTE, 10));
        assert!(allowed(&mut sliding, t, 100));
        assert_eq!(
            sliding.take(t + S, 1).0.retry_after(),
            Some(Duration::from_millis(wait))
        );
        assert!(!allowed(&mut sliding, t + S + wait as i64 * 1_000 - 1, 1));
        assert!(allowed(&mut sliding, t + S + wait as i64 * 1_000, 1));
    }
}

#[test]
fn trap_v07_a_refused_large_cost_says_nothing_about_a_small_one() {
    let mut bucket = machine(Spec::token_bucket(1, SECOND, 100));
    let answers = [(0, 50), (0, 60), (1_000, 1)]
        .map(|(offset, cost)| allowed(&mut bucket, T0 + offset, cost));
    assert_eq!(answers, [true, false, true]);
}

#[test]
fn trap_v12_an_impossible_cost_of_any_is_never() {
    let leaf = |burst| Tree::Leaf(Spec::gcra(1, SECOND, burst));
    let mut any = InMemory::new(&Tree::Any(vec![leaf(3), leaf(5)], false));
    assert_eq!(any.take(T0, 6).0.retry_after(), None);
    assert!(allowed(&mut any, T0, 5));
}

#[test]
fn trap_v13_a_cost_longer_than_the_queue_is_refused() {
    let mut shaper = machine(Spec::shaper(1, SECOND, 10 * SECOND));
    let decision = shaper.take(T0, 1_000_000).0;
    assert!(!decision.is_admitted());
    assert_eq!((decision.retry_after(), decision.remaining()), (None, 11));
}

/// Ten tokens, one more each two seconds: continuously, and in whole portions.
fn slow_buckets(interval: u64) -> [InMemory; 2] {
    [
        machine(Spec::token_bucket(1, interval, 10)),
        machine(Spec::Interval {
            capacity: 10,
            refill: 1,
            interval,
            aligned: false,
        }),
    ]
}

#[test]
fn trap_v15_polling_fast_does_not_refill_faster() {
    for mut bucket in slow_buckets(2 * SECOND) {
        assert!(allowed(&mut bucket, T0, 10));
        let polled = (1..=10_000)
            .filter(|i| allowed(&mut bucket, T0 + i * 1_000, 1))
            .count();
        assert_eq!(polled, 5);
    }
}

#[test]
fn trap_v16_parts_of_an_interval_are_not_lost() {
    for mut bucket in slow_buckets(10 * SECOND) {
        assert!(allowed(&mut bucket, T0, 10));
        let polled = (1..=400)
            .filter(|i| allowed(&mut bucket, T0 + i * 9 * S, 1))
            .count();
        assert_eq!(polled, 360);
    }
}

#[test]
fn trap_v17_a_first_call_above_the_capacity_is_never_and_charges_nothing() {
    for spec in super::law_07_lying_clocks::every_algorithm() {
        let mut machine = machine(spec);
        let decision = machine.take(T0, 100).0;
        assert_eq!(
            (
                decision.is_admitted(),
                decision.retry_after(),
                decision.remaining()
            ),
            (false, None, 5),
            "{spec:?}"
        );
        assert_eq!(machine.backend.keys(), 0, "{spec:?}");
    }
}

#[test]
fn trap_v18_a_cost_of_nothing_is_no_cost() {
    let error = Cost::new(0).unwrap_err();
    assert!(error.to_string().contains("peek"), "{error}");
}

#[test]
fn trap_v20_a_quota_of_one_admits_the_first() {
    for cadence in [Cadence::Day, Cadence::Week, Cadence::Month] {
        let mut quota = machine(Spec::calendar(1, cadence, 0));
        assert_eq!(admitted(&mut quota, T0, 3), 1);
    }
}

#[test]
fn trap_v21_hammering_at_twice_the_rate_gets_the_rate() {
    for (spec, expected) in [
        (Spec::gcra(1, SECOND, 10), 109),
        (Spec::token_bucket(1, SECOND, 10), 109),
        (Spec::leaky_meter(1, SECOND, 10), 109),
    ] {
        let mut machine = machine(spec);
        assert_eq!(
            (0..200)
                .filter(|i| allowed(&mut machine, T0 + i * S / 2, 1))
                .count(),
            expected
        );
    }
}

#[test]
fn trap_v22_a_second_that_turns_is_no_second_budget() {
    for spec in [
        Spec::gcra(5, SECOND, 5),
        Spec::token_bucket(5, SECOND, 5),
        Spec::log(5, SECOND),
        Spec::buckets(5, SECOND, 10),
    ] {
        let mut machine = machine(spec);
        assert_eq!(
            [T0 + 999_000, T0 + S].map(|t| admitted(&mut machine, t, 5)),
            [5, 0],
            "{spec:?}"
        );
    }
}

/// A host whose clock is a minute behind. GCRA stores nothing but the arrival time, and makes it
/// wait. The bucket stores the time of its last request, and serves the host from what remains.
#[test]
fn trap_v23_a_slow_host_is_not_charged_for_its_clock() {
    let mut bucket = machine(Spec::token_bucket(10, MINUTE, 10));
    let remaining = [0, -60 * S].map(|offset| bucket.take(T0 + offset, 1).0.remaining());
    assert_eq!(remaining, [9, 8]);
    let mut gcra = machine(Spec::gcra(10, MINUTE, 10));
    assert!(allowed(&mut gcra, T0, 1));
    assert_eq!(
        gcra.take(T0 - 60 * S, 1).0.retry_after(),
        Some(Duration::from_secs(12))
    );
    assert_eq!(gcra.peek(T0).remaining(), 9);
}

#[test]
fn trap_v24_a_rolling_window_has_no_edge() {
    let mut log = machine(Spec::log(5, MINUTE));
    let each = [(0, 1), (59_900_000, 4), (60 * S, 8)]
        .map(|(offset, tries)| admitted(&mut log, T0 + offset, tries));
    assert_eq!(each, [1, 4, 1], "five in the last tenth of a second");
}

#[test]
fn trap_v25_a_refused_request_does_not_extend_the_window() {
    let mut log = machine(Spec::log(5, MINUTE));
    let each = [0, 10, 20, 30, 40, 50, 61].map(|s| allowed(&mut log, T0 + s * S, 1));
    assert_eq!(each, [true, true, true, true, true, false, true]);
}

#[test]
fn trap_v27_half_an_interval_is_not_one() {
    for spec in [
        Spec::gcra(1, SECOND, 10),
        Spec::token_bucket(1, SECOND, 10),
        Spec::leaky_meter(1, SECOND, 10),
    ] {
        let mut machine = machine(spec);
        assert!(allowed(&mut machine, T0, 10));
        assert_eq!(
            machine.take(T0 + S / 2, 1).0.retry_after(),
            Some(Duration::from_millis(500))
        );
    }
}

#[test]
fn trap_v28_what_the_second_limit_refuses_the_first_is_not_charged() {
    for spec in super::law_07_lying_clocks::every_algorithm() {
        let rule = ["first", "second"]
            .map(|name| PolicyTree::from(Policy::new(name, spec.algorithm()).unwrap()));
        let machine = InMemory::of(PolicySet::new(PolicyTree::All(rule.into())).unwrap(), 1_000);
        let second = |cost| {
            [
                Call::SKIP,
                Call::new(Key::from("key"), Cost::new(cost).unwrap()),
            ]
        };
        machine.clock.set(throttle_core::Timestamp::from_micros(T0));
        assert!(
            machine
                .backend
                .decide_now(&machine.prepared, &second(5))
                .is_admitted()
        );
        for _ in 0..100 {
            assert!(!machine.take_for(T0, "key", 1).0.is_admitted());
        }
        machine.run(1, KeyStep::Reset(Key::from("key"))).unwrap();
        assert_eq!(
            (0..100)
                .filter(|_| machine.take_for(T0, "key", 1).0.is_admitted())
                .count(),
            5,
            "{spec:?}"
        );
    }
}

/// A period longer than a double can count in microseconds.
#[test]
fn attack_39_a_period_of_four_centuries_is_refused_by_name() {
    let error = Spec::gcra(1, 146_097 * DAY, 1).build().unwrap_err();
    assert!(error.to_string().contains("rate period"), "{error}");
    assert!(Spec::fixed(1, 100 * 365 * DAY).build().is_ok());
}
