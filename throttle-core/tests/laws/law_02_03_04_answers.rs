//! Laws 2, 3 and 4: a decision reports the wait, the remaining units and the reset exactly. Each is checked by acting
//! on the report, and by acting one microsecond or one unit off.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::{Decision, Timestamp};

use crate::support::machines::{Machine, Pure};
use crate::support::reference::reported;
use crate::support::strategies::for_every_tree;
use crate::support::trace::{Case, cases, clamp};

const LAST: i64 = Timestamp::MAX.as_micros();

/// Walks a trace over states in hand and checks every decision on copies.
fn walk(case: &Case, check: impl Fn(&Pure, i64, &[Option<u64>], &Decision) -> TestCaseResult) -> TestCaseResult {
    let mut machine = Pure::new(&case.tree);
    let (step, mut t) = (case.tree.step(), case.start);
    let mut open = Vec::new();
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
        if raw.what >= 8 && !open.is_empty() {
            let charge: throttle_core::backend::Receipt = open.swap_remove(usize::from(raw.pick) % open.len());
            machine.settle(t, charge.actual(raw.cost.0.into()));
        }
        let costs = raw.costs(&machine.capacities());
        let (decision, charge) = machine.decide(t, &costs);
        check(&machine, t, &costs, &decision)?;
        open.extend(charge);
    }
    Ok(())
}

fn after(t: i64, wait: std::time::Duration) -> Option<i64> {
    i64::try_from(wait.as_micros()).ok().and_then(|wait| t.checked_add(wait)).filter(|later| *later <= LAST)
}

fn retry_is_tight(machine: &Pure, t: i64, costs: &[Option<u64>], decision: &Decision) -> TestCaseResult {
    let admitted = |t| machine.clone().decide(t, costs).0.is_admitted();
    if decision.is_admitted() {
        prop_assert_eq!(decision.retry_after(), Some(std::time::Duration::ZERO));
        return Ok(());
    }
    let Some(wait) = decision.retry_after() else {
        let fresh = Pure::of(machine.set.clone()).decide(t, costs).0;
        prop_assert!(!fresh.is_admitted(), "never, but an unused key admits {:?}", costs);
        return Ok(());
    };
    prop_assert!(!wait.is_zero(), "denied without a wait");
    let Some(then) = after(t, wait) else { return Ok(()) };
    prop_assert!(admitted(then), "denied at {} + {:?}, costs {:?}", t, wait, costs);
    prop_assert!(
        admitted((then + 1).min(LAST)) && admitted((then + (then - t).min(1 << 52)).min(LAST)),
        "not for good"
    );
    // Every earlier instant, or a sample of them.
    let early: Vec<i64> =
        if then - t <= 100 { (t..then).collect() } else { vec![t, (t + then) / 2, then - 2, then - 1] };
    for instant in early {
        prop_assert!(!admitted(instant), "admitted at {}, {} early, costs {:?}", instant, then - instant, costs);
    }
    Ok(())
}

fn remaining_is_exact(machine: &Pure, t: i64, costs: &[Option<u64>], decision: &Decision) -> TestCaseResult {
    let admitted = |cost: u64| {
        let same: Vec<_> = costs.iter().map(|of| of.map(|_| cost)).collect();
        machine.clone().decide(t, &same).0.is_admitted()
    };
    let remaining = decision.remaining();
    if costs.iter().all(Option::is_none) {
        prop_assert_eq!(remaining, u64::MAX);
        return Ok(());
    }
    prop_assert!(admitted(remaining), "{} remain at {} but are denied", remaining, t);
    prop_assert!(!admitted(remaining + 1), "{} remain at {} but one more is admitted", remaining, t);
    for (policy, status) in decision.statuses().iter().enumerate().filter(|(_, status)| status.applies()) {
        let algorithm = machine.set.policies()[policy].algorithm();
        let now = Timestamp::from_micros(t);
        let admitted = |cost| algorithm.decide(machine.states[policy].clone(), now, cost).1.is_admitted();
        prop_assert!(admitted(status.remaining()) && !admitted(status.remaining() + 1), "member {}", policy);
    }
    Ok(())
}

fn reset_is_exact(machine: &Pure, t: i64, costs: &[Option<u64>], decision: &Decision) -> TestCaseResult {
    let peeks: Vec<_> = costs.iter().map(|cost| cost.map(|_| 0)).collect();
    let as_new = |t| {
        reported(&machine.clone().decide(t, &peeks).0) == reported(&Pure::of(machine.set.clone()).decide(t, &peeks).0)
    };
    let Some(then) = after(t, decision.reset_after()) else { return Ok(()) };
    prop_assert!(as_new(then), "used can be distinguished from unused at {} + {:?}", t, decision.reset_after());
    let early: Vec<i64> =
        if then - t <= 100 { (t..then).collect() } else { vec![t, (t + then) / 2, then - 2, then - 1] };
    for instant in early {
        prop_assert!(!as_new(instant), "as new already {} before the reset", then - instant);
    }
    Ok(())
}

#[test]
fn law_02_retry_is_tight() {
    for_every_tree(|trees| cases(trees, 30), |case| walk(case, retry_is_tight));
}

#[test]
fn law_03_remaining_is_exact() {
    for_every_tree(|trees| cases(trees, 40), |case| walk(case, remaining_is_exact));
}

#[test]
fn law_04_reset_is_exact() {
    for_every_tree(|trees| cases(trees, 30), |case| walk(case, reset_is_exact));
}
