//! Law 8 for keys that several parameters decide about: every answer and every stored value equals the core's, bit for
//! bit, whichever parameters wrote the value. Requests change between tiers and parameters of their keys' own, limits are
//! deployed anew, charges are settled late, and the clock steps back and forth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, Key, LeakyBucket, Policy, PolicyTree,
    Rate, SlidingLog, SlidingWindow,
};

use super::machine::{Machine, call};
use super::random::{KINDS, Step, algorithm, any_algorithm, starts, steps};

const START: i64 = 1_790_000_000_000_000;

/// Histories of each algorithm, and of several.
const OF_A_KIND: u32 = 600;
const OF_SEVERAL: u32 = 5_000;

/// A policy with those of these tiers that may stand together; or without tiers, with the first one's limits.
fn policy(name: &str, tiers: &[Algorithm], is_tiered: bool) -> Policy {
    if !is_tiered {
        return Policy::new(name, tiers[0]).unwrap();
    }
    let mut named = Vec::new();
    for tier in tiers {
        named.push((named.len().to_string(), *tier));
        if Policy::tiered(name, named.clone()).is_err() {
            named.pop();
        }
    }
    Policy::tiered(name, named).unwrap()
}

/// One limit, or two that must both admit.
fn tree(tiers: &[Algorithm], is_tiered: bool, second: Option<Algorithm>) -> PolicyTree {
    let first = policy("p", tiers, is_tiered);
    match second {
        None => first.into(),
        Some(second) => PolicyTree::All(vec![first.into(), policy("q", &[second], false).into()]),
    }
}

/// The calls of a request: in a tier, or under parameters of the keys' own.
fn calls(machine: &Machine, step: &Step, request: usize) -> Vec<Call> {
    let key = Key::from(if step.dice[3].is_multiple_of(4) { "bob" } else { "ada" });
    let calls = machine.set().policies().iter().enumerate().map(|(place, policy)| {
        let tier = (step.dice[0] >> 8) as usize % policy.tiers().count().max(1);
        let own = step.dice[0].rotate_left(place as u32).is_multiple_of(4);
        let by = if own { step.other } else { *policy.tier(tier as u8).algorithm() };
        let call = call(&key, step.cost(request, place, by.capacity(), true));
        let call = call.reserving(step.reserve(request, place, by.capacity()));
        if own { call.under(Arc::new(step.other)) } else { call.in_tier(tier as u8) }
    });
    calls.collect()
}

fn play(first: &PolicyTree, later: &[PolicyTree], start: i64, steps: &[Step]) {
    let mut machine = Machine::new(first.clone());
    let (mut now, mut receipts) = (start, Vec::<Receipt>::new());
    for step in steps {
        let requests: Vec<_> = (0..1 + step.dice[2] as usize % 3).map(|n| calls(&machine, step, n)).collect();
        let period = requests[0][0].parameters(&machine.set().policies()[0]).rate().period_micros();
        now = (now + step.micros(period as i64, true)).clamp(-(1 << 51), 1 << 51);
        machine.go_to(now);
        match step.what {
            0 => machine.deploy(later[step.dice[1] as usize % later.len()].clone()),
            1..=5 if !receipts.is_empty() => {
                let receipt = receipts.swap_remove(step.dice[1] as usize % receipts.len());
                let is_known = receipt.items().iter().all(|item| item.policy() < machine.set().policies().len());
                let taken = receipt.items()[0].taken();
                let units = [0, 1, taken, taken + 1, taken / 2, taken.saturating_sub(1), 2 * taken, taken + 3];
                if is_known {
                    machine.settle(&receipt.actual(units[step.dice[2] as usize % units.len()]));
                }
            }
            _ => {
                let decisions = machine.decide(&requests);
                receipts.extend(decisions.iter().zip(&requests).filter_map(|(of, calls)| Receipt::of(of, calls)));
            }
        }
    }
}

fn run(what: &str, kinds: &BoxedStrategy<Algorithm>, least: u32) {
    let cases = Config::default().cases.max(least);
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases, ..Config::default() });
    let tiers = prop::collection::vec(kinds.clone(), 1..4);
    let second = prop_oneof![2 => Just(None), 1 => kinds.clone().prop_map(Some)];
    let trees = (tiers, any::<bool>(), second).prop_map(|(tiers, tiered, second)| tree(&tiers, tiered, second));
    let input = (trees.clone(), prop::collection::vec(trees, 1..3), starts(), steps(24));
    let result = runner.run(&input, |(first, later, start, steps)| {
        let play = || play(&first, &later, start, &steps);
        catch_unwind(AssertUnwindSafe(play)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            TestCaseError::fail(text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap_or(&"?").to_string()))
        })
    });
    if let Err(error) = result {
        panic!("{what}: {error}");
    }
}

#[test]
fn law_08_parameters_of_one_algorithm_that_change() {
    for kind in 0..KINDS {
        run(&format!("algorithm {kind}"), &algorithm(kind), OF_A_KIND);
    }
}

