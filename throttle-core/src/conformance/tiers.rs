//! Tiers: one budget for each key, whatever tier it is asked in.

use std::collections::HashMap;
use std::sync::Barrier;
use std::time::Duration;

use super::fixture::{Fixture, Observed, START, call, start};
use super::random::Random;
use super::{Harness, Sample};
use crate::algorithm::{Algorithm, Carry, FixedWindow, Gcra, SlidingLog, State};
use crate::backend::Call;
use crate::backend::Receipt;
use crate::key::Key;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::{PolicySet, PolicyTree};
use crate::time::Timestamp;

pub(super) const RULES: [Carry; 3] = [Carry::Keep, Carry::Proportional, Carry::Reset];

/// The sample in three tiers, the last one of another algorithm.
pub(super) fn tiered(name: &str, sample: &Sample, carry: Carry) -> Policy {
    // Tiers in proportion: the larger one recovers as quickly, whatever the sample's own pace.
    let rate = sample.algorithm().rate();
    let last = match carry {
        Carry::Proportional => Gcra::new(Rate::new(rate.count() * 30, rate.period())).burst(sample.capacity() * 3),
        _ => Gcra::new(Rate::per_minute(7)).burst(20),
    };
    let tiers: [(&str, Algorithm); 3] =
        [("low", *sample.lowered()), ("high", *sample.algorithm()), ("other", last.build().expect("a valid rate"))];
    match Policy::tiered(name, tiers, carry) {
        Ok(policy) => policy,
        // Some samples recover more slowly than their lowered selves: these have two tiers of one pace.
        Err(_) => {
            let last = last.burst(sample.capacity()).build().expect("a valid rate");
            Policy::tiered(name, [("high", *sample.algorithm()), ("other", last)], carry).expect("two tiers of a size")
        }
    }
}

/// Law 8: one answer. Long traces of calls in random tiers equal the model, whatever the carry rule.
pub fn law_08_tiers_equal_the_model<H: Harness>(sample: &Sample) {
    for (seed, carry) in (0..).zip(RULES) {
        let harness = start::<H>();
        let policy = tiered("policy", sample, carry);
        Trace::new(&harness, policy.into(), sample.span(), seed).run(250);
    }
}

/// Long traces on an `all` of policies with and without tiers equal the model, whatever the carry rule.
pub fn law_08_tiers_of_composites_equal_the_model<H: Harness>() {
    for (seed, carry) in (10..).zip(RULES) {
        let harness = start::<H>();
        let plain = Policy::new("plain", SlidingLog::new(Rate::per_minute(9))).expect("a valid limit");
        let one = tiered("one", &Sample::gcra(), carry);
        let two = tiered("two", &Sample::fixed_window(), carry);
        let rule = PolicyTree::All(vec![one.into(), plain.into(), two.into()]);
        Trace::new(&harness, rule, 60_000_000, seed).run(150);
    }
}

/// Law 1: a request that another tier refuses, and a peek in that tier, change nothing.
pub fn law_01_refusals_in_another_tier_change_nothing<H: Harness>(sample: &Sample) {
    for carry in RULES {
        let harness = start::<H>();
        let fixture = Fixture::new(&harness, tiered("policy", sample, carry));
        let (asked, untouched) = (Key::from("asked"), Key::from("untouched"));
        for key in [&asked, &untouched] {
            assert!(fixture.decide(&[call(key, 3).in_tier(0)]).is_admitted());
        }
        for micros in [0, 1, 1_000_000, 20_000_000] {
            harness.set_time(START.after_micros(micros));
            for tier in [1, 2, 1] {
                let denied = fixture.decide(&[call(&asked, 1_000).in_tier(tier)]);
                assert!(!denied.is_admitted(), "{denied:?}");
                fixture.decide(&[call(&asked, 0).in_tier(tier)]);
            }
            for tier in 0..3 {
                let peek = |key: &Key| fixture.observed(&fixture.decide(&[call(key, 0).in_tier(tier)]));
                assert_eq!(peek(&asked), peek(&untouched), "{carry:?}, tier {tier}, {micros} µs later");
            }
        }
    }
}

/// Law 2: the wait of a request in another tier than the one that was used is exact to the microsecond.
pub fn law_02_waits_in_another_tier_are_tight<H: Harness>(sample: &Sample) {
    for carry in [Carry::Keep, Carry::Proportional] {
        for back in [0, 1] {
            let harness = start::<H>();
            let policy = tiered("policy", sample, carry);
            let (most, other) = (policy.tier(0).algorithm().capacity(), policy.tier(1).algorithm().capacity());
            let fixture = Fixture::new(&harness, policy);
            let key = Key::from("key");
            assert!(fixture.decide(&[call(&key, most).in_tier(0)]).is_admitted());
            let denied = fixture.decide(&[call(&key, other).in_tier(1)]);
            harness.set_time(START.after_micros(super::fixture::wait(&denied) - back));
            let again = fixture.decide(&[call(&key, other).in_tier(1)]);
            assert_eq!(again.is_admitted(), back == 0, "{carry:?}, {back} µs before the wait is over: {again:?}");
        }
    }
}

