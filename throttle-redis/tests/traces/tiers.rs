//! Tiers that change, on a real server: at least two thousand lives of keys, of each kind and of compositions.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Carry, Decision, Key, PolicySet};

use crate::random::starts;
use crate::remote::{Bench, Remote, is_taken};
use crate::support::lives::{Op, begins, hostile, live, settling};
use crate::support::machines::{InMemory, Machine, Pure, call};
use crate::support::plans::{KINDS, Plan, alone, beside};
use crate::support::spec::{Cadence, DAY, SECOND, Spec, TODAY, Tree};

/// Lives of each of the eight kinds.
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

fn lives(remote: &Remote, keys: &Cell<u64>, what: &str, trees: BoxedStrategy<Tree<Plan>>, cases: u32) {
    let is_taken = |tree: &Tree<Plan>| tree.leaves().iter().all(|plan| plan.tiers.iter().all(is_taken));
    let trees = trees.prop_filter("too large for Redis", is_taken);
    let ops = |hostile_clock: bool| if hostile_clock { hostile(28).boxed() } else { settling(28).boxed() };
    let lives = (trees, begins(starts()), prop::bool::weighted(0.25).prop_flat_map(ops));
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
        panic!("{what}: {failure}");
    }
}

#[test]
fn law_05_06_10_traces_of_changing_tiers() {
    let (remote, keys) = (Remote::new(), Cell::new(0));
    for kind in KINDS {
        lives(&remote, &keys, &format!("{kind:?}"), alone(kind), OF_A_KIND);
    }
    assert!(keys.get() >= u64::from(OF_A_KIND) * KINDS.len() as u64);
}

#[test]
fn law_05_06_10_traces_of_compositions_of_changing_tiers() {
    let (remote, keys) = (Remote::new(), Cell::new(0));
    lives(&remote, &keys, "compositions", beside(), OF_COMPOSITIONS);
    assert!(keys.get() >= u64::from(OF_COMPOSITIONS));
}

/// A charge whose window is over is not settled in another tier, in any of the three.
#[test]
fn law_10_a_charge_of_a_window_that_is_over_is_not_settled_in_another_tier() {
    let (short, long) = (10 * SECOND, 1_000 * SECOND);
    for (number, tiers) in (0..).zip([
        [Spec::Fixed { limit: 5, window: short, offset: 0 }, Spec::Fixed { limit: 10, window: long, offset: 0 }],
        [Spec::Log { limit: 5, window: short }, Spec::Log { limit: 10, window: long }],
        [
            Spec::Buckets { limit: 5, window: short, buckets: 1 },
            Spec::Buckets { limit: 10, window: long, buckets: 100 },
        ],
        [
            Spec::Calendar { limit: 5, cadence: Cadence::Day, offset_minutes: 0 },
            Spec::Calendar { limit: 10, cadence: Cadence::Month, offset_minutes: 0 },
        ],
    ]) {
        let (remote, key) = (Remote::new(), Key::from(number as u64));
        let tree = Tree::Leaf(Plan { tiers: tiers.to_vec(), carry: Some(Carry::Keep) });
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

/// A debit to a charge of a sliding window of which nothing is left has no effect, because the key may have been
/// forgotten meanwhile.
#[test]
fn law_09_a_charge_of_which_nothing_is_left_is_not_debited() {
    let (remote, key) = (Remote::new(), Key::from("key"));
    let tiers = [5, 10].map(|limit| Spec::Buckets { limit, window: 10 * SECOND, buckets: 10 });
    let tree = Tree::Leaf(Plan { tiers: tiers.to_vec(), carry: Some(Carry::Reset) });
    for forgotten in [false, true] {
        for mut machine in machines(&remote, &tree) {
            let asked = |tier, cost| [call(&key, Some(cost)).in_tier(tier)];
            let [first, _, last] = [(0, 2), (1, 1), (0, 1)].map(|(tier, cost)| {
                Receipt::of(&machine.decide_calls(TODAY, &asked(tier, cost)), &asked(tier, cost)).unwrap()
            });
            machine.settle(TODAY, last.actual(0));
            if forgotten {
                machine.forget(TODAY, 0, &key);
            }
            machine.settle(TODAY, first.actual(4));
            assert_eq!(machine.decide_calls(TODAY, &asked(0, 0)).remaining(), 5, "forgotten: {forgotten}");
        }
    }
}

/// The algorithms on states in hand, the memory backend, and the server.
fn machines<'a>(remote: &'a Remote, tree: &Tree<Plan>) -> [Box<dyn Machine + 'a>; 3] {
    [Box::new(Pure::of(tree.set())), Box::new(InMemory::of(tree.set(), 100)), Box::new(remote.bench(tree.set()))]
}

/// 2026-10-01.
const FIRST_OF_OCTOBER: i64 = 20_727 * DAY as i64;
