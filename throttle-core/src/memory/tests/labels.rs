//! Labels: what tells one key of one policy from another, and where its slot is looked for.

use std::collections::HashSet;

use crate::algorithm::{Gcra, Words};
use crate::memory::key_hash::{KeyHash, KeyHasher};
use crate::memory::policies::Policies;
use crate::memory::slot::{Content, Label};
use crate::memory::table::Table;
use crate::policy::Policy;
use crate::rate::Rate;

fn label(number: u128, policy: u16) -> Label {
    Label::new(
        KeyHash {
            number,
            digested: false,
        },
        policy,
    )
}

/// Keys that share the lower half of their number, the upper half, or both with another policy's
/// key.
#[test]
fn a_key_is_found_by_both_halves_of_its_number_and_its_policy() {
    let table = Table::new(100);
    let all: Vec<Label> = (0..64)
        .map(|n| label(((n / 16) << 64) | (n / 4 % 4), (n % 4) as u16 + 1))
        .collect();
    let state = |place: usize| Words {
        instant: -(place as i64),
        amount: place as u64,
    };
    for (place, label) in all.iter().enumerate() {
        let mut table = table.change();
        assert_eq!(table.find(*label), None, "{label:?} is not there yet");
        table.insert(Content::new(*label, 0, state(place)));
    }
    for (place, label) in all.iter().enumerate() {
        let table = table.change();
        let content = table
            .get(table.find(*label).expect("it is there"))
            .expect("a used slot");
        assert_eq!((content.label(), content.words()), (*label, state(place)));
    }
}

/// A key whose slot is looked for far from where most keys are costs time and nothing else.
#[test]
fn law_12_first_slots_of_keys_are_spread_over_the_whole_table() {
    let hasher = KeyHasher::random();
    for width in [32, 1_000, 70_000] {
        let homes = (0..2_000_u64).map(|n| Label::new(hasher.hash(&n.into()), 1).home(width));
        let mut in_parts = [0; 16];
        homes.for_each(|home| in_parts[home * 16 / width] += 1);
        let is_fair = |keys: &i32| (60..250).contains(keys);
        assert!(in_parts.iter().all(is_fair), "{in_parts:?} of {width}");
    }
}

#[test]
fn law_11_overflow_buckets_meet_no_other_bucket_and_no_key() {
    let policies = Policies::new();
    let mut buckets: Vec<Label> = Vec::new();
    for policy in ["a", "b"] {
        // Those that have a number in a slot, and some that have none.
        for count in 1..300 {
            let limit = Policy::new(policy, Gcra::new(Rate::per_day(count))).unwrap();
            let member = policies.add(&limit).unwrap();
            buckets.push(Label::overflow(member.of_call(0, None)));
            assert_eq!(buckets.last().unwrap().policy(), member.number());
        }
    }
    for (place, bucket) in buckets.iter().enumerate() {
        assert!(bucket.is_overflow());
        let (count, others) = (place % 299, &buckets[..place]);
        let met = others.iter().position(|other| other == bucket);
        // Only parameters without a number share buckets, those of one policy.
        assert!(
            met.is_none_or(|met| count >= 255 && met % 299 >= 255 && met / 299 == place / 299),
            "bucket {place}"
        );
    }
    let distinct: HashSet<Label> = buckets.into_iter().collect();
    assert!(distinct.len() <= 2 * (255 + 64), "{}", distinct.len());
    assert!(
        !label(1, 1).is_overflow(),
        "a short key, whose number may be any"
    );
    assert!(!distinct.contains(&label(1, 1)));
}