/// Law 6: racers in random tiers use all units of the largest tier, and no more.
pub fn law_06_racers_in_all_tiers_share_one_budget<H: Harness>() {
    const TASKS: u64 = 64;
    let harness = start::<H>();
    let hour = Duration::from_secs(3600);
    let tiers = [10, 40, 100].map(|count| (format!("of {count}"), FixedWindow::new(Rate::new(count, hour))));
    let policy = Policy::tiered("policy", tiers, Carry::Keep).expect("three tiers");
    let fixture = Fixture::new(&harness, policy);
    let (key, barrier) = (Key::from("key"), Barrier::new(TASKS as usize));
    let mut admitted = [0_u64; 3];
    std::thread::scope(|scope| {
        let racers: Vec<_> = (0..TASKS)
            .map(|racer| {
                let (fixture, key, barrier) = (&fixture, &key, &barrier);
                scope.spawn(move || {
                    let mut random = Random::new(racer);
                    barrier.wait();
                    let mut admitted = [0_u64; 3];
                    for _ in 0..6 {
                        let tier = random.below(3) as u8;
                        if fixture.decide(&[call(key, 1).in_tier(tier)]).is_admitted() {
                            admitted[usize::from(tier)] += 1;
                        }
                    }
                    admitted
                })
            })
            .collect();
        for racer in racers {
            let own = racer.join().expect("a racer does not panic");
            admitted.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        }
    });
    let [low, middle, high] = admitted;
    assert!(low <= 10 && low + middle <= 40, "{admitted:?} in tiers of 10, 40 and 100");
    // 64 racers asked 6 times each, so the largest tier was asked for more than it holds.
    assert_eq!(low + middle + high, 100, "{admitted:?}: the largest tier's hundred, once");
}

/// Calls in random tiers, beside states that are never forgotten.
struct Trace<'h, H: Harness> {
    harness: &'h H,
    fixture: Fixture<'h, H>,
    states: HashMap<(usize, Key), State>,
    random: Random,
    now: Timestamp,
    span: u64,
    charges: Vec<[Receipt; 2]>,
    wait: u64,
}

impl<'h, H: Harness> Trace<'h, H> {
    fn new(harness: &'h H, rule: PolicyTree, span: u64, seed: u64) -> Self {
        let fixture = Fixture::new(harness, rule);
        let (states, random) = (HashMap::new(), Random::new(2_000 + seed));
        Self { harness, fixture, states, random, now: START, span, charges: Vec::new(), wait: 0 }
    }

    fn run(&mut self, steps: usize) {
        for step in 0..steps {
            let ahead = match self.random.below(100) {
                0..=39 => self.random.below(self.span / 40),
                40..=44 => self.random.below(self.span),
                45..=54 => self.wait,
                55..=60 => self.wait.saturating_sub(1),
                _ => 0,
            };
            self.now = self.now.after_micros(ahead);
            self.harness.set_time(self.now);
            if self.random.below(100) < 15 { self.settle() } else { self.decide(step) }
        }
    }

    fn decide(&mut self, step: usize) {
        let set = self.fixture.limiter.set().clone();
        let key = Key::from(self.random.below(2));
        let mut calls: Vec<Call> = Vec::new();
        for policy in set.policies() {
            let tier = self.random.below(3) as u8;
            let capacity = policy.tier(tier).algorithm().capacity();
            let cost = match self.random.below(100) {
                0..=14 => 0,
                15..=69 => self.random.between(1, 3),
                70..=94 => self.random.between(1, capacity),
                _ => capacity + 1,
            };
            calls.push(call(&key, cost).in_tier(tier));
        }
        let mut states = self.states_of(&set, &key);
        let expected = set.decide(&mut states, self.now, &calls);
        for (place, state) in states.into_iter().enumerate() {
            self.states.insert((place, key.clone()), state);
        }
        let decision = self.fixture.decide(&calls);
        assert_eq!(self.fixture.observed(&decision), Observed::new(&set, &expected), "step {step}, {calls:?}");
        let tiers = |decision: &crate::Decision| decision.statuses().iter().map(|s| s.tier()).collect::<Vec<_>>();
        assert_eq!(tiers(&decision), tiers(&expected), "step {step}, {calls:?}");
        self.wait = expected.retry_after().map_or(0, super::fixture::micros);
        if let (Some(theirs), Some(ours)) = (Receipt::of(&decision, &calls), Receipt::of(&expected, &calls)) {
            self.charges.push([theirs, ours]);
        }
    }

    fn states_of(&self, set: &PolicySet, key: &Key) -> Vec<State> {
        let state = |(place, policy): (usize, &Policy)| {
            self.states.get(&(place, key.clone())).cloned().unwrap_or_else(|| policy.algorithm().fresh())
        };
        set.policies().iter().enumerate().map(state).collect()
    }

    fn settle(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let open = self.random.below(self.charges.len() as u64) as usize;
        let actual = self.random.below(9);
        let [theirs, ours] = self.charges.swap_remove(open).map(|charge| charge.actual(actual));
        let set = self.fixture.limiter.set();
        for item in ours.items() {
            if let Some(state) = self.states.get_mut(&(item.policy(), item.key().clone())) {
                item.apply_to(&set.policies()[item.policy()], state, self.now);
            }
        }
        self.fixture.settle(theirs);
    }
}
