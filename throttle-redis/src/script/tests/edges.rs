//! States that random traces seldom reach. Each step equals the core's, as in the other tests.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use throttle_core::backend::{Ban, Call, Exception, Receipt, Treatment};
use throttle_core::{
    CalendarQuota, FixedWindow, Gcra, IntoAlgorithm, Key, LeakyBucket, Policy, PolicyTree, Rate,
    SlidingLog, SlidingWindow, Timestamp,
};

use super::machine::{Machine, call};
use super::random::{KINDS, algorithm, starts};

/// The start of a window of each length here.
const START: i64 = 1_790_000_000_000_000;

/// One key under some limits, as the scripts and the core see it.
struct Story(Machine);

impl Story {
    fn of(tree: impl Into<PolicyTree>) -> Self {
        Self(Machine::new(tree))
    }

    fn new(algorithm: impl IntoAlgorithm) -> Self {
        Self::of(Policy::new("p", algorithm).unwrap())
    }

    /// Moves the clock, in microseconds from the start.
    fn at(&self, micros: i64) {
        self.0.go_to(START + micros);
    }

    fn take(&mut self, cost: u64) -> Option<Receipt> {
        let calls = vec![call(&Key::from("ada"), Some(cost)); self.0.set().policies().len()];
        let decision = self.0.decide(std::slice::from_ref(&calls)).remove(0);
        Receipt::of(&decision, &calls)
    }

    fn admitted(&mut self, cost: u64) -> Receipt {
        self.take(cost).expect("admitted")
    }

    fn look(&mut self) {
        self.take(0);
    }

    fn settle(&mut self, receipt: Receipt, actual: u64) {
        self.0.settle(&receipt.actual(actual));
        self.look();
    }

    fn change(&mut self, policy: usize, algorithm: impl IntoAlgorithm) {
        self.0.change(policy, algorithm);
    }
}

fn rate(count: u64, micros: u64) -> Rate {
    Rate::new(count, Duration::from_micros(micros))
}

/// A version without steps keeps a key until the slack after its reset. A charge in the same step
/// leaves that expiry, which is no earlier than the reset that it moves on.
#[test]
fn law_09_expiry_that_an_older_version_set_outlasts_the_charges_of_its_step() {
    let mut story = Story::new(Gcra::new(Rate::per_second(100)).burst(10_000));
    story.at(0);
    story.take(1);
    let expires = |story: &Story, renewed: Option<i64>| {
        let mut store = story.0.redis.store.borrow_mut();
        let entry = store.entries.values_mut().next().expect("a key");
        if let Some(expires) = renewed {
            (entry.expires, entry.set_at) = (expires, START - 1);
        }
        entry.expires
    };
    let older = expires(&story, Some(START + 10_000 + 10_000_000));
    // The last charge that ends in the step, which began at the start.
    story.take(498);
    let reset = START + 4_990_000;
    assert_eq!(expires(&story, None), older);
    assert!(older > reset + 5_000_000);
    story.take(1);
    assert_eq!(
        expires(&story, None),
        START + 10_000_000,
        "renewed in the next step"
    );
}

/// The general text decides requests of several policies that travel together.
#[test]
fn expiry_is_renewed_only_in_another_step_where_several_policies_travel_together() {
    let window = Policy::new("day", FixedWindow::new(rate(1_000, 86_400_000_000))).unwrap();
    let gcra = Gcra::new(Rate::per_second(100)).burst(10_000);
    let gcra = Policy::new("p", gcra).unwrap();
    let story = Story::of(PolicyTree::All(vec![gcra.into(), window.into()]));
    let Story(mut machine) = story;
    let mut take = |micros: i64, key: &str| {
        machine.go_to(START + micros);
        let request = vec![call(&Key::from(key), Some(10)); 2];
        machine.decide(&[request.clone(), request]);
        let store = machine.redis.store.borrow();
        let renewed = |policy: u8| {
            let mut entries = store.entries.iter();
            let of = entries.find(|(name, _)| name[0] == policy && name.ends_with(key.as_bytes()));
            of.expect("an entry").1.set_at == START + micros
        };
        [renewed(0), renewed(1)]
    };
    assert_eq!(take(0, "ada"), [true, true]);
    // Each charge moves the reset of the first policy by 0.2 s, and that of the second not at all.
    assert_eq!(take(1_000_000, "ada"), [false, false]);
    assert_eq!(take(4_900_000, "ada"), [true, false]);
    assert_eq!(take(5_000_000, "ada"), [false, false]);
    assert_eq!(take(5_000_000, "bob"), [true, true]);
}

