//! Law 1: a denied request and a peek leave the state as it was.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Gcra, Key, Policy, PolicySet, Rate, Timestamp};

use crate::support::machines::{InMemory, Machine, Pure, calls};
use crate::support::reference::reported;
use crate::support::spec::Tree;
use crate::support::strategies::{for_every_kind, for_every_tree};
use crate::support::trace::{Case, cases, clamp};

/// States are equal before and after a denial or a peek, and no member was charged.
fn states_stay(case: &Case) -> TestCaseResult {
    let mut machine = Pure::new(&case.tree);
    let (step, mut t) = (case.tree.step(), case.start);
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
        let before = machine.states.clone();
        let costs = raw.costs(&machine.capacities());
        let (decision, charge) = machine.decide(t, &costs);
        if !decision.is_admitted() || costs.iter().all(|cost| matches!(cost, None | Some(0))) {
            prop_assert_eq!(
                &machine.states,
                &before,
                "at {}, costs {:?}: {:?}",
                t,
                costs,
                decision
            );
            prop_assert!(charge.is_none());
            prop_assert!(
                decision
                    .statuses()
                    .iter()
                    .all(|status| status.charged() == 0)
            );
        }
        // The states of members that were not charged are unchanged, too.
        for (policy, status) in decision.statuses().iter().enumerate() {
            prop_assert!(status.charged() > 0 || machine.states[policy] == before[policy]);
        }
    }
    Ok(())
}

/// A peek with its cost leaves every state as it was, and is decided as the charged call that
/// follows it: what is left is what that call leaves and takes.
fn peeks_answer_as_charges(case: &Case, mut machine: impl Machine) -> TestCaseResult {
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
        |case| {
            peeks_answer_as_charges(case, Pure::new(&case.tree))?;
            peeks_answer_as_charges(case, InMemory::new(&case.tree))
        },
    );
}

/// The instant at which a refused request would be admitted does not move, however often the
/// request is tried meanwhile.
fn the_wait_does_not_grow(case: &Case) -> TestCaseResult {
    let mut machine = InMemory::new(&case.tree);
    let mut t = case.start;
    for bite in 0.. {
        if !machine.take(t, 1).0.is_admitted() {
            break;
        }
        prop_assert!(bite < 1_000, "nothing is ever used up");
        // Drain quotas of a million units in a few steps.
        let rest = machine.peek(t).remaining();
        let _ = machine.take(t, rest.max(1));
    }
    let Some(wait) = machine.take(t, 1).0.retry_after() else {
        return Ok(());
    };
    let until = t + wait.as_micros() as i64;
    for raw in &case.raws {
        t += raw.micros((until - t) / 2, false).min(until - t - 1);
        let decision = machine.take(t, 1).0;
        prop_assert!(!decision.is_admitted(), "admitted {} early", until - t);
        prop_assert_eq!(
            decision
                .retry_after()
                .map(|wait| t + wait.as_micros() as i64),
            Some(until)
        );
    }
    Ok(())
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

#[test]
fn law_01_denied_and_peek_leave_the_state_equal() {
    for_every_tree(|trees| cases(trees, 50), states_stay);
}

#[test]
fn law_01_hammering_does_not_move_the_retry() {
    let early = |mut case: Case| {
        case.start = case.start.min(1 << 52);
        case
    };
    for_every_tree(
        |trees| cases(trees, 20).prop_map(early),
        the_wait_does_not_grow,
    );
}
