//! Law 8, one answer: the algorithms, the memory backend and the reference agree in every field of
//! every decision.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::Receipt;

use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::reference::{Paid, Reference, reported};
use crate::support::spec::{Spec, TODAY, Tree};
use crate::support::strategies::for_every_tree;
use crate::support::trace::{Case, Raw, cases, clamp};

/// A charge, as each of the three records it.
struct Open {
    pure: Receipt,
    memory: Receipt,
    reference: Vec<(usize, Paid)>,
}

struct Walk {
    pure: Pure,
    memory: InMemory,
    reference: Reference,
    open: Vec<Open>,
    charged: HashSet<usize>,
    has_forgotten: bool,
}

impl Walk {
    fn new(tree: &Tree) -> Self {
        Self {
            pure: Pure::new(tree),
            memory: InMemory::new(tree),
            reference: Reference::new(tree),
            open: Vec::new(),
            charged: HashSet::new(),
            has_forgotten: false,
        }
    }

    /// Notes whether the backend may have dropped a key, which it does when it adds a key. From
    /// then on it treats a clock that steps back with more caution than the bare algorithms do,
    /// because it cannot know what was dropped.
    fn note_new_keys(&mut self, costs: &[Option<u64>]) {
        let mut asked = costs
            .iter()
            .enumerate()
            .filter(|(_, cost)| cost.is_some_and(|cost| cost > 0));
        self.has_forgotten |=
            !self.charged.is_empty() && asked.any(|(leaf, _)| !self.charged.contains(&leaf));
    }

    fn decide(&mut self, t: i64, raw: &Raw) -> TestCaseResult {
        let costs = raw.costs(&self.pure.capacities());
        self.note_new_keys(&costs);
        let (pure, pure_charge) = self.pure.decide(t, &costs);
        let (memory, memory_charge) = self.memory.decide(t, &costs);
        let (expected, reference) = self.reference.decide(t, &costs);
        prop_assert_eq!(
            &reported(&pure),
            &expected,
            "the algorithms at {} on costs {:?}",
            t,
            costs
        );
        prop_assert_eq!(&memory, &pure, "memory at {} on costs {:?}", t, costs);
        if let (Some(pure), Some(memory)) = (pure_charge, memory_charge) {
            self.charged.extend(reference.iter().map(|(leaf, _)| *leaf));
            self.open.push(Open {
                pure,
                memory,
                reference,
            });
        }
        Ok(())
    }

    /// Settles some earlier charge down or up.
    fn settle(&mut self, t: i64, raw: &Raw) -> TestCaseResult {
        if self.open.is_empty() {
            return Ok(());
        }
        let Open {
            mut pure,
            mut memory,
            reference,
        } = self
            .open
            .swap_remove(usize::from(raw.pick) % self.open.len());
        for (leaf, receipt) in reference {
            let taken = receipt.cost as u64;
            let actual = [
                0,
                0,
                taken,
                taken / 2,
                taken + 1,
                raw.cost(taken).min(1 << 50),
            ][raw.members as usize % 6];
            (pure, memory) = (pure.actual_of(leaf, actual), memory.actual_of(leaf, actual));
            self.reference.settle(t, leaf, receipt, actual);
        }
        self.pure.settle(t, pure);
        self.memory.settle(t, memory);
        self.decide(
            t,
            &Raw {
                cost: (5, 0),
                members: u32::MAX,
                ..*raw
            },
        )
    }
}

fn walk(case: &Case, hostile: bool, settles: bool) -> TestCaseResult {
    let mut walk = Walk::new(&case.tree);
    let (step, mut t) = (case.tree.step(), case.start);
    for raw in &case.raws {
        let may_step_back = hostile && !walk.has_forgotten;
        t = clamp(t.saturating_add(raw.micros(step, may_step_back)));
        if settles && raw.what >= 6 {
            walk.settle(t, raw)?;
        } else {
            walk.decide(t, raw)?;
        }
    }
    Ok(())
}