/// A key under an exception, or under other parameters, has no expiry of the value beneath.
#[test]
fn expiry_is_renewed_where_other_parameters_or_an_exception_set_it() {
    let gcra = |burst| Gcra::new(Rate::per_second(100)).burst(burst);
    let policies = ["p", "q"].map(|name| Policy::new(name, gcra(10_000)).unwrap().into());
    let mut machine = Machine::new(PolicyTree::All(policies.to_vec()));
    let key = Key::from("ada");
    let mut at = 0;
    let mut take = |machine: &mut Machine, expected: [bool; 2]| {
        at += 100_000;
        machine.go_to(START + at);
        let request = vec![call(&key, Some(1)); 2];
        machine.decide(&[request.clone(), request]);
        let store = machine.redis.store.borrow();
        let renewed = |policy: u8| {
            let mut entries = store.entries.iter();
            let of = entries.find(|(name, _)| name[0] == policy);
            of.expect("an entry").1.set_at == START + at
        };
        assert_eq!([renewed(0), renewed(1)], expected, "at {at}");
    };
    take(&mut machine, [true, true]);
    take(&mut machine, [false, false]);
    machine.change(0, gcra(20_000));
    take(&mut machine, [true, false]);
    take(&mut machine, [false, false]);
    let exempt = Exception {
        treatment: Treatment::Limit(std::sync::Arc::new(gcra(5_000).into_algorithm().unwrap())),
        until: Timestamp::from_micros(START + 650_000),
    };
    machine.except(1, &key, Some(exempt));
    take(&mut machine, [false, true]);
    take(&mut machine, [false, true]);
    // The exception is over.
    take(&mut machine, [false, true]);
    take(&mut machine, [false, false]);
}

/// Late debits and a clock that steps back: units that had left the window are in it again.
#[test]
fn law_08_state_above_its_limit_counts_as_all_used() {
    let log = SlidingLog::new(rate(5, 100)).into_algorithm().unwrap();
    let window = SlidingWindow::new(rate(5, 100))
        .buckets(4)
        .into_algorithm()
        .unwrap();
    for algorithm in [log, window] {
        let mut story = Story::new(algorithm);
        story.at(0);
        assert!(story.take(3).is_some());
        story.at(50);
        let (first, second) = (story.admitted(1), story.admitted(1));
        story.at(130);
        story.settle(first, 4);
        story.at(60);
        assert!(story.take(1).is_none());
        story.settle(second, 3);
        story.change(0, FixedWindow::new(rate(20, 1_000)));
        story.look();
        assert!(story.take(1).is_some());
    }
}

/// The reply about a log has only some of its runs. The wait of a class, and that for its next
/// unit, end with any of them.
#[test]
fn law_08_reply_about_a_log_has_what_each_class_needs() {
    for (reserve, cost) in
        (0..=11).flat_map(|reserve| [0, 1, 2, 3, 5, 10, 11].map(|cost| (reserve, cost)))
    {
        let mut story = Story::new(SlidingLog::new(rate(10, 1_000)));
        for micros in 0..8 {
            story.at(micros);
            assert!(story.take(1).is_some());
        }
        let decision = story
            .0
            .decide(&[vec![call(&Key::from("ada"), Some(cost)).reserving(reserve)]])
            .remove(0);
        assert_eq!(
            decision.is_admitted(),
            cost == 0 || cost + reserve <= 2,
            "{cost} and {reserve}"
        );
    }
}

