//! Law 9, forgetting is invisible: dropping an idle state changes no decision, and a full store is
//! no amnesty.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::Timestamp;

use crate::support::bounds::check_every_stretch;
use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::reference::{Reference, reported};
use crate::support::spec::{Kind, Spec, TODAY, Tree};
use crate::support::strategies::{for_every_tree, run, small};
use crate::support::trace::{Case, Raw, cases, clamp, raws};

/// `fresh_at` is exactly the instant of the reset: if it were later, the store would fill up.
fn fresh_at_is_the_reset(case: &Case) -> TestCaseResult {
    let mut machine = Pure::new(&case.tree);
    let (step, mut t) = (case.tree.step(), case.start);
    for raw in &case.raws {
        t = clamp(t.saturating_add(raw.micros(step, true)));
        let costs = raw.costs(&machine.capacities());
        let _ = machine.decide(t, &costs);
        let now = Timestamp::from_micros(t);
        for (policy, state) in machine.set.policies().iter().zip(&machine.states) {
            let algorithm = policy.algorithm();
            let reset = algorithm.peek(state, now).reset_after_micros();
            if reset > 0 {
                prop_assert_eq!(algorithm.fresh_at(state), now.after_micros(reset));
            }
        }
    }
    Ok(())
}

#[test]
fn law_09_a_state_is_fresh_at_its_reset() {
    for_every_tree(|trees| cases(trees, 40), fresh_at_is_the_reset);
}

fn small_specs() -> BoxedStrategy<Spec> {
    prop::sample::select(Kind::ALL.to_vec())
        .prop_flat_map(small)
        .boxed()
}

/// A store too small for its keys admits no more of a key than a store of its own would: neither
/// while keys share an overflow bucket nor after they get a place of their own.
fn full_store_never_over_admits(
    (spec, max_keys, raws): &(Spec, usize, Vec<Raw>),
) -> TestCaseResult {
    let tree = Tree::Leaf(*spec);
    let machine = InMemory::of(tree.set(), *max_keys);
    let mut events: Vec<Vec<(i64, u64, u64)>> = vec![Vec::new(); 12];
    let (step, capacity, mut t) = (tree.step(), machine.capacities()[0], TODAY);
    for raw in raws {
        t += raw.micros(step, false);
        let (key, cost) = (
            usize::from(raw.pick) % events.len(),
            raw.cost(capacity).clamp(1, capacity),
        );
        if machine.take_for(t, key as u64, cost).0.is_admitted() {
            events[key].push((t, cost, 0));
        }
        prop_assert!(
            machine.backend.keys() <= *max_keys,
            "{} keys of {}",
            machine.backend.keys(),
            max_keys
        );
    }
    for events in events {
        check_every_stretch(&tree, 0, &events).map_err(TestCaseError::fail)?;
        // A shared bucket's intervals may have begun earlier than the key's own would have, so its
        // refills come earlier; the bound still holds.
        if !matches!(spec, Spec::Interval { aligned: false, .. }) {
            replayed_by_the_reference(&tree, &events)?;
        }
    }
    Ok(())
}

/// The reference admits all requests of one key that were admitted, when it sees only these.
fn replayed_by_the_reference(tree: &Tree, events: &[(i64, u64, u64)]) -> TestCaseResult {
    let mut reference = Reference::new(tree);
    for (t, cost, _) in events {
        let (answer, _) = reference.decide(*t, &[Some(*cost)]);
        prop_assert!(
            answer.allowed,
            "{} at {} is more than a key has, after {:?}",
            cost,
            t,
            events
        );
    }
    Ok(())
}

#[test]
fn law_09_overflow_never_over_admits() {
    run(
        "tiny stores",
        &(small_specs(), 1_usize..6, raws(120)),
        full_store_never_over_admits,
    );
}

/// The store sweeps, then the clock steps back: forgotten units cannot be spent again.
fn forgetting_and_a_clock_that_steps_back((spec, raws): &(Spec, Vec<Raw>)) -> TestCaseResult {
    let tree = Tree::Leaf(*spec);
    let machine = InMemory::of(tree.set(), 4);
    let (step, capacity) = (tree.step(), machine.capacities()[0]);
    let (mut t, mut forward, mut events) = (TODAY, 0, Vec::new());
    for raw in raws {
        let micros = raw.micros(step, true);
        (t, forward) = (t + micros, forward + micros.max(0));
        let cost = raw.cost(capacity).clamp(1, capacity);
        if machine.take_for(t, 0, cost).0.is_admitted() {
            events.push((forward, cost, 0));
        }
        // Requests of other keys make the store sweep.
        let _ = machine.take_for(t, 1 + u64::from(raw.pick), 1);
    }
    check_every_stretch(&tree, 0, &events).map_err(TestCaseError::fail)
}

#[test]
fn law_09_forgetting_buys_nothing_on_a_clock_that_steps_back() {
    for kind in Kind::ALL {
        run(
            &format!("{kind:?}"),
            &(small(kind), raws(80)),
            forgetting_and_a_clock_that_steps_back,
        );
    }
}