#[test]
fn law_08_one_answer_on_hostile_clocks() {
    for_every_tree(|trees| cases(trees, 60), |case| walk(case, true, false));
}

#[test]
fn law_08_one_answer_with_settles() {
    for_every_tree(|trees| cases(trees, 60), |case| walk(case, false, true));
}

/// Two algorithms record less than the model when charges are settled on a clock that steps back:
/// the interval bucket stores no time of its last request beside its anchor, and the log has one
/// entry for all requests of an instant.
fn remembers_all(tree: &Tree) -> bool {
    !tree
        .leaves()
        .iter()
        .any(|spec| matches!(spec, Spec::Interval { .. } | Spec::Log { .. }))
}

#[test]
fn law_08_one_answer_with_settles_on_hostile_clocks() {
    for_every_tree(
        |trees| cases(trees, 60),
        |case| walk(case, remembers_all(&case.tree), true),
    );
}

/// The clock of a shaper never steps back, and a debit of which nothing is left to take moves it
/// like any other. A slot that is given back after that is free from the debit on.
#[test]
fn law_08_a_debit_with_nothing_left_moves_the_clock_of_a_shaper() {
    const SECOND: i64 = 1_000_000;
    let tree = Tree::Leaf(Spec::Shaper {
        limit: 1,
        period: 60 * SECOND as u64,
        max_wait: 60 * SECOND as u64,
    });
    let mut reference = Reference::new(&tree);
    let mut take = |t, cost| reference.decide(t, &[Some(cost)]).1.remove(0).1;
    let (earlier, later) = (take(TODAY - 60 * SECOND, 1), take(TODAY, 2));
    reference.settle(TODAY + 10 * SECOND, 0, earlier, 5);
    reference.settle(TODAY, 0, later, 0);
    let expected = reference.decide(TODAY, &[Some(1)]).0;
    for mut machine in [
        Box::new(Pure::new(&tree)) as Box<dyn Machine>,
        Box::new(InMemory::new(&tree)),
    ] {
        let earlier = machine.take(TODAY - 60 * SECOND, 1).1.expect("admitted");
        let later = machine.take(TODAY, 2).1.expect("admitted");
        machine.settle(TODAY + 10 * SECOND, earlier.actual(5));
        machine.settle(TODAY, later.actual(0));
        let next = machine.take(TODAY, 1).0;
        assert_eq!((next.is_admitted(), next.delay().as_secs()), (true, 10));
        assert_eq!(reported(&next), expected);
    }
}

/// On a clock that stepped back, a pace can be further ahead than any wait that the shaper admits.
/// A debit of which nothing is left to take leaves it there.
#[test]
fn law_08_a_debit_with_nothing_left_brings_no_pace_nearer() {
    const SECOND: i64 = 1_000_000;
    let tree = Tree::Leaf(Spec::Shaper {
        limit: 1,
        period: 60 * SECOND as u64,
        max_wait: 60 * SECOND as u64,
    });
    let mut reference = Reference::new(&tree);
    let mut take = || reference.decide(TODAY, &[Some(1)]).1.remove(0).1;
    let (first, second) = (take(), take());
    reference.settle(TODAY + 1_000 * SECOND, 0, second, 0);
    reference.settle(TODAY, 0, first, 2);
    let expected = reference.decide(TODAY, &[Some(0)]).0;
    for mut machine in [
        Box::new(Pure::new(&tree)) as Box<dyn Machine>,
        Box::new(InMemory::new(&tree)),
    ] {
        let first = machine.take(TODAY, 1).1.expect("admitted");
        let second = machine.take(TODAY, 1).1.expect("admitted");
        machine.settle(TODAY + 1_000 * SECOND, second.actual(0));
        machine.settle(TODAY, first.actual(2));
        let next = machine.take(TODAY, 0).0;
        assert_eq!(next.reset_after().as_secs(), 1_000);
        assert_eq!(reported(&next), expected);
    }
}