/// The start of a window may be where a slot would be, and then more may have been charged than the
/// shaper holds.
#[test]
fn law_10_charge_of_a_window_is_given_back_under_a_shaper() {
    for actual in [0, 1, 96, 98, 99] {
        let mut story = Story::new(FixedWindow::new(rate(100, 1_000)));
        story.at(0);
        let charge = story.admitted(100);
        story.change(
            0,
            LeakyBucket::new(rate(5, 1_000)).max_wait(Duration::from_micros(1_000)),
        );
        story.look();
        story.settle(charge, actual);
        // The shaper, which was never charged, holds six; the window counts what was used until it
        // ends.
        assert_eq!(story.take(1).is_some(), actual < 6, "{actual} used");
    }
}

/// A third of a second is no whole number of microseconds, and half a second is one: the slots of a
/// faster shaper have parts that those of a slower one cannot have, even where the sum would be the
/// same.
#[test]
fn law_10_slot_of_a_former_shaper_is_settled_by_it() {
    let shaper = |count| LeakyBucket::new(Rate::per_second(count)).max_wait(Duration::from_secs(9));
    let mut story = Story::new(shaper(3));
    story.at(0);
    assert!(story.take(1).is_some());
    let charge = story.admitted(2);
    assert_eq!(charge.items()[0].mark(), (START + 333_333, 1));
    story.at(333_334);
    story.change(0, shaper(2));
    story.look();
    story.settle(charge, 0);
    assert!(story.take(1).is_some());
}

/// A debit belongs to the sub-window of its charge, as long as that counts in full and something is
/// left of it.
#[test]
fn law_10_a_debit_of_a_charge_that_has_begun_to_leave_the_window_is_none() {
    let window = |limit| SlidingWindow::new(rate(limit, 100)).buckets(4);
    for later in [0, 24, 25, 99, 100, 124, 125, 150] {
        let mut story = Story::new(window(5));
        story.at(0);
        let charge = story.admitted(1);
        story.at(later);
        story.settle(charge, 3);
        assert!(story.take(1).is_some());
    }
    let mut story = Story::new(window(5));
    story.at(0);
    let charge = story.admitted(1);
    story.at(30);
    // The writer of the charge settles it.
    story.change(0, window(6));
    story.look();
    story.settle(charge, 3);
}

/// The account of an interval that is over has nothing to debit, so the key is not written again.
#[test]
fn law_10_a_debit_of_a_forgotten_interval_writes_nothing() {
    let mut story = Story::new(CalendarQuota::rolling(5, Duration::from_micros(100)));
    story.at(0);
    let charge = story.admitted(1);
    story.0.redis.store.borrow_mut().entries.clear();
    story.0.model.clear();
    story.at(250);
    story.settle(charge, 3);
    assert!(story.0.redis.store.borrow().entries.is_empty());
}

#[test]
fn decision_as_of_an_earlier_instant_goes_back_a_tenth_of_a_second() {
    let story = Story::new(Gcra::new(rate(5, 1_000)));
    story.at(0);
    let header = story.0.head().remove(2);
    for (time, now) in [
        (String::new(), START),
        (format!("@{}", START - 100_000), START - 100_000),
        (format!("@{}", START - 100_001), START - 100_000),
        (format!("@{}", START - 1), START - 1),
        (format!("@{}", START + 1), START),
        (format!("{}", START + 7), START + 7),
    ] {
        let words = [
            time.clone().into_bytes(),
            b"0".to_vec(),
            header.clone(),
            b"0".to_vec(),
        ];
        let reply = story
            .0
            .redis
            .eval(&story.0.prepared.scripts.decide, &[b"key".to_vec()], &words)
            .unwrap();
        assert_eq!(
            f64::from_le_bytes(*reply.first_chunk().unwrap()) as i64,
            now,
            "{time:?}"
        );
    }
}