#[test]
fn law_08_parameters_of_several_algorithms_that_change() {
    run("several", &any_algorithm(), OF_SEVERAL);
}

/// One key under some limits, at instants counted from [`START`].
struct Story(Machine);

impl Story {
    fn new(tiers: [Algorithm; 2]) -> Self {
        Self(Machine::new(policy("p", &tiers, true)))
    }

    fn at(&self, micros: i64) {
        self.0.go_to(START + micros);
    }

    fn ask(&mut self, call: Call) -> Option<Receipt> {
        let calls = vec![call];
        let decision = self.0.decide(std::slice::from_ref(&calls)).remove(0);
        Receipt::of(&decision, &calls)
    }

    fn take(&mut self, tier: u8, cost: u64) -> Option<Receipt> {
        self.ask(call(&Key::from("ada"), Some(cost)).in_tier(tier))
    }
}

fn rate(count: u64, micros: u64) -> Rate {
    Rate::new(count, Duration::from_micros(micros))
}

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().unwrap()
}

/// At this rate a unit takes less than a microsecond, so a schedule with something on it can look free.
#[test]
fn law_08_what_may_not_be_delayed_is_refused_while_a_writer_counts() {
    let quick = built(LeakyBucket::new(rate(5, 2)).max_wait(Duration::from_micros(9)).without_delay());
    for writer in [built(FixedWindow::new(rate(9, 100))), built(Gcra::new(rate(9, 100)))] {
        let mut story = Story::new([writer, quick]);
        story.at(0);
        assert!(story.take(0, 1).is_some() && story.take(1, 1).is_none() && story.take(1, 0).is_none());
        story.at(100);
        assert!(story.take(1, 1).is_some());
    }
}

/// The end of a window is not in it. A bucket that refills has no window, and its charges are never over.
#[test]
fn law_10_charge_is_settled_by_another_writer_until_its_window_ends() {
    let interval = Duration::from_micros(100);
    let [bucket, aligned] = [IntervalBucket::new(5), IntervalBucket::new(5)].map(|bucket| bucket.refill(1, interval));
    for low in [
        built(FixedWindow::new(rate(5, 100))),
        built(CalendarQuota::rolling(5, interval)),
        built(bucket),
        built(aligned.aligned()),
        built(SlidingWindow::new(rate(5, 100)).buckets(4)),
        built(SlidingLog::new(rate(5, 100))),
    ] {
        let high = built(Gcra::new(rate(50, 10_000)));
        for (end, actual) in [-1, 0, 1, 24, 25, 26].into_iter().flat_map(|end| [(end, 0), (end, 5)]) {
            let mut story = Story::new([low, high]);
            story.at(0);
            let charge = story.take(0, 3).unwrap();
            story.at(1);
            assert!(story.take(1, 1).is_some());
            story.at(100 + end);
            story.0.settle(&charge.actual(actual));
        }
    }
}

#[test]
fn law_10_charge_of_a_day_is_settled_by_another_writer_until_the_day_ends() {
    const DAY: i64 = 86_400_000_000;
    let tiers = || [built(CalendarQuota::daily(5)), built(Gcra::new(rate(50, 30 * DAY as u64)))];
    for end in [-1, 0, 1] {
        let mut story = Story::new(tiers());
        let go_to = |story: &Story, micros: i64| story.0.go_to(20_000 * DAY + micros);
        go_to(&story, 7);
        let charge = story.take(0, 3).unwrap();
        go_to(&story, 8);
        assert!(story.take(1, 1).is_some());
        go_to(&story, DAY + end);
        story.0.settle(&charge.actual(0));
    }
}

/// What one tier has seen leave its window may still count in the tier that wrote the value.
#[test]
fn law_08_log_of_another_writer_is_replied_as_it_is() {
    let log = |micros: u64| built(SlidingLog::new(rate(5, micros)));
    for later in [5, 50, 99, 100] {
        let mut story = Story::new([log(100), log(10)]);
        for micros in 0..3 {
            story.at(micros);
            assert!(story.take(0, 1).is_some());
        }
        story.at(later);
        story.take(1, 0);
        story.take(1, 3);
    }
}

/// The first request of a batch that meets another writer's value is decided as any other.
#[test]
fn law_08_batch_meets_values_of_several_writers() {
    let [low, high] = [5, 50].map(|count| built(Gcra::new(rate(count, 1_000_000))));
    let mut story = Story::new([low, high]);
    story.at(0);
    let call = |key: &str, cost| vec![call(&Key::from(key), Some(cost))];
    let requests = ["a", "b", "a", "c", "b", "a"].map(|key| call(key, 1));
    let former = vec![call("b", 3)[0].clone().under(Arc::new(high))];
    assert!(story.0.decide(&[former])[0].is_admitted());
    let admitted = story.0.decide(&requests).iter().map(throttle_core::Decision::is_admitted).collect::<Vec<_>>();
    assert_eq!(admitted, [true; 6]);
    assert!(story.0.decide(&[call("b", 1)])[0].remaining() == 0);
}
