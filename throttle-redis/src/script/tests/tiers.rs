//! Law 8 for policies with tiers: every step from a stored value equals the core's, bit for bit, whichever tier wrote
//! it. Tiers change, limits are deployed anew with other tiers or none, charges are settled late, and the clock steps
//! back and forth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use smallvec::smallvec;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Receipt, ReceiptItem};
use throttle_core::{
    Algorithm, CalendarQuota, Carry, FixedWindow, Gcra, IntervalBucket, Key, Policy, PolicySet, Rate, SlidingLog,
    SlidingWindow, Timestamp,
};

use super::machine::{call, name};
use super::random::{KINDS, Step, algorithm, any_algorithm, starts, steps};
use super::redis::Redis;
use crate::decide::settle::words;
use crate::script::prepared::Prepared;
use crate::script::reply::{answer, split};
use crate::script::request::Ask;
use crate::script::{Script, first_state, layout};

const RULES: [Carry; 3] = [Carry::Keep, Carry::Proportional, Carry::Reset];

/// One key, and the limits that are deployed.
struct Desk {
    redis: Redis,
    key: Key,
    set: PolicySet,
}

impl Desk {
    fn new(policy: Policy) -> Self {
        Self { redis: Redis::new(), key: Key::from("ada"), set: PolicySet::new(policy).unwrap() }
    }

    fn policy(&self) -> &Policy {
        &self.set.policies()[0]
    }

    fn tiers(&self) -> u8 {
        self.policy().tiers().count().max(1) as u8
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.redis.store.borrow().now)
    }

    fn stored(&self) -> Option<Vec<u8>> {
        self.redis.store.borrow().entries.get(&name(0, &self.key)).map(|entry| entry.value.clone())
    }

    fn prepared(&self, tier: u8) -> Arc<Prepared> {
        Arc::new(Prepared::new(0, self.set.clone(), &[tier]))
    }

    fn run(&self, prepared: &Prepared, script: &Script, words: &[Vec<u8>]) -> Vec<u8> {
        let head = [Vec::new(), b"0".to_vec(), prepared.headers[0].clone()];
        self.redis.eval(script, &[name(0, &self.key)], &[&head, words].concat()).unwrap()
    }

    /// The core's reading of a stored value, in a tier.
    fn state(&self, value: Option<&Vec<u8>>, tier: u8) -> State {
        let Some(value) = value else { return self.policy().algorithm().fresh() };
        State::from_wire_of(self.policy(), tier, value).expect("what a tier has written can be read in all of them")
    }

    /// Decides as the backend does, and compares the decision with the core's. Returns the receipt of the charge.
    fn decide(&self, tier: u8, cost: u64) -> Option<Receipt> {
        let calls = [call(&self.key, Some(cost)).in_tier(tier)];
        let ask = Ask {
            prepared: self.prepared(tier),
            calls: smallvec![calls[0].clone()],
            names: smallvec![vec![]],
            slot: 0,
            as_of: None,
        };
        let before = self.stored();
        let scripts = &ask.prepared.scripts;
        let mut told = None;
        for script in [&scripts.decide, &scripts.carry] {
            let reply = self.run(&ask.prepared, script, &ask.costs().map(|cost| cost.to_vec()).collect::<Vec<_>>());
            let part = split(reply, std::iter::once(1)).unwrap().remove(0);
            let carries = part.flag() == Some(b'C');
            told = Some(part);
            if !carries {
                break;
            }
        }
        let decision = answer(&ask, &told.unwrap()).unwrap_or_else(|error| panic!("{error:?} about {calls:?}"));
        self.compare(&before, &calls[0], &decision);
        Receipt::of(&decision, &calls)
    }

    fn compare(&self, before: &Option<Vec<u8>>, call: &Call, decision: &throttle_core::Decision) {
        let mut states = [self.state(before.as_ref(), call.tier())];
        let unchanged = states.clone();
        let expected = self.set.decide(&mut states, self.now(), std::slice::from_ref(call));
        assert_eq!(*decision, expected, "of {call:?} on {before:?}");
        let after = states[0].to_wire(self.policy().algorithm());
        let changes = expected.statuses()[0].charged() > 0 || states != unchanged;
        assert_eq!(self.stored(), if changes { after } else { before.clone() }, "after {call:?} on {before:?}");
    }

    fn settle(&self, item: &ReceiptItem) {
        let (prepared, before) = (self.prepared(item.tier()), self.stored());
        let words = words(item).map(String::into_bytes);
        let mut reply = self.run(&prepared, &prepared.scripts.settle, &words);
        if reply == b"C" {
            reply = self.run(&prepared, &prepared.scripts.settle_carried, &words);
        }
        assert_eq!(reply, b"A");
        let mut expected = self.state(before.as_ref(), item.tier());
        item.apply_to(self.policy(), &mut expected, self.now());
        for tier in 0..self.tiers() {
            let look = |state: &State| {
                let call = Call::peek(self.key.clone()).in_tier(tier);
                self.set.decide(&mut [state.clone()], self.now(), &[call])
            };
            let stored = self.state(self.stored().as_ref(), item.tier());
            assert_eq!(look(&stored), look(&expected), "tier {tier}, after {item:?} on {before:?}");
        }
    }
}

