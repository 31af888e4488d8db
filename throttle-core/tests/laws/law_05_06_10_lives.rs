//! Laws 5, 6 and 10, and every field of every decision: requests in tiers and under own parameters
//! that change, settlements down and up, and forgetting in any order, against the reference in
//! exact fractions. A composition is charged as a whole or not at all, no more is admitted than
//! remains, and every charge is settled once.

use std::time::Duration;

use proptest::prelude::*;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Decision, FixedWindow, Key, Policy, PolicySet, Rate, Timestamp};

use crate::support::lives::{Op, begins, hostile, live, settling};
use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::plans::{Plan, alone, composed, mixed, tiered};
use crate::support::spec::{Kind, TODAY, Tree};
use crate::support::strategies::{any_spec, run_times};
use crate::support::trace::starts;

/// Histories of each kind of algorithm, and of several kinds.
const OF_A_KIND: u32 = 1_600;
const OF_SEVERAL: u32 = 2_500;

type Machines = Vec<Box<dyn Machine>>;

fn lives(
    what: &str,
    times: u32,
    trees: BoxedStrategy<Tree<Plan>>,
    ops: impl Strategy<Value = Vec<Op>>,
    machines: fn(&Tree<Plan>, i64) -> Machines,
) {
    run_times(
        times,
        what,
        &(trees, begins(starts()), ops),
        |(tree, start, ops)| live(tree, Key::from("key"), machines(tree, *start), *start, ops),
    );
}

/// A state in hand, and a store of one shard with room for all keys, so that new keys sweep the
/// idle ones.
fn roomy(tree: &Tree<Plan>, _: i64) -> Machines {
    vec![
        Box::new(Pure::of(tree.set())),
        Box::new(InMemory::of(tree.set(), 100)),
    ]
}

/// A state in hand, and a nearly full store, which looks for idle keys with every new one.
fn nearly_full(tree: &Tree<Plan>, start: i64) -> Machines {
    vec![
        Box::new(Pure::of(tree.set())),
        Box::new(Filled::new(tree.set(), start, 97, 128)),
    ]
}

/// A store in which the key shares an overflow bucket from its first charge on.
fn full(tree: &Tree<Plan>, start: i64) -> Machines {
    vec![Box::new(Filled::new(tree.set(), start, 1, 1))]
}

/// A store that keys of another policy fill for the whole life.
struct Filled(InMemory);

impl Filled {
    fn new(set: PolicySet, start: i64, fillers: u64, max_keys: usize) -> Self {
        let memory = InMemory::of(set, max_keys);
        memory.clock.set(Timestamp::from_micros(start));
        let longest = FixedWindow::new(Rate::new(9, Duration::from_micros((1 << 53) - 1)));
        let filler = PolicySet::new(Policy::new("filler", longest).unwrap()).unwrap();
        let filler = memory.backend.prepare(filler).unwrap();
        for key in 0..fillers {
            assert!(
                memory
                    .backend
                    .decide_now(&filler, &[Call::from(Key::from(key))])
                    .is_admitted()
            );
        }
        Self(memory)
    }
}

impl Machine for Filled {
    fn set(&self) -> &PolicySet {
        self.0.set()
    }

    fn decide_calls(&mut self, t: i64, calls: &[Call]) -> Decision {
        self.0.decide_calls(t, calls)
    }

    fn settle(&mut self, t: i64, charge: Receipt) {
        self.0.settle(t, charge);
    }

    /// In a full store another key would share the bucket.
    fn forget(&mut self, t: i64, policy: usize, key: &Key) {
        if self.0.backend.keys() > 1 {
            self.0.forget(t, policy, key);
        }
    }
}

/// All but the shaper that refuses what it would delay: what it gives back depends on whether the
/// schedule was free in between, which a store that has forgotten the key does not know.
fn settled() -> impl Iterator<Item = Kind> {
    Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::Undelayed)
}

#[test]
fn law_05_06_10_lives_under_parameters_of_one_kind() {
    for kind in settled() {
        lives(
            &format!("{kind:?}"),
            OF_A_KIND,
            alone(tiered(kind)),
            settling(60),
            nearly_full,
        );
    }
}

#[test]
fn law_05_06_10_lives_under_parameters_of_several_kinds() {
    let kinds: Vec<Kind> = settled().collect();
    lives(
        "several kinds",
        2 * OF_SEVERAL,
        alone(mixed(&kinds)),
        settling(60),
        nearly_full,
    );
    lives(
        "compositions",
        OF_SEVERAL,
        composed(&kinds),
        settling(60),
        roomy,
    );
}

#[test]
fn law_08_lives_under_changing_parameters_on_hostile_clocks() {
    for kind in Kind::ALL {
        lives(
            &format!("{kind:?}"),
            OF_A_KIND,
            alone(tiered(kind)),
            hostile(60),
            roomy,
        );
    }
    lives(
        "several kinds",
        2 * OF_SEVERAL,
        alone(mixed(&Kind::ALL)),
        hostile(60),
        roomy,
    );
    lives(
        "compositions",
        OF_SEVERAL,
        composed(&Kind::ALL),
        hostile(60),
        roomy,
    );
}

/// Without a change of parameters, an overflow bucket that one key uses is the key's own.
#[test]
fn law_08_lives_in_a_full_store_equal_the_reference() {
    for kind in settled() {
        let trees = any_spec(kind)
            .prop_map(|spec| Tree::Leaf(Plan::plain(spec)))
            .boxed();
        run_times(
            OF_A_KIND,
            &format!("{kind:?}"),
            &(trees, settling(60)),
            |(tree, ops)| live(tree, Key::from("key"), full(tree, TODAY), TODAY, ops),
        );
    }
}
