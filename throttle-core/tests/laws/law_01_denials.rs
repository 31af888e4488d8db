//! Law 1: what a peek says, and that one algorithm decides as a set of one. That a refusal and a peek
//! leave the state as it was is checked with laws 2 to 4.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Gcra, Key, Policy, PolicySet, Rate, Timestamp};

use crate::support::machines::{Machine, Pure, calls};
use crate::support::reference::reported;
use crate::support::spec::Tree;
use crate::support::strategies::{for_every_kind, for_every_tree};
use crate::support::trace::{Case, cases, clamp};

/// A peek with its cost leaves every state as it was, and is decided as the charged call that
/// follows it: what is left is what that call leaves and takes.
fn peeks_answer_as_charges(case: &Case, mut machine: Pure) -> TestCaseResult {
    let (step, mut t) = (case.tree.step(), case.start);
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
        let costs = raw.costs(&machine.capacities());
        let asked = calls(&Key::from("trace"), &costs);
        let peeks: Vec<_> = asked.iter().cloned().map(Call::peeking).collect();
        let peek = machine.decide_calls(t, &peeks);
        prop_assert_eq!(&machine.decide_calls(t, &peeks), &peek, "a second peek");
        prop_assert!(Receipt::of(&peek, &peeks).is_none());
        let charged = machine.decide_calls(t, &asked);
        let context = format!("{costs:?} at {t}: {peek:?}, then {charged:?}");
        prop_assert_eq!(peek.is_admitted(), charged.is_admitted(), "{}", context);
        prop_assert_eq!(peek.retry_after(), charged.retry_after(), "{}", context);
        prop_assert_eq!(peek.delay(), charged.delay(), "{}", context);
        if !peek.is_admitted() {
            prop_assert_eq!(&peek, &charged, "{}", context);
        }
        for (one, other) in peek.statuses().iter().zip(charged.statuses()) {
            prop_assert_eq!(one.charged(), 0, "{}", context);
            prop_assert_eq!(one.is_violated(), other.is_violated(), "{}", context);
            prop_assert_eq!(one.retry_after(), other.retry_after(), "{}", context);
            let left = other.remaining() + other.charged();
            prop_assert!(
                one.remaining() == left || other.charged() > 0,
                "{}",
                context
            );
            prop_assert!(one.remaining() >= left, "{}", context);
        }
    }
    Ok(())
}

#[test]
fn law_01_02_peek_waits_as_a_charge_and_leaves_the_state_equal() {
    for_every_tree(
        |trees| cases(trees, 50),
        |case| peeks_answer_as_charges(case, Pure::new(&case.tree)),
    );
}

/// A refusal and a look do not even write which parameters asked.
#[test]
fn law_01_state_without_a_writer_gets_one_by_a_charge_only() {
    let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_day(9))).unwrap()).unwrap();
    let unnamed = set.policies()[0].algorithm().fresh();
    let mut states = [unnamed.clone()];
    for (cost, is_same) in [(0, true), (10, true), (1, false)] {
        let _ = set.decide(
            &mut states,
            Timestamp::EPOCH,
            &[Call::from(Key::from("ada")).costing(cost)],
        );
        assert_eq!(states[0] == unnamed, is_same, "{cost} units");
    }
}

/// The entry point for one algorithm, `(state, now, cost) -> (state, verdict)`, decides as a set of
/// one does.
fn one_algorithm_is_a_set_of_one(case: &Case) -> TestCaseResult {
    let mut machine = Pure::new(&case.tree);
    let algorithm = *machine.set.policies()[0].algorithm();
    let (step, mut t, mut state) = (case.tree.step(), case.start, algorithm.fresh());
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
        let cost = raw.cost(algorithm.capacity());
        let before = state.clone();
        let (after, verdict) = algorithm.decide(state, Timestamp::from_micros(t), cost);
        prop_assert!(
            verdict.is_admitted() && cost > 0 || after == before,
            "{} at {} left a trace",
            cost,
            t
        );
        let reported = reported(&machine.take(t, cost).0);
        // A set names the parameters by which it has charged.
        let [one, of_set] =
            [&after, &machine.states[0]].map(|state| state.clone().written_under(&algorithm));
        prop_assert_eq!(one, of_set);
        prop_assert_eq!(
            (verdict.is_admitted(), verdict.remaining()),
            (reported.allowed, reported.remaining)
        );
        prop_assert_eq!(
            (verdict.retry_after_micros(), verdict.reset_after_micros()),
            (reported.retry, reported.reset)
        );
        prop_assert_eq!(verdict.delay_micros(), reported.delay);
        state = after;
    }
    Ok(())
}

#[test]
fn law_01_single_transitions_leave_the_state_equal_too() {
    for_every_kind(
        |specs| cases(specs.prop_map(Tree::Leaf).boxed(), 50),
        one_algorithm_is_a_set_of_one,
    );
}
