//! Law 14, looking is free: observing changes no decision, and neither does an audited limit.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Key, Timestamp};

use crate::support::audited::{enforced_part, of_enforced};
use crate::support::machines::{InMemory, Machine, Pure, calls};
use crate::support::reference::reported;
use crate::support::spec::Tree;
use crate::support::strategies::{for_every_tree, run, some_audited};
use crate::support::trace::{Case, cases, clamp};

/// Two stores receive one trace, and one of them is inspected in every way before each step. Their
/// clocks do not step back, because then the decisions depend on what a store has forgotten, and so
/// on its secret.
fn looking_changes_nothing(case: &Case) -> TestCaseResult {
    let (quiet, observed) = (InMemory::new(&case.tree), InMemory::new(&case.tree));
    let prepared = Arc::new(observed.prepared.clone());
    let (step, mut t) = (case.tree.step(), case.start);
    for (n, raw) in case.raws.iter().enumerate() {
        t = clamp(t.saturating_add(raw.micros(step, false)));
        let costs = raw.costs(&quiet.capacities());
        let asked = calls(&Key::from(n as u64 % 3), &costs);
        for machine in [&quiet, &observed] {
            machine.clock.set(Timestamp::from_micros(t));
        }
        for key in 0..4_u64 {
            let key = Key::from(key);
            let without_cost = vec![Call::peek(key.clone()); costs.len()];
            let peeks: Vec<_> = calls(&key, &costs).into_iter().map(Call::peeking).collect();
            for look in [without_cost, peeks] {
                let _ = observed.backend.decide_now(&prepared, &look);
            }
        }
        let _ = (format!("{:?}", observed.backend), observed.backend.keys());
        let decision = observed.backend.decide_now(&prepared, &asked);
        prop_assert_eq!(
            &decision,
            &quiet.backend.decide_now(&quiet.prepared, &asked),
            "at {}: {:?}",
            t,
            costs
        );
    }
    Ok(())
}

#[test]
fn law_14_looking_changes_no_decision() {
    for_every_tree(|trees| cases(trees, 20), looking_changes_nothing);
}

/// Limits with audited ones and without them receive one trace, and each charge is settled alike.
fn audited_changes_nothing(
    case: &Case,
    make: fn(&Tree) -> Box<dyn Machine>,
    hostile: bool,
) -> TestCaseResult {
    let audited = case.tree.audited();
    let (mut with, mut without) = (make(&case.tree), make(&case.tree.without_audited()));
    let (step, mut t, mut open) = (case.tree.step(), case.start, Vec::<[Receipt; 2]>::new());
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, hostile)));
        if raw.what > 6 && !open.is_empty() {
            let receipts = open.swap_remove(usize::from(raw.pick) % open.len());
            let [one, other] = receipts.map(|receipt| receipt.actual(raw.cost(2).min(9)));
            with.settle(t, one);
            without.settle(t, other);
        }
        let costs = raw.costs(&with.capacities());
        let (decision, charge) = with.decide(t, &costs);
        let (live, live_charge) = without.decide(t, &of_enforced(&audited, &costs));
        prop_assert_eq!(
            enforced_part(&audited, &decision),
            (reported(&live), live.statuses().to_vec())
        );
        open.extend(charge.zip(live_charge).map(|(one, other)| [one, other]));
    }
    Ok(())
}

#[test]
fn law_14_an_audited_limit_changes_no_decision() {
    let trees = || cases(some_audited(), 40);
    run("algorithms", &trees(), |case| {
        audited_changes_nothing(case, |tree| Box::new(Pure::new(tree)), true)
    });
    run("memory", &trees(), |case| {
        audited_changes_nothing(case, |tree| Box::new(InMemory::new(tree)), false)
    });
}

/// Until the audited limits would refuse a request that is admitted, all states are what they are
/// where they are enforced.
fn states_are_those_of_enforced_limits(case: &Case) -> TestCaseResult {
    let enforced = case.tree.enforced();
    let (mut audits, mut enforces) = (Pure::new(&case.tree), Pure::new(&enforced));
    let (step, mut t) = (case.tree.step(), case.start);
    let would_refuse = |decision: &Decision| {
        decision
            .statuses()
            .iter()
            .any(|status| status.would_refuse())
    };
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
        let costs = raw.costs(&audits.capacities());
        let decision = audits.decide(t, &costs).0;
        let strict = enforces.decide(t, &costs).0;
        if would_refuse(&decision) && decision.is_admitted() {
            prop_assert!(!strict.is_admitted());
            return Ok(());
        }
        prop_assert_eq!(decision.is_admitted(), strict.is_admitted());
        prop_assert_eq!(&audits.states, &enforces.states);
    }
    Ok(())
}

#[test]
fn law_14_an_audited_limit_counts_as_if_enforced_until_it_would_refuse() {
    run(
        "compositions",
        &cases(some_audited(), 40),
        states_are_those_of_enforced_limits,
    );
}
