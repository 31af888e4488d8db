//! Law 8: one answer. Long hostile traces, compared with the model field by field.

use super::fixture::{Fixture, Observed, START, policy, start};
use super::model::Model;
use super::parameters::{OWN, tiered, under};
use super::random::Random;
use super::{Harness, Sample};
use crate::backend::{Call, Receipt};
use crate::key::Key;
use crate::set::{AnyCharge, PolicyTree};
use crate::time::Timestamp;

/// Random traces on one policy equal the model, field by field.
pub fn law_08_traces_equal_the_model<H: Harness>(sample: &Sample) {
    for seed in 0..3 {
        let harness = start::<H>();
        let limits = [sample.algorithm(), sample.lowered()]
            .map(|algorithm| policy("policy", algorithm).into());
        Trace::new(&harness, limits, sample.span(), true, seed).run(400);
    }
}

/// Random traces on random nested composites equal the model, field by field.
pub fn law_08_composites_equal_the_model<H: Harness>() {
    for seed in 0..24 {
        let harness = start::<H>();
        let mut names = 0;
        let (mut random, depth) = (Random::new(1_000 + seed), 1 + seed as usize % 3);
        let mut limits = composite(&mut random, depth, &mut names);
        if seed % 3 == 0 {
            let audited = composite(&mut random, 0, &mut names);
            let mut audited = audited.into_iter();
            limits = limits.map(|tree| {
                PolicyTree::All(audited.by_ref().take(1).map(audit).chain([tree]).collect())
            });
        }
        Trace::new(&harness, limits, 86_400_000_000, H::ATOMIC_SETS, seed).run(200);
    }
}

/// Long traces of calls in random tiers and under ever other parameters equal the model.
pub fn law_08_parameters_equal_the_model<H: Harness>(sample: &Sample) {
    for seed in 0..3 {
        let harness = start::<H>();
        let tree: PolicyTree = tiered("policy", sample).into();
        Trace::new(
            &harness,
            [tree.clone(), tree],
            sample.span(),
            false,
            2_000 + seed,
        )
        .run(250);
    }
}

/// Long traces on an `all` and an `any` of policies with and without tiers equal the model.
pub fn law_08_parameters_in_composites_equal_the_model<H: Harness>() {
    for seed in 10..14 {
        let harness = start::<H>();
        let plain = policy("plain", Sample::sliding_log().algorithm());
        let one = tiered("one", &Sample::gcra());
        let two = tiered("two", &Sample::fixed_window());
        let members = vec![one.into(), plain.into(), two.into()];
        let tree = if seed % 2 == 0 {
            PolicyTree::All(members)
        } else {
            PolicyTree::Any(members, Default::default())
        };
        Trace::new(
            &harness,
            [tree.clone(), tree],
            60_000_000,
            false,
            2_000 + seed,
        )
        .run(150);
    }
}

/// The same policy, audited.
fn audit(tree: PolicyTree) -> PolicyTree {
    match tree {
        PolicyTree::Policy(policy) => policy.audit().into(),
        composition => composition,
    }
}

/// A random composite, and the same with some limits lowered.
fn composite(random: &mut Random, depth: usize, names: &mut usize) -> [PolicyTree; 2] {
    if depth == 0 {
        let samples = Sample::all();
        let sample = &samples[random.below(samples.len() as u64) as usize];
        let name = format!("policy {names}");
        *names += 1;
        let other = if random.chance(50) {
            sample.lowered()
        } else {
            sample.algorithm()
        };
        return [sample.algorithm(), other].map(|algorithm| policy(&name, algorithm).into());
    }
    let (mut all, mut changed) = (Vec::new(), Vec::new());
    for _ in 0..random.between(1, 3) {
        let shallower = if random.chance(50) { 0 } else { depth - 1 };
        let [member, other] = composite(random, shallower, names);
        all.push(member);
        changed.push(other);
    }
    match random.below(3) {
        0 => [PolicyTree::All(all), PolicyTree::All(changed)],
        1 => [
            PolicyTree::Any(all, AnyCharge::First),
            PolicyTree::Any(changed, AnyCharge::First),
        ],
        _ => [
            PolicyTree::Any(all, AnyCharge::EveryAdmitting),
            PolicyTree::Any(changed, AnyCharge::EveryAdmitting),
        ],
    }
}

struct Trace<'h, H: Harness> {
    harness: &'h H,
    /// The set in use and the one it changes to take turns.
    fixtures: [Fixture<'h, H>; 2],
    model: Model,
    random: Random,
    now: Timestamp,
    /// µs in which everything is forgotten.
    span: u64,
    steps_back: bool,
    /// Whether a key meets other parameters than those that it was charged under last.
    changes: bool,
    /// How often the limits have changed.
    changed: usize,
    /// Charges to settle, the backend's and the model's, and which set made them.
    charges: Vec<(usize, [Receipt; 2])>,
    /// The wait of the last refused request, µs.
    wait: u64,
}

