//! Parameters that travel with the call, on a real server: at least two thousand lives of keys that
//! change between tiers and parameters of their own, of each kind and of compositions.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Key, PolicySet};

use crate::random::starts;
use crate::remote::{Bench, Remote, is_taken};
use crate::support::lives::{Op, begins, hostile, live, settling};
use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::plans::{Plan, alone, composed, mixed, tiered};
use crate::support::spec::{Kind, Tree};

/// Lives of each kind.
const OF_A_KIND: u32 = 250;
const OF_COMPOSITIONS: u32 = 500;

impl Machine for Bench<'_> {
    fn set(&self) -> &PolicySet {
        Bench::set(self)
    }

    fn decide_calls(&mut self, t: i64, calls: &[Call]) -> Decision {
        Bench::decide(self, t, calls)
    }

    fn settle(&mut self, t: i64, charge: Receipt) {
        Bench::settle(self, t, charge);
    }

    fn forget(&mut self, _: i64, policy: usize, key: &Key) {
        Bench::forget(self, policy, key);
    }
}

fn lives(
    remote: &Remote,
    keys: &Cell<u64>,
    kinds: &[Kind],
    trees: BoxedStrategy<Tree<Plan>>,
    cases: u32,
) {
    let is_taken = |tree: &Tree<Plan>| {
        tree.leaves()
            .iter()
            .all(|plan| plan.tiers.iter().chain(&plan.own).all(is_taken))
    };
    let trees = trees.prop_filter("too large for Redis", is_taken);
    let ops = |hostile_clock: bool| {
        if hostile_clock {
            hostile(28).boxed()
        } else {
            settling(28).boxed()
        }
    };
    // What a shaper without delays gives back depends on the past, which a store that has forgotten
    // the key does not know.
    let hostile_clock = prop::bool::weighted(if kinds.contains(&Kind::Undelayed) {
        1.0
    } else {
        0.25
    });
    let lives = (trees, begins(starts()), hostile_clock.prop_flat_map(ops));
    let cases = Config::default().cases.max(cases);
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let ran =
        TestRunner::new(config).run(&lives, |(tree, start, ops): (Tree<Plan>, i64, Vec<Op>)| {
            keys.set(keys.get() + 1);
            let machines: Vec<Box<dyn Machine + '_>> = vec![
                Box::new(Pure::of(tree.set())),
                Box::new(InMemory::of(tree.set(), 100)),
                Box::new(remote.bench(tree.set())),
            ];
            live(&tree, Key::from(keys.get()), machines, start, &ops)
        });
    if let Err(failure) = ran {
        panic!("{kinds:?}: {failure}");
    }
}

#[test]
fn law_08_traces_of_changing_parameters_of_one_kind() {
    let (remote, keys) = (Remote::new(), Cell::new(0));
    for kind in Kind::ALL {
        lives(&remote, &keys, &[kind], alone(tiered(kind)), OF_A_KIND);
    }
    assert!(keys.get() >= u64::from(OF_A_KIND) * Kind::ALL.len() as u64);
}

#[test]
fn law_08_traces_of_changing_parameters_of_several_kinds() {
    let (remote, keys) = (Remote::new(), Cell::new(0));
    lives(
        &remote,
        &keys,
        &Kind::ALL,
        alone(mixed(&Kind::ALL)),
        OF_A_KIND,
    );
    let settled = Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::Undelayed)
        .collect::<Vec<_>>();
    lives(
        &remote,
        &keys,
        &settled,
        composed(&settled),
        OF_COMPOSITIONS,
    );
    assert!(keys.get() >= u64::from(OF_A_KIND + OF_COMPOSITIONS));
}
