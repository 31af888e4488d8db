//! Parameters that travel with the call: a key has one budget, whatever tier it is in and whatever
//! parameters of its own it has.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::fixture::{Fixture, START, call, start, wait};
use super::random::Random;
use super::{Harness, Sample};
use crate::algorithm::{Algorithm, FixedWindow, Gcra, SlidingLog, TokenBucket};
use crate::backend::Call;
use crate::key::Key;
use crate::policy::Policy;
use crate::rate::Rate;

/// The sample in three tiers, the last one of another algorithm. All recover at about the sample's
/// pace.
pub(super) fn tiered(name: &str, sample: &Sample) -> Policy {
    let (rate, capacity) = (sample.algorithm().rate(), sample.capacity());
    let other = match sample.algorithm().name() {
        "gcra" => SlidingLog::new(Rate::new(2 * capacity, rate.period())).build(),
        _ => Gcra::new(Rate::new(3 * rate.count(), rate.period()))
            .burst(2 * capacity)
            .build(),
    };
    let tiers = [
        ("low", *sample.lowered()),
        ("high", *sample.algorithm()),
        ("other", other.expect("a valid rate")),
    ];
    Policy::tiered(name, tiers).expect("three tiers of one pace")
}

/// Parameters of a key's own, of four algorithms in turn.
fn own(policy: &Policy, number: u64) -> Arc<Algorithm> {
    let (rate, units) = (policy.algorithm().rate(), 2 + 3 * number);
    let faster = Rate::new(rate.count() * (1 + number), rate.period());
    let own = match number % 4 {
        0 => policy.own(Gcra::new(faster).burst(units)),
        1 => policy.own(TokenBucket::new(faster).burst(units)),
        2 => policy.own(FixedWindow::new(Rate::new(units, rate.period()))),
        _ => policy.own(SlidingLog::new(Rate::new(units, rate.period()))),
    };
    own.expect("parameters of the policy's pace")
}

/// How many of a key's own parameters a trace uses.
pub(super) const OWN: u64 = 12;

/// A call by the parameters of a number: the three tiers, then a key's own.
pub(super) fn under(policy: &Policy, call: Call, number: u64) -> Call {
    match number {
        0..3 => call.in_tier(number as u8),
        _ => call.under(own(policy, number - 3)),
    }
}

/// Law 1: a request that other parameters refuse, and a peek under them, change nothing.
pub fn law_01_other_parameters_consume_nothing<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let policy = tiered("policy", sample);
    let fixture = Fixture::new(&harness, policy.clone());
    for writer in [0, 1, 2, 3, 6] {
        harness.set_time(START);
        let [asked, untouched] =
            ["asked", "untouched"].map(|text| Key::builder().text(text).number(writer).finish());
        let all = under(&policy, Call::SKIP, writer)
            .parameters(&policy)
            .capacity();
        for key in [&asked, &untouched] {
            assert!(
                fixture
                    .decide(&[under(&policy, call(key, all), writer)])
                    .is_admitted()
            );
        }
        for micros in [0, 1, 1_000_000, 20_000_000] {
            harness.set_time(START.after_micros(micros));
            for other in 0..8 {
                let ask = |cost| fixture.decide(&[under(&policy, call(&asked, cost), other)]);
                let more = ask(0).remaining() + 1;
                for cost in [more, 1_000] {
                    let denied = ask(cost);
                    assert!(
                        !denied.is_admitted(),
                        "{cost} units with {} left: {denied:?}",
                        more - 1
                    );
                }
            }
            for reader in 0..8 {
                let peek = |key: &Key| {
                    fixture.observed(&fixture.decide(&[under(&policy, call(key, 0), reader)]))
                };
                let context =
                    format_args!("written by {writer}, read by {reader}, {micros} µs later");
                assert_eq!(peek(&asked), peek(&untouched), "{context}");
            }
        }
        let take =
            |key: &Key| fixture.observed(&fixture.decide(&[under(&policy, call(key, 1), writer)]));
        assert_eq!(take(&asked), take(&untouched), "written by {writer}");
    }
}

/// Law 2: the wait of a request under other parameters than those that were charged is exact to the
/// microsecond.
pub fn law_02_waits_under_other_parameters_are_tight<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let policy = tiered("policy", sample);
    let fixture = Fixture::new(&harness, policy.clone());
    for (writer, reader) in (0..5).flat_map(|writer| (0..5).map(move |reader| (writer, reader))) {
        let capacity = |number| {
            under(&policy, Call::SKIP, number)
                .parameters(&policy)
                .capacity()
        };
        for cost in [1, capacity(reader)] {
            for early in [0, 1] {
                let key = Key::builder()
                    .number(writer)
                    .number(reader)
                    .number(cost)
                    .number(early)
                    .finish();
                harness.set_time(START);
                assert!(
                    fixture
                        .decide(&[under(&policy, call(&key, capacity(writer)), writer)])
                        .is_admitted()
                );
                let ask = || fixture.decide(&[under(&policy, call(&key, cost), reader)]);
                let first = ask();
                if first.is_admitted() {
                    assert!(
                        capacity(writer) + cost <= capacity(reader),
                        "{cost} by {reader} after {writer}"
                    );
                    continue;
                }
                harness.set_time(START.after_micros(wait(&first) - early));
                let context = format_args!(
                    "{cost} by {reader} after {writer}, {early} µs before the wait is over"
                );
                assert_eq!(ask().is_admitted(), early == 0, "{context}");
            }
        }
    }
}

