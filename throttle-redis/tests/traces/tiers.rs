//! Parameters that travel with the call, on a real server: at least two thousand lives of keys that change between tiers
//! and parameters of their own, of each kind and of compositions.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Key, PolicySet};

use crate::random::starts;
use crate::remote::{Bench, Remote, is_taken};
use crate::support::lives::{Op, begins, hostile, live, settling};
use crate::support::machines::{InMemory, Machine, Pure, call};
use crate::support::plans::{Plan, alone, composed, mixed, tiered};
use crate::support::spec::{Anchor, Cadence, DAY, Kind, SECOND, Spec, TODAY, Tree};

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

fn lives(remote: &Remote, keys: &Cell<u64>, kinds: &[Kind], trees: BoxedStrategy<Tree<Plan>>, cases: u32) {
    let is_taken =
        |tree: &Tree<Plan>| tree.leaves().iter().all(|plan| plan.tiers.iter().chain(&plan.own).all(is_taken));
    let trees = trees.prop_filter("too large for Redis", is_taken);
    let ops = |hostile_clock: bool| if hostile_clock { hostile(28).boxed() } else { settling(28).boxed() };
    // What a shaper without delays gives back depends on the past, which a store that has forgotten the key does not
    // know.
    let hostile_clock = prop::bool::weighted(if kinds.contains(&Kind::Undelayed) { 1.0 } else { 0.25 });
    let lives = (trees, begins(starts()), hostile_clock.prop_flat_map(ops));
    let cases = Config::default().cases.max(cases);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let ran = TestRunner::new(config).run(&lives, |(tree, start, ops): (Tree<Plan>, i64, Vec<Op>)| {
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
    lives(&remote, &keys, &Kind::ALL, alone(mixed(&Kind::ALL)), OF_A_KIND);
    let settled = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Undelayed).collect::<Vec<_>>();
    lives(&remote, &keys, &settled, composed(&settled), OF_COMPOSITIONS);
    assert!(keys.get() >= u64::from(OF_A_KIND + OF_COMPOSITIONS));
}

/// A charge whose window is over is not settled in another tier, in any of the three.
#[test]
fn law_10_charge_of_a_window_that_is_over_is_settled_nowhere() {
    let (short, long) = (10 * SECOND, 1_000 * SECOND);
    for (number, tiers) in (0..).zip([
        [Spec::Fixed { limit: 5, window: short, offset: 0 }, Spec::Fixed { limit: 10, window: long, offset: 0 }],
        [Spec::Log { limit: 5, window: short }, Spec::Log { limit: 10, window: long }],
        [
            Spec::Buckets { limit: 5, window: short, buckets: 1 },
            Spec::Buckets { limit: 10, window: long, buckets: 100 },
        ],
        [
            Spec::Calendar { limit: 5, cadence: Cadence::Day, offset_minutes: 0, anchor: Anchor::default() },
            Spec::Calendar { limit: 10, cadence: Cadence::Month, offset_minutes: 0, anchor: Anchor::default() },
        ],
    ]) {
        let (remote, key) = (Remote::new(), Key::from(number as u64));
        let tree = Tree::Leaf(Plan::of(tiers.to_vec()));
        let (first, later) = match tiers[0] {
            Spec::Calendar { .. } => (FIRST_OF_OCTOBER, FIRST_OF_OCTOBER + DAY as i64),
            _ => (TODAY, TODAY + 2 * short as i64),
        };
        for mut machine in machines(&remote, &tree) {
            let asked = |tier, cost| [call(&key, Some(cost)).in_tier(tier)];
            let receipts =
                [3, 2].map(|cost| Receipt::of(&machine.decide_calls(first, &asked(0, cost)), &asked(0, cost)).unwrap());
            assert_eq!(machine.decide_calls(later, &asked(1, 6)).remaining(), 4, "{tiers:?}: a new window");
            for (receipt, actual) in receipts.into_iter().zip([0, 9]) {
                machine.settle(later, receipt.actual(actual));
                assert_eq!(machine.decide_calls(later, &asked(1, 0)).remaining(), 4, "{tiers:?} settled with {actual}");
            }
        }
    }
}

/// The algorithms on states in hand, the memory backend, and the server.
fn machines<'a>(remote: &'a Remote, tree: &Tree<Plan>) -> [Box<dyn Machine + 'a>; 3] {
    [Box::new(Pure::of(tree.set())), Box::new(InMemory::of(tree.set(), 100)), Box::new(remote.bench(tree.set()))]
}

/// 2026-10-01.
const FIRST_OF_OCTOBER: i64 = 20_727 * DAY as i64;
