//! Law 14, looking is free: observing changes no decision.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use throttle_core::backend::Call;
use throttle_core::{Key, Timestamp};

use crate::support::machines::{InMemory, Machine, calls};
use crate::support::strategies::for_every_tree;
use crate::support::trace::{Case, cases, clamp};

/// Two stores receive one trace, and one of them is inspected in every way before each step. Their clocks do not step
/// back, because then the decisions depend on what a store has forgotten, and so on its secret.
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
            let _ = observed.backend.decide_now(&prepared, &vec![Call::peek(Key::from(key)); costs.len()]);
        }
        let _ = (format!("{:?}", observed.backend), observed.backend.keys());
        let decision = observed.backend.decide_now(&prepared, &asked);
        prop_assert_eq!(&decision, &quiet.backend.decide_now(&quiet.prepared, &asked), "at {}: {:?}", t, costs);
    }
    Ok(())
}

#[test]
fn law_14_looking_changes_no_decision() {
    for_every_tree(|trees| cases(trees, 20), looking_changes_nothing);
}
