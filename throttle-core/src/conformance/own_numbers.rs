//! Keys with numbers of their own, decided by sets beside the one with the tiers.

use std::collections::HashMap;
use std::sync::Barrier;
use std::time::Duration;

use super::fixture::{Fixture, Observed, START, call, micros, start};
use super::random::Random;
use super::tiers::{RULES, tiered};
use super::{Harness, Sample};
use crate::algorithm::{Carry, FixedWindow, Gcra, State};
use crate::backend::Receipt;
use crate::key::Key;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::time::Timestamp;

/// More than a key can have states.
const OWN: usize = 12;

/// Law 8: long traces of calls in tiers and under ever other numbers equal the model, whatever the carry rule.
pub fn law_08_own_numbers_equal_the_model<H: Harness>(sample: &Sample) {
    for (seed, carry) in (0..).zip(RULES) {
        let harness = start::<H>();
        let plan = tiered("policy", sample, carry);
        let own = own_numbers(&plan);
        assert_eq!(own.len(), if carry == Carry::Proportional { 0 } else { OWN }, "{carry:?}");
        let sets = std::iter::once(plan).chain(own).map(|policy| Fixture::new(&harness, policy)).collect();
        Trace::new(&harness, sets, seed).run(250, sample.span());
    }
}

/// Different numbers that may stand beside the tiers.
fn own_numbers(plan: &Policy) -> Vec<Policy> {
    let of = |n: u64| Gcra::new(Rate::per_minute(3 + 7 * n)).burst(2 + 3 * n);
    (0..OWN as u64).filter_map(|n| plan.with_own(of(n)).ok()).collect()
}

/// Law 6: racers in a tier and under three different own numbers share one budget. The largest numbers are asked for
/// more than they hold, so exactly their units are admitted.
pub fn law_06_racers_in_tiers_and_under_own_numbers_share_one_budget<H: Harness>() {
    const RACERS: usize = 32;
    let harness = start::<H>();
    let per_hour = |count| FixedWindow::new(Rate::new(count, Duration::from_secs(3_600)));
    let plan = Policy::tiered("policy", [("tier", per_hour(20))], Carry::Keep).expect("a tier");
    let own = [10, 40, 100].map(|count| plan.with_own(per_hour(count)).expect("a rate"));
    let counts = [20, 10, 40, 100];
    let sets: Vec<_> = std::iter::once(plan).chain(own).map(|policy| Fixture::new(&harness, policy)).collect();
    let (key, barrier) = (Key::from("key"), Barrier::new(RACERS));
    let race = |racer: usize| {
        let (mut random, mut admitted) = (Random::new(racer as u64), [0_u64; 4]);
        barrier.wait();
        for round in 0..16 {
            // Each racer ends with the largest, so that these are asked 8 times each: more often than they hold.
            let place = if round < 8 { random.below(4) as usize } else { 3 };
            admitted[place] += u64::from(sets[place].take(&key, 1).is_admitted());
        }
        admitted
    };
    let admitted = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS).map(|racer| scope.spawn(move || race(racer))).collect();
        racers.into_iter().map(|racer| racer.join().expect("a racer does not panic")).fold(
            [0; 4],
            |mut sum, admitted| {
                sum.iter_mut().zip(admitted).for_each(|(sum, admitted)| *sum += admitted);
                sum
            },
        )
    });
    assert!(admitted.iter().zip(counts).all(|(admitted, count)| *admitted <= count), "{admitted:?} of {counts:?}");
    assert_eq!(admitted.iter().sum::<u64>(), 100, "{admitted:?}: the largest numbers' hundred, once");
}

