//! Law 14, looking is free: an audited limit changes no decision. That peeks change none is law 1.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::Decision;
use throttle_core::backend::Receipt;

use crate::support::audited::{enforced_part, of_enforced};
use crate::support::machines::{Machine, Pure};
use crate::support::reference::reported;
use crate::support::strategies::{run, some_audited};
use crate::support::trace::{Case, cases, clamp};

/// Limits with audited ones and without them receive one trace, and each charge is settled alike.
fn audited_changes_nothing(case: &Case) -> TestCaseResult {
    let audited = case.tree.audited();
    let mut with = Pure::new(&case.tree);
    let mut without = Pure::new(&case.tree.without_audited());
    let (step, mut t, mut open) = (case.tree.step(), case.start, Vec::<[Receipt; 2]>::new());
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
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
    run(
        "algorithms",
        &cases(some_audited(), 40),
        audited_changes_nothing,
    );
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
