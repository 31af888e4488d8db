//! Laws 2, 3 and 4: a decision reports the wait, the remaining units and the reset exactly. Each is
//! checked by acting on the report, and by acting one microsecond or one unit off. The requests are
//! of several classes.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Decision, Key, Timestamp};

use crate::support::machines::{Machine, Pure, calls};
use crate::support::reference::reported;
use crate::support::strategies::for_every_tree;
use crate::support::trace::{Case, Raw, cases, clamp};

const LAST: i64 = Timestamp::MAX.as_micros();

/// Walks a trace over states in hand and checks every decision on copies.
fn walk(
    case: &Case,
    check: impl Fn(&Pure, i64, &[Call], &Decision) -> TestCaseResult,
) -> TestCaseResult {
    let mut machine = Pure::new(&case.tree);
    let (step, mut t) = (case.tree.step(), case.start);
    let mut open = Vec::<Receipt>::new();
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
        if raw.what >= 8 && !open.is_empty() {
            let charge = open.swap_remove(usize::from(raw.pick) % open.len());
            machine.settle(t, charge.actual(raw.cost.0.into()));
        }
        let capacities = machine.capacities();
        let calls = calls(&Key::from("trace"), &raw.costs(&capacities))
            .into_iter()
            .zip(capacities)
            .enumerate();
        let calls: Vec<Call> = calls
            .map(|(leaf, (call, capacity))| call.reserving(reserve(raw, leaf, capacity)))
            .collect();
        let decision = machine.decide_calls(t, &calls);
        check(&machine, t, &calls, &decision)?;
        open.extend(Receipt::of(&decision, &calls));
    }
    Ok(())
}

/// Half of the requests leave nothing free, the others up to all.
fn reserve(raw: &Raw, leaf: usize, capacity: u64) -> u64 {
    match (raw.pick % 2, raw.members.rotate_left(leaf as u32 * 3) % 8) {
        (0, _) | (_, 0) => 0,
        (_, die @ 1..=3) => die.into(),
        (_, 4) => capacity / 2,
        (_, 5) => capacity - 1,
        (_, 6) => capacity,
        _ => capacity / 4,
    }
}

/// The same calls for so many units.
fn costing(calls: &[Call], units: u64) -> Vec<Call> {
    calls
        .iter()
        .map(|call| call.clone().costing(units))
        .collect()
}

/// The calls, where those of audited limits are skipped.
fn enforced<'a>(machine: &Pure, calls: &'a [Call]) -> impl Iterator<Item = &'a Call> {
    let each = calls.iter().zip(machine.set.policies());
    each.map(|(call, policy)| {
        if policy.is_audited() {
            &Call::SKIP
        } else {
            call
        }
    })
}

fn after(t: i64, wait: std::time::Duration) -> Option<i64> {
    i64::try_from(wait.as_micros())
        .ok()
        .and_then(|wait| t.checked_add(wait))
        .filter(|later| *later <= LAST)
}

fn retry_is_tight(machine: &Pure, t: i64, calls: &[Call], decision: &Decision) -> TestCaseResult {
    let admitted = |t| machine.clone().decide_calls(t, calls).is_admitted();
    if decision.is_admitted() {
        prop_assert_eq!(decision.retry_after(), Some(std::time::Duration::ZERO));
        return Ok(());
    }
    let Some(wait) = decision.retry_after() else {
        let fresh = Pure::of(machine.set.clone()).decide_calls(t, calls);
        prop_assert!(
            !fresh.is_admitted(),
            "never, but an unused key admits {:?}",
            calls
        );
        return Ok(());
    };
    prop_assert!(!wait.is_zero(), "denied without a wait");
    let Some(then) = after(t, wait) else {
        return Ok(());
    };
    prop_assert!(admitted(then), "denied at {} + {:?}, {:?}", t, wait, calls);
    prop_assert!(
        admitted((then + 1).min(LAST)) && admitted((then + (then - t).min(1 << 52)).min(LAST)),
        "not for good"
    );
    // Every earlier instant, or a sample of them.
    let early: Vec<i64> = if then - t <= 100 {
        (t..then).collect()
    } else {
        vec![t, (t + then) / 2, then - 2, then - 1]
    };
    for instant in early {
        prop_assert!(
            !admitted(instant),
            "admitted at {}, {} early, {:?}",
            instant,
            then - instant,
            calls
        );
    }
    Ok(())
}

fn remaining_is_exact(
    machine: &Pure,
    t: i64,
    calls: &[Call],
    decision: &Decision,
) -> TestCaseResult {
    let admitted = |units: u64| {
        machine
            .clone()
            .decide_calls(t, &costing(calls, units))
            .is_admitted()
    };
    let remaining = decision.remaining();
    if enforced(machine, calls).all(|call| call.key().is_none()) {
        prop_assert_eq!(remaining, u64::MAX);
        return Ok(());
    }
    prop_assert!(
        admitted(remaining),
        "{} remain at {} but are denied",
        remaining,
        t
    );
    prop_assert!(
        !admitted(remaining + 1),
        "{} remain at {} but one more is admitted",
        remaining,
        t
    );
    for (policy, status) in decision
        .statuses()
        .iter()
        .enumerate()
        .filter(|(_, status)| status.applies())
    {
        let (algorithm, reserve) = (
            machine.set.policies()[policy].algorithm(),
            calls[policy].reserve(),
        );
        let admitted = |units| {
            let units = if units > 0 { units + reserve } else { 0 };
            let state = machine.states[policy].clone();
            algorithm
                .decide(state, Timestamp::from_micros(t), units)
                .1
                .is_admitted()
        };
        prop_assert!(
            admitted(status.remaining()) && !admitted(status.remaining() + 1),
            "member {}",
            policy
        );
    }
    Ok(())
}

fn reset_is_exact(machine: &Pure, t: i64, calls: &[Call], decision: &Decision) -> TestCaseResult {
    // What is left of audited limits is no part of the decision's reset.
    let peeks: Vec<Call> = enforced(machine, &costing(calls, 0)).cloned().collect();
    let as_new = |t| {
        let unused = Pure::of(machine.set.clone()).decide_calls(t, &peeks);
        reported(&machine.clone().decide_calls(t, &peeks)) == reported(&unused)
    };
    let Some(then) = after(t, decision.reset_after()) else {
        return Ok(());
    };
    prop_assert!(
        as_new(then),
        "used can be distinguished from unused at {} + {:?}",
        t,
        decision.reset_after()
    );
    let early: Vec<i64> = if then - t <= 100 {
        (t..then).collect()
    } else {
        vec![t, (t + then) / 2, then - 2, then - 1]
    };
    for instant in early {
        prop_assert!(
            !as_new(instant),
            "as new already {} before the reset",
            then - instant
        );
    }
    Ok(())
}

#[test]
fn law_02_retry_is_tight() {
    for_every_tree(|trees| cases(trees, 30), |case| walk(case, retry_is_tight));
}

#[test]
fn law_03_remaining_is_exact() {
    for_every_tree(
        |trees| cases(trees, 40),
        |case| walk(case, remaining_is_exact),
    );
}

#[test]
fn law_04_reset_is_exact() {
    for_every_tree(|trees| cases(trees, 30), |case| walk(case, reset_is_exact));
}