/// A policy with these tiers and a rule that they allow; or without tiers, with the first one's limits.
fn policy(tiers: &[Algorithm], carry: Option<Carry>) -> Policy {
    let Some(carry) = carry else { return Policy::new("p", tiers[0]).unwrap() };
    let named = || tiers.iter().enumerate().map(|(place, tier)| (place.to_string(), *tier));
    Policy::tiered("p", named(), carry).unwrap_or_else(|_| Policy::tiered("p", named(), Carry::Keep).unwrap())
}

fn play(first: Policy, later: &[Policy], start: i64, steps: &[Step]) {
    let mut desk = Desk::new(first);
    let (mut now, mut receipts) = (start, Vec::<Receipt>::new());
    for step in steps {
        let tier = (step.dice[0] % u32::from(desk.tiers())) as u8;
        let algorithm = *desk.policy().tier(tier).algorithm();
        now = (now + step.micros(algorithm.rate().period_micros() as i64, true)).clamp(-(1 << 51), 1 << 51);
        desk.redis.store.borrow_mut().now = now;
        match step.what {
            0 => desk.set = PolicySet::new(later[step.dice[1] as usize % later.len()].clone()).unwrap(),
            1..=4 if !receipts.is_empty() => {
                let receipt = receipts.swap_remove(step.dice[1] as usize % receipts.len());
                let taken = receipt.items()[0].taken();
                let units = [0, 1, taken, taken + 1, taken / 2, 2 * taken, taken + 3, algorithm.capacity()];
                desk.settle(&receipt.actual(units[step.dice[2] as usize % units.len()]).items()[0]);
            }
            _ => receipts.extend(desk.decide(tier, step.cost(0, 0, algorithm.capacity(), true).unwrap_or(1))),
        }
    }
}

