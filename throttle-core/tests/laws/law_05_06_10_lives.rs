//! Laws 5, 6 and 10, and every field of every decision: requests in tiers that change, settlements down and up, and
//! forgetting in any order, against the reference in exact fractions. A composition is charged as a whole or not at
//! all, no more is admitted than remains, and every charge is settled once, where it was made.

use proptest::prelude::*;
use throttle_core::Key;

use crate::support::lives::{Op, begins, hostile, live, settling};
use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::plans::{KINDS, Plan, alone, beside};
use crate::support::spec::Tree;
use crate::support::strategies::run;
use crate::support::trace::starts;

/// A store of one shard, so that new keys sweep the idle ones.
const KEYS: usize = 100;

fn lives(what: &str, trees: BoxedStrategy<Tree<Plan>>, ops: impl Strategy<Value = Vec<Op>>) {
    run(what, &(trees, begins(starts()), ops), |(tree, start, ops)| {
        let machines: Vec<Box<dyn Machine>> =
            vec![Box::new(Pure::of(tree.set())), Box::new(InMemory::of(tree.set(), KEYS))];
        live(tree, Key::from("key"), machines, *start, ops)
    });
}

#[test]
fn law_05_06_10_lives_in_changing_tiers() {
    for kind in KINDS {
        lives(&format!("{kind:?}"), alone(kind), settling(60));
    }
}

#[test]
fn law_05_06_10_lives_of_compositions_in_changing_tiers() {
    lives("compositions", beside(), settling(60));
}

#[test]
fn law_08_lives_in_changing_tiers_on_hostile_clocks() {
    for kind in KINDS {
        lives(&format!("{kind:?}"), alone(kind), hostile(60));
    }
    lives("compositions", beside(), hostile(60));
}
