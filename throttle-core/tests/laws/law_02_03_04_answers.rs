//! Laws 2, 3 and 4: a decision reports the wait, the remaining units and the reset exactly. Each is checked by acting
//! on the report, and by acting one microsecond or one unit off.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::{Decision, Timestamp};

use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::reference::told;
use crate::support::spec::Tree;
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
    let as_new =
        |t| told(&machine.clone().decide(t, &peeks).0) == told(&Pure::of(machine.set.clone()).decide(t, &peeks).0);
    let Some(then) = after(t, decision.reset_after()) else { return Ok(()) };
    prop_assert!(as_new(then), "used can be told from unused at {} + {:?}", t, decision.reset_after());
    let early: Vec<i64> =
        if then - t <= 100 { (t..then).collect() } else { vec![t, (t + then) / 2, then - 2, then - 1] };
    for instant in early {
        prop_assert!(!as_new(instant), "as new already {} before the reset", then - instant);
    }
    Ok(())
}

/// Runs a trace on the memory backend, then checks its last decision by moving the clock only.
fn through_memory(case: &Case, finish: impl Fn(InMemory, i64, u64) -> TestCaseResult) -> TestCaseResult {
    let (step, mut t) = (case.tree.step(), case.start.min(1 << 51));
    let mut machine = InMemory::new(&case.tree);
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true))).min(1 << 51);
        let costs = raw.costs(&machine.capacities());
        let _ = machine.decide(t, &costs);
    }
    let last = case.raws.last().map_or(1, |raw| raw.cost(machine.capacities().into_iter().min().unwrap_or(1)));
    finish(machine, t, last)
}

fn memory_retries_tight(mut machine: InMemory, t: i64, cost: u64) -> TestCaseResult {
    let first = machine.take(t, cost).0;
    let denied = if first.is_admitted() {
        // Use up the rest, so that the same cost is denied.
        let rest = machine.peek(t).remaining();
        let _ = machine.take(t, rest);
        machine.take(t, cost.max(1)).0
    } else {
        first
    };
    let Some(then) = denied.retry_after().and_then(|wait| after(t, wait)).filter(|then| *then > t) else {
        return Ok(());
    };
    prop_assert!(!machine.take(then - 1, cost.max(1)).0.is_admitted(), "admitted a microsecond early");
    prop_assert!(machine.take(then, cost.max(1)).0.is_admitted(), "denied after the reported wait");
    Ok(())
}

fn memory_remaining_exact(mut machine: InMemory, t: i64, cost: u64) -> TestCaseResult {
    let remaining = machine.take(t, cost).0.remaining();
    prop_assert!(!machine.take(t, remaining + 1).0.is_admitted());
    prop_assert!(machine.take(t, remaining).0.is_admitted());
    Ok(())
}

fn memory_reset_exact(mut machine: InMemory, t: i64, cost: u64) -> TestCaseResult {
    let reset = machine.take(t, cost).0.reset_after();
    let Some(then) = after(t, reset) else { return Ok(()) };
    let unused = |machine: &InMemory, t| machine.take_for(t, "another", 0).0;
    prop_assert_eq!(told(&machine.peek(then)), told(&unused(&machine, then)), "not as new at the reset");
    let early = told(&machine.peek(then - 1)) != told(&unused(&machine, then - 1));
    prop_assert!(reset.is_zero() || early, "as new before the reset");
    Ok(())
}

/// `any` is left out of the destructive walk: after one member is used up, another may still have room for the cost.
fn is_plain(tree: &Tree) -> bool {
    matches!(tree, Tree::Leaf(_)) || matches!(tree, Tree::All(members) if members.iter().all(is_plain))
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

#[test]
fn law_02_retry_is_tight_through_memory() {
    for_every_tree(
        |trees| cases(trees, 30),
        |case| if is_plain(&case.tree) { through_memory(case, memory_retries_tight) } else { Ok(()) },
    );
}

#[test]
fn law_03_remaining_is_exact_through_memory() {
    for_every_tree(|trees| cases(trees, 30), |case| through_memory(case, memory_remaining_exact));
}

#[test]
fn law_04_reset_is_exact_through_memory() {
    for_every_tree(|trees| cases(trees, 30), |case| through_memory(case, memory_reset_exact));
}