/// A Lua function has at most 200 local variables.
#[test]
fn law_08_a_request_of_many_policies_is_decided_like_one_of_few() {
    for count in [8, 9, 17, 64] {
        let policy = |place: u64| {
            Policy::new(
                &format!("p{place}"),
                FixedWindow::new(rate(2 + place % 3, 60_000_000)),
            )
        };
        let policies = (0..count).map(|place| policy(place).expect("a policy").into());
        let mut story = Story::of(PolicyTree::All(policies.collect()));
        assert_eq!(
            [(); 3].map(|()| story.take(1).is_some()),
            [true, true, false],
            "{count} policies"
        );
    }
}

/// The months around every kind of leap year that a clock can show, hour by hour around their ends.
#[test]
fn law_08_calendars_of_leap_years() {
    const HOUR: i64 = 3_600_000_000;
    let civil = [
        CalendarQuota::monthly(3),
        CalendarQuota::weekly(3),
        CalendarQuota::daily(3),
    ];
    let anchored = [
        CalendarQuota::monthly(3).anchor_day(28).anchor_hour(5),
        CalendarQuota::monthly(3).anchor_last_day(),
        CalendarQuota::weekly(3).anchor_day(7),
    ];
    for quota in civil.into_iter().chain(anchored) {
        let mut machine = Machine::new(Policy::new("p", quota).unwrap());
        // 1900-02-27, 1996, 1999, 2000 and 2026, in days since 1970.
        for day in [-25_510_i64, 9_553, 10_649, 11_014, 20_511] {
            for hours in 0..96 {
                machine.go_to((day * 24 + hours) * HOUR);
                machine.decide(&[vec![Call::from(Key::from("key"))]]);
            }
        }
    }
}

/// Settling a key that is gone writes nothing unless it owes more.
#[test]
fn law_08_settling_a_missing_key_does_not_restore_it() {
    for kind in 0..KINDS {
        run_settled(&algorithm(kind));
    }
}

fn run_settled(algorithms: &BoxedStrategy<throttle_core::Algorithm>) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        cases: 64,
        ..Config::default()
    });
    let checked = runner.run(
        &(algorithms, starts(), 0..4_u64),
        |(algorithm, start, actual)| {
            let mut machine = Machine::new(Policy::new("p", algorithm).unwrap());
            machine.go_to(start);
            let calls = vec![Call::from(Key::from("key"))];
            let decision = machine.decide(std::slice::from_ref(&calls)).remove(0);
            machine.redis.store.borrow_mut().entries.clear();
            machine.model.clear();
            let writes = machine.redis.store.borrow().writes;
            machine.settle(&Receipt::of(&decision, &calls).unwrap().actual(actual));
            let wrote = machine.redis.store.borrow().writes - writes;
            prop_assert!(wrote == machine.model.len() && (actual > 1 || wrote == 0));
            Ok(())
        },
    );
    checked.unwrap();
}

/// A refunded charge has freed its slot, but the schedule begins no earlier than the charge.
#[test]
fn law_09_slot_before_which_the_clock_stepped_back_outlives_an_exception() {
    let start = 1_790_000_000_000_000;
    let bucket = LeakyBucket::new(Rate::per_second(10)).without_delay();
    let key = Key::from("ada");
    for treatment in [Treatment::Exempt, Treatment::Blocked] {
        let mut machine = Machine::new(Policy::new("p", bucket).unwrap());
        machine.go_to(start + 5_000_000);
        let calls = vec![call(&key, Some(1))];
        let decision = machine.decide(std::slice::from_ref(&calls)).remove(0);
        let receipt = Receipt::of(&decision, &calls).expect("admitted");
        machine.settle(&receipt.actual(0));
        machine.go_to(start);
        let until = Timestamp::from_micros(start + 1_000_000);
        machine.except(0, &key, Some(Exception { treatment, until }));
        machine.except(0, &key, None);
        machine.strike(0, &key, &Ban::after(9));
    }
}
