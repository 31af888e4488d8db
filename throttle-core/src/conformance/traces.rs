//! Random traces equal the reference, field by field. They are the same in every run.

use super::random::Random;
use super::replay::replay;
use super::shrink::shrink;
use super::trace::{TraceOptions, trace};
use super::{Harness, Sample};
use crate::algorithm::{Gcra, SlidingLog};
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::{AnyCharge, PolicySet, PolicyTree};

/// µs of an hour, in which most samples recover.
const HOUR: u64 = 3_600_000_000;

/// Draws a trace and replays it.
///
/// # Panics
///
/// On the first difference, with the law, the field and the shortest trace that shows it.
fn check<H: Harness>(trees: &[PolicyTree], options: &TraceOptions) {
    let sets: Vec<PolicySet> = trees
        .iter()
        .map(|tree| PolicySet::new(tree.clone()).expect("the kit's sets are valid"))
        .collect();
    let steps = trace(options, &sets);
    let Err(difference) = replay::<H>(trees, &steps) else {
        return;
    };
    let failing = shrink(&steps, difference, |steps| replay::<H>(trees, steps));
    let law = failing.difference.law(&failing.steps);
    let listed: Vec<String> = failing
        .steps
        .iter()
        .map(|step| format!("  {step:?}"))
        .collect();
    panic!(
        "{law}: {} at the last of these steps\n{}\nof {}\n(seed {})",
        failing.difference,
        listed.join("\n"),
        trees
            .iter()
            .map(described)
            .collect::<Vec<_>>()
            .join("\nand "),
        options.seed,
    );
}

fn described(tree: &PolicyTree) -> String {
    let (kind, members) = match tree {
        PolicyTree::Policy(policy) => {
            let limit = policy.algorithm();
            let name = limit.name();
            return format!(
                "{} ({name}, {}, {})",
                policy.name(),
                limit.rate(),
                limit.capacity()
            );
        }
        PolicyTree::All(members) => ("all".to_owned(), members),
        PolicyTree::Any(members, charge) => (format!("any, {charge:?}"), members),
    };
    let members: Vec<String> = members.iter().map(described).collect();
    format!("{kind} [{}]", members.join(", "))
}

/// The traces of one policy.
fn options_of(sample: &Sample, seed: u64) -> TraceOptions {
    TraceOptions {
        seed,
        length: 300,
        span: sample.span(),
        keys: 3,
        steps_back: true,
        mixes_parameters: true,
        has_exceptions: seed % 2 == 1,
    }
}

/// Random traces on one policy, whose limit is lowered and raised again.
pub fn law_08_traces_equal_the_reference<H: Harness>(sample: &Sample) {
    let trees =
        [sample.algorithm(), sample.lowered()].map(|limit| policy("policy_1", limit).into());
    for seed in 0..4 {
        check::<H>(&trees, &options_of(sample, seed));
    }
}

/// Random traces on a policy with tiers, under ever other parameters of the keys' own.
pub fn law_08_parameters_equal_the_reference<H: Harness>(sample: &Sample) {
    let tree: PolicyTree = tiered("policy_1", sample).into();
    for seed in 10..13 {
        check::<H>(std::slice::from_ref(&tree), &options_of(sample, seed));
    }
}

/// Random traces of many keys, few of which are used for long.
pub fn law_09_traces_of_many_keys_equal_the_reference<H: Harness>(sample: &Sample) {
    let tree: PolicyTree = policy("policy_1", sample.algorithm()).into();
    let options = TraceOptions {
        length: 400,
        keys: 40,
        steps_back: false,
        ..options_of(sample, 20)
    };
    check::<H>(&[tree], &options);
}

/// Random traces on random nested compositions, with and without tiers, some limits lowered.
pub fn law_08_compositions_equal_the_reference<H: Harness>() {
    let options = |seed| TraceOptions {
        seed,
        length: 150,
        span: HOUR,
        keys: 3,
        steps_back: H::ATOMIC_SETS,
        // Where each limit is reserved by itself, a reservation that is given back has been written
        // by the present parameters.
        mixes_parameters: H::ATOMIC_SETS,
        has_exceptions: H::ATOMIC_SETS && seed % 2 == 1,
    };
    for seed in 30..60 {
        let mut random = Random::new(seed);
        let mut names = 0;
        let depth = 1 + seed as usize % 3;
        let trees = composition(&mut random, depth, &mut names);
        let trees = match seed % 3 {
            0 => {
                let audited = composition(&mut random, 0, &mut names).map(audit);
                let pairs = audited.into_iter().zip(trees);
                pairs
                    .map(|(audited, tree)| PolicyTree::All(vec![audited, tree]))
                    .collect()
            }
            _ => trees.to_vec(),
        };
        check::<H>(&trees, &options(seed));
    }
    let members = Sample::all().into_iter().cycle().take(15).enumerate();
    let many = members.map(|(index, sample)| policy(&format!("of_{index}"), sample.algorithm()));
    let many = PolicyTree::All(many.map(Into::into).collect());
    let few_steps = TraceOptions {
        length: 40,
        ..options(60)
    };
    check::<H>(&[many], &few_steps);
}

/// The same policy, audited.
fn audit(tree: PolicyTree) -> PolicyTree {
    match tree {
        PolicyTree::Policy(policy) => policy.audit().into(),
        composition => composition,
    }
}

/// A random composition, and the same with some limits lowered.
fn composition(random: &mut Random, depth: usize, names: &mut usize) -> [PolicyTree; 2] {
    if depth == 0 {
        let samples = Sample::all();
        let sample = &samples[random.below(samples.len() as u64) as usize];
        let name = format!("policy_{names}");
        *names += 1;
        if random.chance(25) {
            let tree: PolicyTree = tiered(&name, sample).into();
            return [tree.clone(), tree];
        }
        let other = if random.chance(50) {
            sample.lowered()
        } else {
            sample.algorithm()
        };
        return [sample.algorithm(), other].map(|limit| policy(&name, limit).into());
    }
    let mut all = Vec::new();
    let mut changed = Vec::new();
    for _ in 0..random.between(1, 3) {
        let shallower = if random.chance(50) { 0 } else { depth - 1 };
        let [member, other] = composition(random, shallower, names);
        all.push(member);
        changed.push(other);
    }
    match random.below(3) {
        0 => [all, changed].map(|members| PolicyTree::Any(members, AnyCharge::First)),
        1 => [all, changed].map(|members| PolicyTree::Any(members, AnyCharge::EveryAdmitting)),
        _ => [all, changed].map(PolicyTree::All),
    }
}

pub(super) fn policy(name: &str, algorithm: &crate::algorithm::Algorithm) -> Policy {
    Policy::new(name, *algorithm).expect("the kit's names are valid")
}

/// The sample in three tiers, the last one of another algorithm. All recover at about the sample's
/// pace.
fn tiered(name: &str, sample: &Sample) -> Policy {
    let rate = sample.algorithm().rate();
    let capacity = sample.capacity();
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
