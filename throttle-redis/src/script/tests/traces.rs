//! Law 8, one answer: the conformance kit's traces through the scripts, on its own limits and on
//! random ones. The scripts answer and write what the core's algorithms do, bit for bit.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use throttle_core::conformance::{self as kit, TraceOptions};
use throttle_core::{Algorithm, Policy, PolicyTree, Timestamp};

use super::embedded::InLua;
use super::random::{KINDS, algorithm, alls, any_algorithm, starts, tree};

/// Sets with the same policies by name.
type Sets = Vec<PolicyTree>;

/// Replays a trace of each of a part of proptest's cases, in a store in which keys stay and in one
/// in which they expire.
fn check(what: &str, part: u32, sets: &BoxedStrategy<Sets>) {
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        cases: (Config::default().cases / part).max(1),
        ..Config::default()
    });
    let traced = runner.run(&(sets, starts(), any::<u64>()), |(sets, start, seed)| {
        let mut options = TraceOptions::new(seed);
        options.length = 80;
        options.start = Timestamp::from_micros(start);
        if seed.is_multiple_of(4) {
            // What has expired is as unused only while the clock does not step back.
            options.steps_back = false;
            kit::law_08_trace_equals_the_reference::<InLua<true>>(&sets, &options);
        } else {
            kit::law_08_trace_equals_the_reference::<InLua<false>>(&sets, &options);
        }
        Ok(())
    });
    if let Err(error) = traced {
        panic!("{what}: {error}");
    }
}

fn plain(algorithm: Algorithm) -> PolicyTree {
    Policy::new("p", algorithm).unwrap().into()
}

/// A policy with those of these tiers that may be in one policy.
fn tiered(name: &str, tiers: &[Algorithm]) -> Policy {
    let mut named = Vec::new();
    for tier in tiers {
        named.push((named.len().to_string(), *tier));
        if Policy::tiered(name, named.clone()).is_err() {
            named.pop();
        }
    }
    Policy::tiered(name, named).unwrap()
}

#[test]
fn law_08_traces_of_the_kits_limits_in_lua() {
    kit::law_08_traces_equal_the_reference::<InLua<false>>();
    kit::law_08_parameters_equal_the_reference::<InLua<false>>();
    kit::law_08_compositions_equal_the_reference::<InLua<false>>();
    kit::law_09_traces_of_many_keys_equal_the_reference::<InLua<true>>();
}

#[test]
fn law_08_traces_of_each_algorithm_in_lua() {
    for kind in 0..KINDS {
        let limits = (algorithm(kind), algorithm(kind), any_algorithm());
        let sets = limits.prop_map(|(one, two, other)| [one, two, other].map(plain).to_vec());
        check(&format!("algorithm {kind}"), 8, &sets.boxed());
    }
}

#[test]
fn law_08_traces_of_tiers_in_lua() {
    let tiers = || prop::collection::vec(any_algorithm(), 1..4);
    let second = prop::option::of(any_algorithm());
    let sets = (tiers(), tiers(), second).prop_map(|(before, after, second)| {
        let set = |tiers: Vec<Algorithm>| {
            let first = tiered("p", &tiers).into();
            let second = second.map(|second| Policy::new("q", second).unwrap().into());
            PolicyTree::All(std::iter::once(first).chain(second).collect())
        };
        vec![set(before), set(after)]
    });
    check("tiers", 1, &sets.boxed());
}

#[test]
fn law_08_traces_of_compositions_in_lua() {
    for (what, trees) in [("trees", tree()), ("plain alls", alls())] {
        let others = prop::collection::vec(any_algorithm(), 1..4);
        let sets = (trees, others).prop_map(|(tree, others)| {
            let mut others = others.into_iter().cycle();
            vec![tree.named(), tree.changed(&mut others).named()]
        });
        check(what, 2, &sets.boxed());
    }
}
