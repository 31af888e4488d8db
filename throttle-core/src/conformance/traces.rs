//! Random traces equal the reference, field by field. They are the same in every run.

use super::Harness;
use super::hostile_keys::hostile_keys;
use super::random::Random;
use super::replay::replay;
use super::sample::{lowered, samples, samples_for};
use super::shrink::shrink;
use super::step::TraceStep;
use super::trace::{TraceOptions, trace};
use crate::algorithm::{Algorithm, Gcra, SlidingLog};
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::{AnyCharge, PolicySet, PolicyTree};

/// Replays one random trace on sets that have the same policies by name, such as a set before and
/// after its limits were changed.
///
/// ```
/// # use throttle_core::conformance::Harness;
/// # use throttle_core::{ManualClock, MemoryBackend, Timestamp};
/// # struct InMemory(MemoryBackend<ManualClock>, ManualClock);
/// # impl Harness for InMemory {
/// #     type Backend = MemoryBackend<ManualClock>;
/// #     fn start() -> Self {
/// #         let clock = ManualClock::default();
/// #         Self(MemoryBackend::builder().clock(clock.clone()).build(), clock)
/// #     }
/// #     fn backend(&self) -> Self::Backend { self.0.clone() }
/// #     fn set_time(&self, now: Timestamp) { self.1.set(now); }
/// # }
/// use throttle_core::conformance::{TraceOptions, law_08_trace_equals_the_reference};
/// use throttle_core::{Gcra, Policy, Rate};
///
/// let limit = Policy::new("logins", Gcra::new(Rate::per_minute(5)))?;
/// law_08_trace_equals_the_reference::<InMemory>(&[limit.into()], &TraceOptions::new(7));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
///
/// # Panics
///
/// On the first difference, with the law, the field and the shortest trace that shows it, and if a
/// set is not valid.
pub fn law_08_trace_equals_the_reference<H: Harness>(trees: &[PolicyTree], options: &TraceOptions) {
    let sets: Vec<PolicySet> = trees
        .iter()
        .map(|tree| PolicySet::repeating(tree.clone()).expect("the sets are valid"))
        .collect();
    let steps = trace(options, &sets);
    let again = |steps: &[TraceStep]| replay::<H>(trees, options.start, steps);
    let Err(difference) = again(&steps) else {
        return;
    };
    let failing = shrink(&steps, difference, again);
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

/// Random traces on one policy, whose limit is lowered and raised again.
pub fn law_08_traces_equal_the_reference<H: Harness>() {
    for (index, sample) in samples_for::<H>().iter().enumerate() {
        let limits = [*sample, lowered(sample)];
        let trees = limits.map(|limit| policy("policy_1", &limit).into());
        for seed in 0..4 {
            let options = TraceOptions::new(seed + 4 * index as u64);
            law_08_trace_equals_the_reference::<H>(&trees, &options);
        }
    }
}

/// Random traces on a policy with tiers, under ever other parameters of the keys' own.
pub fn law_08_parameters_equal_the_reference<H: Harness>() {
    for (index, sample) in samples_for::<H>().iter().enumerate() {
        for seed in 0..3 {
            let tree = tiered("policy_1", sample).into();
            let options = TraceOptions::new(seed + 3 * index as u64);
            law_08_trace_equals_the_reference::<H>(&[tree], &options);
        }
    }
}

/// Random traces of many keys, few of which are used for long.
pub fn law_09_traces_of_many_keys_equal_the_reference<H: Harness>() {
    let options = TraceOptions {
        length: 400,
        keys: hostile_keys(),
        steps_back: false,
        ..TraceOptions::new(20)
    };
    for sample in samples_for::<H>() {
        let tree = policy("policy_1", &sample).into();
        law_08_trace_equals_the_reference::<H>(&[tree], &options);
    }
}

/// Random traces on random nested compositions, with and without tiers, some limits lowered.
pub fn law_08_compositions_equal_the_reference<H: Harness>() {
    let options = |seed| TraceOptions {
        length: 150,
        steps_back: H::ATOMIC_SETS,
        // Where each limit is reserved by itself, a reservation that is given back has been written
        // by the present parameters.
        mixes_parameters: H::ATOMIC_SETS,
        has_exceptions: H::ATOMIC_SETS && seed % 2 == 1,
        ..TraceOptions::new(seed)
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
        law_08_trace_equals_the_reference::<H>(&trees, &options(seed));
    }
    let members = samples().into_iter().cycle().take(15).enumerate();
    let many = members.map(|(index, sample)| policy(&format!("of_{index}"), &sample));
    let many = PolicyTree::All(many.map(Into::into).collect());
    let few_steps = TraceOptions {
        length: 40,
        ..options(60)
    };
    law_08_trace_equals_the_reference::<H>(&[many], &few_steps);
}

/// Random traces on sets that hold a policy several times. Some requests name one key of it twice,
/// which is an error.
pub fn law_08_several_keys_of_a_policy_equal_the_reference<H: Harness>() {
    for (index, sample) in samples_for::<H>().iter().enumerate() {
        let repeated = PolicyTree::from(tiered("policy_1", sample));
        let other = policy("policy_2", &lowered(sample)).into();
        let two = vec![repeated.clone(), repeated.clone()];
        let two = match index % 3 {
            0 => PolicyTree::All(two),
            1 => PolicyTree::Any(two, AnyCharge::First),
            _ => PolicyTree::Any(two, AnyCharge::EveryAdmitting),
        };
        let options = TraceOptions {
            steps_back: H::ATOMIC_SETS,
            mixes_parameters: H::ATOMIC_SETS,
            has_exceptions: H::ATOMIC_SETS,
            ..TraceOptions::new(70 + index as u64)
        };
        let tree = PolicyTree::All(vec![repeated, other, two]);
        law_08_trace_equals_the_reference::<H>(&[tree], &options);
    }
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
        let samples = samples();
        let sample = &samples[random.below(samples.len() as u64) as usize];
        let name = format!("policy_{names}");
        *names += 1;
        if random.chance(25) {
            let tree: PolicyTree = tiered(&name, sample).into();
            return [tree.clone(), tree];
        }
        let other = if random.chance(50) {
            lowered(sample)
        } else {
            *sample
        };
        return [*sample, other].map(|limit| policy(&name, &limit).into());
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

pub(super) fn policy(name: &str, algorithm: &Algorithm) -> Policy {
    Policy::new(name, *algorithm).expect("the kit's names are valid")
}

/// The sample in three tiers, the last one of another algorithm. All recover at about the sample's
/// pace.
fn tiered(name: &str, sample: &Algorithm) -> Policy {
    let rate = sample.rate();
    let capacity = sample.capacity();
    let other = match sample.name() {
        "gcra" => SlidingLog::new(Rate::new(2 * capacity, rate.period())).build(),
        _ => Gcra::new(Rate::new(3 * rate.count(), rate.period()))
            .burst(2 * capacity)
            .build(),
    };
    let tiers = [
        ("low", lowered(sample)),
        ("high", *sample),
        ("other", other.expect("a valid rate")),
    ];
    Policy::tiered(name, tiers).expect("three tiers of one pace")
}