/// Law 9: numbers that nobody uses any more leave nothing behind but what a key has used, and one key's numbers change
/// nothing for the others.
pub fn law_09_keys_keep_what_they_used_under_numbers_that_are_gone<H: Harness>() {
    const DAY: u64 = 86_400_000_000;
    let harness = start::<H>();
    let tiers = [("low", Gcra::new(Rate::per_day(100))), ("high", Gcra::new(Rate::per_day(10_000)))];
    let plan = Policy::tiered("policy", tiers, Carry::Keep).expect("two tiers");
    let base = Fixture::new(&harness, plan.clone());
    let own = |count: u64| Fixture::new(&harness, plan.with_own(Gcra::new(Rate::per_day(count))).expect("a rate"));
    let key = |number: u64| Key::from(number);
    for number in 0..40 {
        let own = own(200 + number);
        assert_eq!(own.take(&key(number), 150).remaining(), 50 + number);
        assert!(!own.take(&key(number), 51 + number).is_admitted());
    }
    for number in 40..300 {
        assert_eq!(own(200 + number).remaining(&key(number % 40)), 50 + number, "150 are used under any numbers");
    }
    for number in 0..40 {
        assert_eq!(base.remaining(&key(number)), 0, "150 of 100 are used");
        assert_eq!(own(200 + number).remaining(&key(number)), 50 + number, "the same numbers again");
        assert_eq!(own(1_000 + number).remaining(&key(number)), 850 + number, "others");
        assert_eq!(base.remaining(&key(1_000 + number)), 100, "another key");
    }
    harness.set_time(START.after_micros(DAY));
    for number in 0..40 {
        assert_eq!(base.remaining(&key(number)), 100, "a day later nothing counts as used");
    }
}

/// Calls to a policy by several sets, beside states that are never forgotten. The first set has the tiers.
struct Trace<'h, H: Harness> {
    harness: &'h H,
    sets: Vec<Fixture<'h, H>>,
    states: HashMap<Key, State>,
    random: Random,
    now: Timestamp,
    charges: Vec<(usize, [Receipt; 2])>,
    wait: u64,
}

impl<'h, H: Harness> Trace<'h, H> {
    fn new(harness: &'h H, sets: Vec<Fixture<'h, H>>, seed: u64) -> Self {
        let (states, random) = (HashMap::new(), Random::new(7_000 + seed));
        Self { harness, sets, states, random, now: START, charges: Vec::new(), wait: 0 }
    }

    fn run(&mut self, steps: usize, span: u64) {
        for step in 0..steps {
            let ahead = match self.random.below(100) {
                0..=39 => self.random.below(span / 40),
                40..=44 => self.random.below(span),
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
        // Half of the calls are in tiers.
        let place = self.random.below(2 * self.sets.len() as u64) as usize;
        let place = if place < self.sets.len() { place } else { 0 };
        let set = self.sets[place].limiter.set().clone();
        let (key, tier) = (Key::from(self.random.below(2)), if place == 0 { self.random.below(3) as u8 } else { 0 });
        let capacity = set.policies()[0].tier(tier).algorithm().capacity();
        let cost = match self.random.below(100) {
            0..=14 => 0,
            15..=69 => self.random.between(1, 3.min(capacity)),
            70..=94 => self.random.between(1, capacity),
            _ => capacity + 1,
        };
        let calls = [call(&key, cost).in_tier(tier)];
        let first = set.policies()[0].algorithm();
        let mut states = [self.states.get(&key).cloned().unwrap_or_else(|| first.fresh())];
        let expected = set.decide(&mut states, self.now, &calls);
        let [state] = states;
        self.states.insert(key, state);
        let decision = self.sets[place].decide(&calls);
        let seen = self.sets[place].observed(&decision);
        assert_eq!(seen, Observed::new(&set, &expected), "step {step}, set {place}, {calls:?}");
        self.wait = expected.retry_after().map_or(0, micros);
        if let (Some(theirs), Some(ours)) = (Receipt::of(&decision, &calls), Receipt::of(&expected, &calls)) {
            self.charges.push((place, [theirs, ours]));
        }
    }

    fn settle(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let open = self.random.below(self.charges.len() as u64) as usize;
        let actual = self.random.below(9);
        let (place, charge) = self.charges.swap_remove(open);
        let [theirs, ours] = charge.map(|charge| charge.actual(actual));
        let set = self.sets[place].limiter.set().clone();
        for item in ours.items() {
            if let Some(state) = self.states.get_mut(item.key()) {
                item.apply_to(&set.policies()[0], state, self.now);
            }
        }
        self.sets[place].settle(theirs);
    }
}