fn run(what: &str, kinds: &BoxedStrategy<Vec<Algorithm>>, part: u32) {
    let cases = (Config::default().cases / part).max(1);
    let mut runner = TestRunner::new(Config { failure_persistence: None, cases, ..Config::default() });
    let rule = || prop_oneof![4 => select(RULES.to_vec()).prop_map(Some), 1 => Just(None)];
    let policies = || (kinds.clone(), rule()).prop_map(|(tiers, carry)| policy(&tiers, carry));
    let input = (policies(), prop::collection::vec(policies(), 1..4), starts(), steps(60));
    let result = runner.run(&input, |(first, later, start, steps)| {
        let play = || play(first, &later, start, &steps);
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
fn law_08_tiers_of_every_algorithm() {
    for kind in 0..KINDS {
        run(&format!("algorithm {kind}"), &prop::collection::vec(algorithm(kind), 1..4).boxed(), 8);
    }
}

#[test]
fn law_08_tiers_of_several_algorithms() {
    run("several", &prop::collection::vec(any_algorithm(), 1..4).boxed(), 2);
}

/// Products from 2^53 on are not exact as doubles: on either side of it the scripts do what the core does.
#[test]
fn law_08_inexact_shares_are_not_carried_over() {
    let hourly = |count: u64| [FixedWindow::new(Rate::per_hour(count)).build().unwrap()];
    for small in [(1 << 23) - 1, 1 << 23] {
        for actual in [0, 1 << 21] {
            let mut desk = Desk::new(policy(&hourly(1 << 30), Some(Carry::Proportional)));
            let receipt = desk.decide(0, 1 << 20).unwrap().actual(actual);
            desk.set = PolicySet::new(policy(&hourly(small), Some(Carry::Proportional))).unwrap();
            desk.decide(0, 0);
            desk.settle(&receipt.items()[0]);
            assert_eq!(desk.decide(0, 1).is_some(), small < 1 << 23, "of {small}");
        }
    }
}

/// Ten in a hundred or in a thousand µs, the short windows moved.
fn windows(moved: i64) -> Policy {
    let window = |micros: u64| FixedWindow::new(Rate::new(10, Duration::from_micros(micros)));
    policy(&[window(100).offset_micros(moved), window(1_000)].map(|window| window.build().unwrap()), Some(Carry::Keep))
}

/// Windows are those of the limits in force, whatever the limits were when the charge was made.
#[test]
fn law_10_a_charge_under_former_limits_is_over_when_its_window_is_by_the_present_ones() {
    let mut desk = Desk::new(windows(0));
    desk.redis.store.borrow_mut().now = 50;
    let receipt = desk.decide(0, 3).unwrap().actual(0);
    assert!(desk.decide(1, 1).is_some());
    // The charge's window began at 0; by the present limits, 0 is in -80 .. 20.
    desk.set = PolicySet::new(windows(20)).unwrap();
    desk.settle(&receipt.items()[0]);
}

/// On a clock that has stepped back, an unused window that is still to come is left unchanged.
#[test]
fn law_08_a_settlement_without_effect_leaves_an_idle_state_of_another_tier_unchanged() {
    let desk = Desk::new(windows(0));
    let go_to = |now: i64| desk.redis.store.borrow_mut().now = now;
    go_to(450);
    let early = desk.decide(0, 1).unwrap().actual(0);
    go_to(5_000);
    let late = desk.decide(1, 2).unwrap().actual(0);
    desk.settle(&late.items()[0]);
    go_to(500);
    desk.settle(&early.items()[0]);
}

/// The end of a window is not in it. A bucket that refills has no window, and its charges are never over.
#[test]
fn law_10_a_charge_is_settled_in_another_tier_until_the_very_end_of_its_own_window() {
    const START: i64 = 1_790_000_000_000_000;
    let (rate, interval) = (Rate::new(5, Duration::from_micros(100)), Duration::from_micros(100));
    let [bucket, aligned] = [IntervalBucket::new(5), IntervalBucket::new(5)].map(|bucket| bucket.refill(1, interval));
    for low in [
        FixedWindow::new(rate).build(),
        CalendarQuota::rolling(5, interval).build(),
        bucket.build(),
        aligned.aligned().build(),
        SlidingWindow::new(rate).buckets(4).build(),
        SlidingLog::new(rate).build(),
    ]
    .map(Result::unwrap)
    {
        // Its charges have no window that would have to be the same.
        let high = Gcra::new(Rate::new(50, Duration::from_micros(10_000))).build().unwrap();
        for (end, actual) in [-1, 0, 1, 24, 25, 26].into_iter().flat_map(|end| [(end, 0), (end, 5)]) {
            let desk = Desk::new(policy(&[low, high], Some(Carry::Keep)));
            let go_to = |micros: i64| desk.redis.store.borrow_mut().now = START + micros;
            go_to(0);
            let charge = desk.decide(0, 3).unwrap().actual(actual);
            go_to(1);
            assert!(desk.decide(1, 1).is_some());
            go_to(100 + end);
            desk.settle(&charge.items()[0]);
        }
    }
}

#[test]
fn law_10_a_charge_of_a_day_is_settled_in_another_tier_until_the_day_is_over() {
    const DAY: i64 = 86_400_000_000;
    let month = Rate::new(50, Duration::from_micros(30 * DAY as u64));
    let tiers = [CalendarQuota::daily(5).build(), Gcra::new(month).build()].map(Result::unwrap);
    for end in [-1, 0, 1] {
        let desk = Desk::new(policy(&tiers, Some(Carry::Keep)));
        let go_to = |micros: i64| desk.redis.store.borrow_mut().now = 20_000 * DAY + micros;
        go_to(7);
        let charge = desk.decide(0, 3).unwrap().actual(0);
        go_to(8);
        assert!(desk.decide(1, 1).is_some());
        go_to(DAY + end);
        desk.settle(&charge.items()[0]);
    }
}

/// What one tier has seen leave its window may still count in the tier that wrote the value.
#[test]
fn law_08_a_log_of_another_tier_is_replied_as_it_is() {
    let log = |micros: u64| SlidingLog::new(Rate::new(5, Duration::from_micros(micros))).build().unwrap();
    for later in [5, 50, 99, 100] {
        let desk = Desk::new(policy(&[log(100), log(10)], Some(Carry::Keep)));
        for micros in 0..3 {
            desk.redis.store.borrow_mut().now = micros;
            assert!(desk.decide(0, 1).is_some());
        }
        desk.redis.store.borrow_mut().now = later;
        desk.decide(1, 0);
        desk.decide(1, 3);
    }
}

/// A share that is no whole number is rounded against the client: a charge up, a refund down.
#[test]
fn law_10_shares_of_a_charge_are_rounded_against_the_client() {
    let window = |count: u64| FixedWindow::new(Rate::per_hour(count)).build().unwrap();
    for actual in [0, 1, 2, 3] {
        let desk = Desk::new(policy(&[window(3), window(10)], Some(Carry::Proportional)));
        let charge = desk.decide(0, 1).unwrap().actual(actual);
        assert!(desk.decide(1, 1).is_some());
        desk.settle(&charge.items()[0]);
    }
}

/// A lowered limit has cut off some of what was used. How much of it a tier counts depends on which is larger.
#[test]
fn law_08_a_value_that_was_cut_off_is_carried_over_as_such_to_a_tier() {
    let quick = |burst| Gcra::new(Rate::new(20, Duration::from_micros(1_000))).burst(burst).build().unwrap();
    let gcra = |burst| Gcra::new(Rate::new(10, Duration::from_micros(1_000))).burst(burst).build().unwrap();
    let tiers = [gcra(3), gcra(5), gcra(10), quick(3), quick(5), quick(10)];
    for carry in RULES {
        for (place, own) in [0, 1].into_iter().flat_map(|place| tiers.map(|own| (place, own))) {
            for later in [0, 100, 300, 500, 600] {
                let mut desk = Desk::new(policy(&[gcra(10)], None));
                assert!(desk.decide(0, 8).is_some());
                desk.set = PolicySet::new(policy(&[gcra(5)], None)).unwrap();
                desk.decide(0, 0);
                desk.redis.store.borrow_mut().now = later;
                let tiers = if place == 0 { [own, gcra(50)] } else { [gcra(50), own] };
                desk.set = PolicySet::new(policy(&tiers, Some(carry))).unwrap();
                for cost in [1, 1, 2] {
                    desk.decide(place, cost);
                }
            }
        }
    }
}

/// As `inspect` shows it. Where no length can be read, it is the whole value.
#[test]
fn the_first_state_of_a_value_ends_before_those_of_other_parameters() {
    let (_, header) = layout(b"f").unwrap();
    let state = |follow: u8| [&vec![b'f'; header - 1][..], &[follow], &[7; 16]].concat();
    let (first, place) = (state(b'1'), [state(b'1').len() as f64, 0.0, 0.0].map(f64::to_le_bytes).concat());
    for others in 1..=3 {
        let (states, places) = (state(b'0').repeat(others), place.repeat(1 + others));
        let value = [&first[..], &states, &places, &[others as u8]].concat();
        assert_eq!(first_state(&value), first);
        assert_eq!(first_state(&first), first);
    }
}