/// The clock steps back after keys were forgotten: the next decision finds exactly what the last
/// one reported as remaining.
fn remaining_on_a_clock_that_steps_back((spec, raws): &(Spec, Vec<Raw>)) -> TestCaseResult {
    let tree = Tree::Leaf(*spec);
    let machine = InMemory::of(tree.set(), 4);
    let (step, capacity) = (tree.step(), machine.capacities()[0]);
    let mut t = TODAY;
    for raw in raws {
        t += raw.micros(step, true);
        let key = u64::from(raw.pick);
        let decision = machine
            .take_for(t, key, raw.cost(capacity).clamp(1, capacity))
            .0;
        prop_assert_eq!(
            decision.remaining(),
            machine.take_for(t, key, 0).0.remaining()
        );
    }
    Ok(())
}

#[test]
fn law_03_remaining_is_exact_behind_forgotten_keys() {
    for kind in Kind::ALL {
        run(
            &format!("{kind:?}"),
            &(small(kind), raws(80)),
            remaining_on_a_clock_that_steps_back,
        );
    }
}

/// Two clocks, of which the fast one makes the store forget keys that are live by the slow one: the
/// skew is bought once, whether all keys have room or share the overflow bucket.
fn forgetting_on_two_clocks((spec, skew, raws): &(Spec, u32, Vec<Raw>)) -> TestCaseResult {
    let tree = Tree::Leaf(*spec);
    let machine = InMemory::of(tree.set(), 2 + *skew as usize % 3);
    let (step, capacity) = (tree.step(), machine.capacities()[0]);
    let skew = i64::from(*skew) % (30 * step + 1);
    let (mut real, mut events) = (TODAY, Vec::new());
    for raw in raws {
        real += if raw.step.0 < 8 {
            0
        } else {
            raw.micros(step, false).min(step)
        };
        let cost = raw.cost(capacity).clamp(1, capacity);
        if machine.take_for(real, 0, cost).0.is_admitted() {
            events.push((real, cost, 0));
        }
        let _ = machine.take_for(real + skew, 1 + u64::from(raw.pick) % 3, 1);
    }
    check_every_stretch(&tree, skew, &events).map_err(TestCaseError::fail)
}

#[test]
fn law_09_forgetting_buys_the_skew_of_two_clocks_once() {
    for kind in Kind::ALL {
        run(
            &format!("{kind:?}"),
            &(small(kind), any::<u32>(), raws(80)),
            forgetting_on_two_clocks,
        );
    }
}

const HOUR: u64 = 3_600_000_000;

/// A thousand keys are used up, then twenty times as many keys as fit arrive: all thousand stay
/// refused.
#[test]
fn law_09_attack_23_filling_the_store_is_no_amnesty() {
    for spec in super::law_07_lying_clocks::every_algorithm() {
        let machine = InMemory::of(Tree::Leaf(spec).set(), 2_000);
        for key in 0..1_000 {
            assert!(machine.take_for(TODAY, key, 5).0.is_admitted());
        }
        let mut overflowed = 0;
        for newcomer in 1_000..41_000_u64 {
            let (decision, _) = machine.take_for(TODAY + 1, newcomer, 1);
            overflowed += usize::from(decision.statuses()[0].is_overflow());
        }
        assert!(
            overflowed >= 39_000,
            "{spec:?}: {overflowed} shared overflow buckets"
        );
        assert_eq!(machine.backend.keys(), 2_000);
        for key in 0..1_000 {
            assert!(
                !machine.take_for(TODAY + 2, key, 1).0.is_admitted(),
                "{spec:?}: key {key} was let off"
            );
        }
    }
}

/// One key more than fit, and then the first key again.
#[test]
fn trap_v31_a_denied_key_stays_denied_when_the_store_is_full() {
    let spec = Spec::gcra(1, HOUR, 1);
    for max_keys in [1, 2, 100] {
        let machine = InMemory::of(Tree::Leaf(spec).set(), max_keys);
        assert!(machine.take_for(TODAY, "A", 1).0.is_admitted());
        assert!(!machine.take_for(TODAY, "A", 1).0.is_admitted());
        for other in 0..=max_keys as u64 {
            let _ = machine.take_for(TODAY, other, 1);
        }
        assert!(
            !machine.take_for(TODAY, "A", 1).0.is_admitted(),
            "A was let off in a store of {max_keys}"
        );
    }
}

/// Two million distinct keys, live ones and soon-forgotten ones, in a store of ten thousand.
#[test]
fn law_09_attack_22_two_million_keys_stay_bounded() {
    let max_keys = 10_000;
    let machine = InMemory::of(Tree::Leaf(Spec::gcra(1_000, 1_000_000, 5)).set(), max_keys);
    for key in 0..2_000_000_u64 {
        // First all keys at one instant, then a new key every 10 µs: about five hundred are live at
        // any time.
        let t = TODAY
            + if key < 1_000_000 {
                0
            } else {
                (key as i64 - 1_000_000) * 10
            };
        let _ = machine.take_for(t, key, 1);
        if key % 1_000 == 0 {
            assert!(
                machine.backend.keys() <= max_keys,
                "{} keys",
                machine.backend.keys()
            );
        }
    }
    assert!(machine.backend.keys() <= max_keys);
    let newcomer = machine.take_for(TODAY + 11_000_000, "newcomer", 1).0;
    assert!(
        newcomer.is_admitted() && reported(&newcomer).remaining == 4,
        "an hour later there is room again: {newcomer:?}"
    );
}
