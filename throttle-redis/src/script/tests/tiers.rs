//! Law 8 for keys that several parameters decide about: every answer and every stored value equals
//! the core's, bit for bit, whichever parameters wrote the value. Requests change between tiers and
//! parameters of their keys' own, limits are deployed anew, charges are settled late, and the clock
//! steps back and forth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use throttle_core::backend::{Call, Receipt};
use throttle_core::{Algorithm, Key, Policy, PolicyTree};

use super::machine::{Machine, call};
use super::random::{KINDS, Step, algorithm, any_algorithm, starts, steps};

/// A policy with those of these tiers that may stand together; or without tiers, with the first
/// one's limits.
fn policy(name: &str, tiers: &[Algorithm], is_tiered: bool) -> Policy {
    if !is_tiered {
        return Policy::new(name, tiers[0]).unwrap();
    }
    let mut named = Vec::new();
    for tier in tiers {
        named.push((named.len().to_string(), *tier));
        if Policy::tiered(name, named.clone()).is_err() {
            named.pop();
        }
    }
    Policy::tiered(name, named).unwrap()
}

/// One limit, or two that must both admit.
fn tree(tiers: &[Algorithm], is_tiered: bool, second: Option<Algorithm>) -> PolicyTree {
    let first = policy("p", tiers, is_tiered);
    match second {
        None => first.into(),
        Some(second) => PolicyTree::All(vec![first.into(), policy("q", &[second], false).into()]),
    }
}

/// The calls of a request: in a tier, or under parameters of the keys' own.
fn calls(machine: &Machine, step: &Step, request: usize) -> Vec<Call> {
    let key = Key::from(if step.dice[3].is_multiple_of(4) {
        "bob"
    } else {
        "ada"
    });
    let calls = machine
        .set()
        .policies()
        .iter()
        .enumerate()
        .map(|(place, policy)| {
            let tier = (step.dice[0] >> 8) as usize % policy.tiers().count().max(1);
            let own = step.dice[0].rotate_left(place as u32).is_multiple_of(4);
            let by = if own {
                step.other
            } else {
                *policy.tier(tier as u8).algorithm()
            };
            let call = call(&key, step.cost(request, place, by.capacity(), true));
            let call = call.reserving(step.reserve(request, place, by.capacity()));
            if own {
                call.under(Arc::new(step.other))
            } else {
                call.in_tier(tier as u8)
            }
        });
    calls.collect()
}

fn play(first: &PolicyTree, later: &[PolicyTree], start: i64, steps: &[Step]) {
    let mut machine = Machine::new(first.clone());
    let (mut now, mut receipts) = (start, Vec::<Receipt>::new());
    for step in steps {
        let requests: Vec<_> = (0..1 + step.dice[2] as usize % 3)
            .map(|n| calls(&machine, step, n))
            .collect();
        let period = requests[0][0]
            .parameters(&machine.set().policies()[0])
            .rate()
            .period_micros();
        now = (now + step.micros(period as i64, true)).clamp(-(1 << 51), 1 << 51);
        machine.go_to(now);
        match step.what {
            0 => machine.deploy(later[step.dice[1] as usize % later.len()].clone()),
            1..=5 if !receipts.is_empty() => {
                let receipt = receipts.swap_remove(step.dice[1] as usize % receipts.len());
                let is_known = receipt
                    .items()
                    .iter()
                    .all(|item| item.policy() < machine.set().policies().len());
                let taken = receipt.items()[0].taken();
                let units = [
                    0,
                    1,
                    taken,
                    taken + 1,
                    taken / 2,
                    taken.saturating_sub(1),
                    2 * taken,
                    taken + 3,
                ];
                if is_known {
                    machine.settle(&receipt.actual(units[step.dice[2] as usize % units.len()]));
                }
            }
            _ => {
                let decisions = machine.decide(&requests);
                receipts.extend(
                    decisions
                        .iter()
                        .zip(&requests)
                        .filter_map(|(of, calls)| Receipt::of(of, calls)),
                );
            }
        }
    }
}

fn run(what: &str, kinds: &BoxedStrategy<Algorithm>, times: u32) {
    let cases = Config::default().cases * times;
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        cases,
        ..Config::default()
    });
    let tiers = prop::collection::vec(kinds.clone(), 1..4);
    let second = prop_oneof![2 => Just(None), 1 => kinds.clone().prop_map(Some)];
    let trees = (tiers, any::<bool>(), second)
        .prop_map(|(tiers, tiered, second)| tree(&tiers, tiered, second));
    let input = (
        trees.clone(),
        prop::collection::vec(trees, 1..3),
        starts(),
        steps(24),
    );
    let result = runner.run(&input, |(first, later, start, steps)| {
        let play = || play(&first, &later, start, &steps);
        catch_unwind(AssertUnwindSafe(play)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            TestCaseError::fail(
                text.unwrap_or_else(|| panic.downcast_ref::<&str>().unwrap_or(&"?").to_string()),
            )
        })
    });
    if let Err(error) = result {
        panic!("{what}: {error}");
    }
}

#[test]
fn law_08_parameters_of_one_algorithm_that_change() {
    for kind in 0..KINDS {
        run(&format!("algorithm {kind}"), &algorithm(kind), 1);
    }
}

#[test]
fn law_08_parameters_of_several_algorithms_that_change() {
    run("several", &any_algorithm(), 8);
}