/// Law 6: racers in tiers and under their own parameters use all units of the largest, and no more.
pub fn law_06_racers_under_all_parameters_share_one_budget<H: Harness>() {
    const RACERS: usize = 32;
    let harness = start::<H>();
    let per_hour = |count| FixedWindow::new(Rate::new(count, Duration::from_secs(3_600)));
    let tiers = [10, 40, 100].map(|count| (format!("of {count}"), per_hour(count)));
    let policy = Policy::tiered("policy", tiers).expect("three tiers");
    let (small, middle) = [20, 60]
        .map(|count| policy.own(per_hour(count)).expect("an hour"))
        .into();
    let fixture = Fixture::new(&harness, policy);
    let (key, barrier) = (Key::from("key"), Barrier::new(RACERS));
    let one = || call(&key, 1);
    let calls = [
        (10, one().in_tier(0)),
        (20, one().under(small)),
        (40, one().in_tier(1)),
        (60, one().under(middle)),
        (100, one().in_tier(2)),
    ];
    let race = |racer: usize| {
        let (mut random, mut admitted) = (Random::new(racer as u64), [0_u64; 5]);
        barrier.wait();
        for round in 0..16 {
            // Each racer ends with the largest, so that it is asked for more than it holds.
            let place = if round < 8 {
                random.below(5) as usize
            } else {
                4
            };
            admitted[place] += u64::from(
                fixture
                    .decide(std::slice::from_ref(&calls[place].1))
                    .is_admitted(),
            );
        }
        admitted
    };
    let admitted = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS)
            .map(|racer| scope.spawn(move || race(racer)))
            .collect();
        let each = racers
            .into_iter()
            .map(|racer| racer.join().expect("a racer does not panic"));
        each.fold([0; 5], |sum, admitted| {
            std::array::from_fn(|place| sum[place] + admitted[place])
        })
    });
    let mut sum = 0;
    for ((count, _), units) in calls.iter().zip(admitted) {
        sum += units;
        assert!(
            sum <= *count,
            "{admitted:?}: {sum} units by parameters of at most {count}"
        );
    }
    assert_eq!(sum, 100, "{admitted:?}: the largest tier's hundred, once");
}

/// Law 9: a key's used units stay used when no call carries the parameters any more under which
/// they were charged.
pub fn law_09_keys_keep_what_they_used_under_gone_parameters<H: Harness>() {
    const KEYS: u64 = 60;
    const DAY: u64 = 86_400_000_000;
    let harness = start::<H>();
    let tiers = [
        ("low", Gcra::new(Rate::per_day(100))),
        ("high", Gcra::new(Rate::per_day(10_000))),
    ];
    let policy = Policy::tiered("policy", tiers).expect("two tiers");
    let fixture = Fixture::new(&harness, policy.clone());
    let take = |key: u64, cost: u64, per_day: u64| {
        let own = policy
            .own(Gcra::new(Rate::per_day(per_day)))
            .expect("a rate");
        fixture.decide(&[call(&Key::from(key), cost).under(own)])
    };
    // Three hundred sets of parameters.
    for round in 0..5 {
        for key in 0..KEYS {
            let per_day = 200 + round * KEYS + key;
            let used = 30 * (round + 1);
            assert_eq!(
                take(key, 30, per_day).remaining(),
                per_day - used,
                "key {key} in round {round}"
            );
        }
    }
    for key in 0..KEYS {
        assert_eq!(
            take(key, 0, 200 + key).remaining(),
            50 + key,
            "the first parameters of the key again"
        );
        assert!(!take(key, 51 + key, 200 + key).is_admitted());
        assert_eq!(take(key, 0, 1_000 + key).remaining(), 850 + key, "others");
        assert_eq!(fixture.remaining(&Key::from(key)), 0, "150 of 100 are used");
        assert_eq!(
            fixture.remaining(&Key::from(1_000 + key)),
            100,
            "another key"
        );
    }
    harness.set_time(START.after_micros(DAY));
    for key in 0..KEYS {
        assert_eq!(
            fixture.remaining(&Key::from(key)),
            100,
            "a day later nothing counts as used"
        );
    }
}
