//! Law 11: keys and names of policies that careless code would let meet.

use super::Harness;
use super::hostile_keys::hostile_keys;
use super::races::{per_day, start};
use super::subject::Subject;
use super::traces::policy;
use crate::key::Key;
use crate::set::PolicyTree;

/// Keys that a careless encoding would confuse each have a whole budget of their own, before and
/// after all others are exhausted.
pub fn law_11_keys_are_injective<H: Harness>() {
    let harness = start::<H>();
    let limit = per_day(9);
    let subject = Subject::new(&harness, policy("policy", &limit));
    let keys = hostile_keys();
    for (index, key) in keys.iter().enumerate() {
        let decision = subject.take(key, limit.capacity());
        assert!(
            decision.is_admitted(),
            "law 11, keys are injective: `is_admitted` of key {index}, {key:?}: {decision:?}"
        );
    }
    for (index, key) in keys.iter().enumerate() {
        assert_eq!(
            subject.remaining(key),
            0,
            "law 11, keys are injective: `remaining` of key {index}, {key:?}"
        );
    }
}

const NAMES: [&str; 19] = [
    "a", "A", "ab", " a", "a b", "b", "a:", "a:b", "b:a", "a*", "a*b", "axb", "a_b", "a%b", "[ab]",
    "{a}", "a}", "\"a\"", "a{b}\\?",
];

/// One key has a budget in each policy, whatever the policies' names. Sets that share a policy share
/// its budgets.
pub fn law_11_policies_are_isolated<H: Harness>() {
    let harness = start::<H>();
    let algorithm = per_day(9);
    let keys = [Key::from("b"), Key::from("b:c"), Key::CONSTANT];
    for name in NAMES {
        let subject = Subject::new(&harness, policy(name, &algorithm));
        for key in &keys {
            assert_eq!(
                subject.exhaust(key),
                algorithm.capacity(),
                "law 11, policies are isolated: units of {name:?}, {key:?}"
            );
        }
    }
    let members = ["b", "new"].map(|name| policy(name, &algorithm).into());
    let shared = Subject::new(&harness, PolicyTree::All(members.to_vec()));
    assert_eq!(
        shared.take(&keys[0], 1).binding(),
        Some(0),
        "law 11, policies are isolated: `binding` of a set with a policy that is exhausted"
    );
}

/// Forgetting by prefix takes the prefix literally, as the beginning of a policy's name.
pub fn law_11_reset_all_by_prefix<H: Harness>() {
    let algorithm = per_day(9);
    let key = Key::from("a");
    for prefix in ["a", "a*", "a:", "a_", "%", "[", "a{", "", "nobody"] {
        let harness = start::<H>();
        let subjects = NAMES.map(|name| Subject::new(&harness, policy(name, &algorithm)));
        for subject in &subjects {
            assert!(subject.take(&key, algorithm.capacity()).is_admitted());
        }
        let reset = subjects[0].try_reset_all(prefix);
        reset.expect("the backend resets");
        for (name, subject) in NAMES.iter().zip(&subjects) {
            let expected = if name.starts_with(prefix) {
                algorithm.capacity()
            } else {
                0
            };
            assert_eq!(
                subject.remaining(&key),
                expected,
                "law 11, resets: `remaining` of {name:?} after `reset_all({prefix:?})`"
            );
        }
    }
}