impl<'h, H: Harness> Trace<'h, H> {
    fn new(
        harness: &'h H,
        limits: [PolicyTree; 2],
        span: u64,
        steps_back: bool,
        seed: u64,
    ) -> Self {
        let fixtures = limits.map(|tree| Fixture::new(harness, tree));
        let (model, random) = (Model::new(), Random::new(seed));
        let changes = H::ATOMIC_SETS || fixtures[0].limiter.set().policies().len() == 1;
        let (now, charges) = (START, Vec::new());
        Self {
            harness,
            fixtures,
            model,
            random,
            now,
            span,
            steps_back,
            changes,
            changed: 0,
            charges,
            wait: 0,
        }
    }

    fn run(&mut self, steps: usize) {
        for step in 0..steps {
            self.move_clock();
            match self.random.below(100) {
                0..=5 if self.changes => self.changed += 1,
                6..=8 => self.reset(),
                9..=19 => self.settle(),
                _ => self.decide(step),
            }
        }
    }

    fn move_clock(&mut self) {
        let (now, span) = (self.now, self.span);
        self.now = match self.random.below(100) {
            // The rest stand still.
            40..=59 => now.after_micros(self.random.below(span / 40)),
            60..=69 => now.after_micros(self.random.below(span / 4)),
            70..=72 => now.after_micros(span + self.random.below(2 * span)),
            73..=76 => now.after_micros(1),
            77..=80 => now.after_micros(self.wait),
            81..=84 => now.after_micros(self.wait.saturating_sub(1)),
            85..=97 if self.steps_back => {
                let back = self.random.below(span);
                Timestamp::from_micros(now.as_micros() - back.cast_signed()).max(self.model.floor())
            }
            _ => now,
        };
        self.harness.set_time(self.now);
    }

    fn decide(&mut self, step: usize) {
        let fixture = &self.fixtures[self.changed % 2];
        let set = fixture.limiter.set();
        // Often one key for all members; otherwise each member has a key of its own, or skips.
        let common = self.random.chance(50).then(|| self.random.below(3));
        let mut calls = Vec::new();
        for policy in set.policies() {
            let key = common.unwrap_or_else(|| self.random.below(3));
            let call = Call::from(Key::from(key));
            let call = match self.random.below(2) {
                _ if !policy.is_tiered() => call,
                // Where each limit is reserved by itself, a reservation that is given back has been
                // written by the present parameters. So each key keeps to its tier there.
                _ if !self.changes => under(policy, call, key),
                0 => under(policy, call, self.random.below(3)),
                _ => under(policy, call, 3 + self.random.below(OWN)),
            };
            let capacity = call.parameters(policy).capacity();
            let cost = match self.random.below(100) {
                0..=14 => 0,
                15..=74 => self.random.between(1, 3),
                75..=92 => self.random.between(1, capacity),
                93..=97 => capacity + 1,
                _ => u64::MAX,
            };
            let skip = common.is_none() && self.random.chance(10);
            let call = call.costing(cost);
            calls.push(match self.random.below(100) {
                _ if skip => Call::SKIP,
                0..=14 => call.peeking(),
                _ => call,
            });
        }
        let expected = self.model.decide(set, self.now, &calls);
        let decision = fixture.decide(&calls);
        let (since, changed) = (self.now.micros_since(START), self.changed);
        let context = format_args!(
            "step {step} at {since} µs after the start, after {changed} changes of the limits"
        );
        if H::KEEPS_REFUSALS && set.policies().len() > 1 && !expected.is_admitted() {
            assert!(!decision.is_admitted(), "{context}, {calls:?}");
        } else {
            assert_eq!(
                fixture.observed(&decision),
                Observed::new(set, &expected),
                "{context}, {calls:?}"
            );
        }
        if let Some(wait) = expected.retry_after().filter(|wait| !wait.is_zero()) {
            self.wait = super::fixture::micros(wait);
        }
        if let (Some(theirs), Some(ours)) = (
            Receipt::of(&decision, &calls),
            Receipt::of(&expected, &calls),
        ) {
            self.charges.push((self.changed % 2, [theirs, ours]));
        }
    }

    /// Settles any of the open charges, however old. The next decision shows the effect.
    fn settle(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let open = self.random.below(self.charges.len() as u64) as usize;
        let actual = if self.random.chance(50) {
            0
        } else {
            self.random.between(0, 12)
        };
        let (limits, charges) = self.charges.swap_remove(open);
        let [theirs, ours] = charges.map(|charge| charge.actual(actual));
        self.model
            .settle(self.fixtures[limits].limiter.set(), self.now, &ours);
        self.fixtures[limits].settle(theirs);
    }

    fn reset(&mut self) {
        let fixture = &self.fixtures[self.changed % 2];
        let set = fixture.limiter.set();
        let policy = self.random.below(set.policies().len() as u64) as usize;
        let key = Key::from(self.random.below(3));
        self.model.reset(set, policy, &key);
        fixture.reset(policy, &key);
    }
}
