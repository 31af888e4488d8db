//! Laws 1 to 4: a refusal and a peek leave the state as it was, and a decision reports the wait, the
//! remaining units and the reset exactly. Each report is checked by acting on it, and by acting one
//! microsecond or one unit off. The requests are of several classes, some have parameters of their
//! own, and some keys have exceptions and strikes.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::algorithm::State;
use throttle_core::backend::{Ban, Call, Exception, Receipt, Treatment};
use throttle_core::{
    Algorithm, Decision, FixedWindow, Gcra, Key, Policy, PolicySet, Rate, SlidingLog, Timestamp,
};

use crate::support::machines::{Machine, Pure, calls};
use crate::support::reference::reported;
use crate::support::strategies::for_every_tree;
use crate::support::trace::{Case, Raw, cases, clamp};

const LAST: i64 = Timestamp::MAX.as_micros();

/// Walks a trace over states in hand, checks every decision on copies, and that only a charge
/// changes a state.
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
        let leaf = usize::from(raw.pick) % machine.states.len();
        let algorithm = *machine.set.policies()[leaf].algorithm();
        let state = &mut machine.states[leaf];
        *state = treated(state.clone(), &algorithm, raw, t);
        let capacities = machine.capacities();
        let calls = calls(&Key::from("trace"), &raw.costs(&capacities))
            .into_iter()
            .zip(machine.set.policies())
            .enumerate();
        let calls: Vec<Call> = calls
            .map(|(leaf, (call, policy))| of_class(call, policy.algorithm(), raw, leaf))
            .collect();
        let before = machine.states.clone();
        let decision = machine.decide_calls(t, &calls);
        for (leaf, status) in decision.statuses().iter().enumerate() {
            let is_charged = decision.is_admitted() && calls[leaf].cost() > 0;
            prop_assert!(status.charged() == 0 || is_charged, "law 1: {:?}", decision);
            let is_same = machine.states[leaf] == before[leaf];
            prop_assert!(status.charged() > 0 || is_same, "law 1: {:?}", calls);
        }
        check(&machine, t, &calls, &decision)?;
        open.extend(Receipt::of(&decision, &calls));
    }
    Ok(())
}

/// Half of the requests leave nothing free, the others up to all, and more than that.
fn reserve(raw: &Raw, leaf: usize, capacity: u64) -> u64 {
    match (raw.pick % 2, raw.members.rotate_left(leaf as u32 * 3) % 8) {
        (0, _) | (_, 0) => 0,
        (_, 1) => u64::MAX,
        (_, die @ 2..=3) => die.into(),
        (_, 4) => capacity / 2,
        (_, 5) => capacity - 1,
        (_, 6) => capacity,
        _ => capacity / 4,
    }
}

/// Half of the requests have the policy's parameters, the others some of their own.
fn of_class(call: Call, algorithm: &Algorithm, raw: &Raw, leaf: usize) -> Call {
    let die = raw.members.rotate_right(leaf as u32 * 4) % 8;
    match other(algorithm, die) {
        Some(own) if die < 4 => {
            let reserve = reserve(raw, leaf, own.capacity());
            call.under(Arc::new(own)).reserving(reserve)
        }
        _ => call.reserving(reserve(raw, leaf, algorithm.capacity())),
    }
}

/// A limit of about the same pace.
fn other(algorithm: &Algorithm, die: u32) -> Option<Algorithm> {
    let rate = algorithm.rate();
    let faster = Rate::new(2 * rate.count(), rate.period());
    let other = match die % 3 {
        0 => Gcra::new(faster).burst(algorithm.capacity()).build(),
        1 => FixedWindow::new(faster).build(),
        _ => SlidingLog::new(rate).build(),
    };
    other.ok()
}

/// The state with another exception, or after a strike. Mostly it is the same.
fn treated(state: State, algorithm: &Algorithm, raw: &Raw, t: i64) -> State {
    let after = |part: u64| {
        let micros = algorithm.rate().period_micros() / part;
        Timestamp::from_micros(t).after_micros(1 + micros)
    };
    let treatment = match raw.members >> 24 {
        0..12 => Treatment::Exempt,
        12..24 => Treatment::Blocked,
        24..36 => match other(algorithm, raw.members) {
            Some(limit) => Treatment::Limit(Arc::new(limit)),
            None => return state,
        },
        36..48 => return state.excepted(None),
        48..60 => {
            let period = Duration::from_micros(algorithm.rate().period_micros().min(1 << 40));
            let ban = Ban::after(2).lasting(period).within(period);
            let ban = ban.up_to(2 * period).forgotten_after(period);
            let wire = state
                .to_wire(algorithm)
                .expect("a state that can be written");
            let over = Exception::from_wire(&wire).map(|(over, _)| over);
            return match ban.strike(over.as_ref(), Timestamp::from_micros(t)) {
                Some(struck) => state.excepted(Some(struck.exception)),
                None => state,
            };
        }
        _ => return state,
    };
    let until = after(u64::from(raw.pick % 7) + 1);
    state.excepted(Some(Exception { treatment, until }))
}

/// Whether a key has an exception, and whether that is its strikes, which change no decision between
/// two bans.
fn has_exception(machine: &Pure) -> [bool; 2] {
    let policies = machine.set.policies().iter().zip(&machine.states);
    let over = policies.filter_map(|(policy, state)| {
        let wire = state.to_wire(policy.algorithm())?;
        Exception::from_wire(&wire).map(|(over, _)| over)
    });
    over.fold([false; 2], |[_, struck], over| {
        [
            true,
            struck || matches!(over.treatment, Treatment::Struck(_)),
        ]
    })
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
    if has_exception(machine)[0] && machine.states.len() > 1 {
        // A composition waits for the longest of its members' waits, and not for what else of them
        // refuses when an exception ends meanwhile.
        return Ok(());
    }
    let Some(then) = after(t, wait) else {
        return Ok(());
    };
    prop_assert!(admitted(then), "denied at {} + {:?}, {:?}", t, wait, calls);
    if has_exception(machine)[0] {
        // It may end later, and what it has admitted then counts.
        prop_assert!(!admitted(then - 1), "admitted at {} - 1, {:?}", then, calls);
        return Ok(());
    }
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
        remaining == 0 || admitted(remaining),
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
        let algorithm = *machine.set.policies()[policy].algorithm();
        let alone = PolicySet::new(Policy::new("alone", algorithm).unwrap()).unwrap();
        let admitted = |units| {
            let mut states = [machine.states[policy].clone()];
            let calls = [calls[policy].clone().costing(units)];
            let decision = alone.decide(&mut states, Timestamp::from_micros(t), &calls);
            decision.is_admitted()
        };
        let remaining = status.remaining();
        prop_assert!(
            (remaining == 0 || admitted(remaining)) && !admitted(remaining + 1),
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
    if has_exception(machine)[1] {
        return Ok(());
    }
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
fn law_01_denied_and_peek_leave_the_state_equal() {
    for_every_tree(
        |trees| cases(trees, 50),
        |case| walk(case, |_, _, _, _| Ok(())),
    );
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
