//! Law 5: a composite charges what its rule says, or nothing at all.

use super::fixture::{Fixture, call, policy, start};
use super::{Harness, Sample};
use crate::algorithm::{FixedWindow, IntoAlgorithm};
use crate::backend::Call;
use crate::key::Key;
use crate::rate::Rate;
use crate::set::{AnyCharge, PolicyTree};

const THREADS: usize = 8;

/// A quota of `limit` units a day.
fn quota(name: &str, limit: u64) -> PolicyTree {
    let algorithm = FixedWindow::new(Rate::per_day(limit))
        .into_algorithm()
        .expect("a valid quota");
    policy(name, &algorithm).into()
}

/// `all`: when one member refuses, no member is charged, whatever the refusing member is and
/// wherever it stands.
pub fn law_05_all_charges_every_member_or_none<H: Harness>(sample: &Sample) {
    let harness = start::<H>();
    let capacity = sample.capacity();
    for (first, last) in [(100, 2), (2, 100)] {
        let key = Key::builder().text("all").number(first).finish();
        let middle = policy("middle", sample.algorithm()).into();
        let names = [format!("first of {first}"), format!("last of {last}")];
        let rule = PolicyTree::All(vec![
            quota(&names[0], first),
            middle,
            quota(&names[1], last),
        ]);
        let fixture = Fixture::<H>::new(&harness, rule);
        for used in 1..=2 {
            assert!(fixture.take(&key, 1).is_admitted());
            assert_eq!(
                fixture.left(&key),
                [first - used, capacity - used, last - used]
            );
        }
        for cost in [1, 1, capacity, u64::MAX] {
            let denied = fixture.take(&key, cost);
            assert!(
                !denied.is_admitted()
                    && denied.statuses().iter().all(|status| status.charged() == 0)
            );
            assert_eq!(
                fixture.left(&key),
                [first - 2, capacity - 2, last - 2],
                "after a refused cost of {cost}"
            );
        }
    }
}

/// `any`: the first member that admits is charged, or every member that admits, as its rule says; a
/// refusal charges none.
pub fn law_05_any_charges_by_its_rule<H: Harness>() {
    let harness = start::<H>();
    let key = Key::from("any");
    let first = Fixture::<H>::new(
        &harness,
        PolicyTree::Any(vec![quota("own", 2), quota("pool", 3)], AnyCharge::First),
    );
    for (own, pool) in [(1, 3), (0, 3), (0, 2), (0, 1), (0, 0)] {
        let decision = first.take(&key, 1);
        assert!(decision.is_admitted());
        assert_eq!(first.left(&key), [own, pool]);
        assert_eq!(
            decision.binding(),
            Some(usize::from(pool < 3)),
            "the payer binds"
        );
    }
    assert!(!first.take(&key, 1).is_admitted());
    assert_eq!(first.left(&key), [0, 0]);

    let members = vec![quota("small", 1), quota("large", 3)];
    let every = Fixture::<H>::new(
        &harness,
        PolicyTree::Any(members, AnyCharge::EveryAdmitting),
    );
    for expected in [[0, 2], [0, 1], [0, 0]] {
        assert!(every.take(&key, 1).is_admitted());
        assert_eq!(every.left(&key), expected);
    }
    assert!(!every.take(&key, 1).is_admitted());
}

/// Nested: a refusal deep inside charges nothing outside, and an admission charges its own branch
/// only.
pub fn law_05_nested_charges_all_or_nothing<H: Harness>() {
    let harness = start::<H>();
    let key = Key::from("nested");
    // day and (own or (pool and tenant))
    let both = PolicyTree::All(vec![quota("pool", 3), quota("tenant", 1)]);
    let rule = PolicyTree::All(vec![
        quota("day", 10),
        PolicyTree::Any(vec![quota("own", 2), both], AnyCharge::First),
    ]);
    let fixture = Fixture::<H>::new(&harness, rule);
    for expected in [[9, 1, 3, 1], [8, 0, 3, 1], [7, 0, 2, 0]] {
        assert!(fixture.take(&key, 1).is_admitted());
        assert_eq!(fixture.left(&key), expected);
    }
    for _ in 0..3 {
        assert!(!fixture.take(&key, 1).is_admitted());
        assert_eq!(
            fixture.left(&key),
            [7, 0, 2, 0],
            "tenant refuses, so neither day nor pool is charged"
        );
    }
    // Each policy with a cost of its own.
    let other = Key::from("other");
    let calls = [
        call(&other, 4),
        call(&other, 3),
        call(&other, 2),
        call(&other, 1),
    ];
    assert!(
        fixture.decide(&calls).is_admitted(),
        "own cannot pay 3, pool and tenant can pay 2 and 1"
    );
    assert_eq!(fixture.left(&other), [6, 2, 1, 0]);
}

/// Threads race on an `all` in which one member has K units left: K requests are admitted, and the
/// other members are charged for exactly those.
pub fn law_05_saturated_member_under_contention<H: Harness>() {
    let harness = start::<H>();
    let rule = PolicyTree::All(vec![
        quota("wide", 1_000),
        quota("narrow", 20),
        quota("shared", 1_000),
    ]);
    let fixture = Fixture::<H>::new(&harness, rule);
    // Each thread has a wide budget of its own; all share the narrow one.
    let own = |thread: usize| Key::from(thread as u64);
    let shared = Key::CONSTANT;
    let calls = |thread: usize| {
        [
            Call::from(own(thread)),
            Call::from(shared.clone()),
            Call::from(shared.clone()),
        ]
    };
    let (fixture, calls) = (&fixture, &calls);
    let admitted: Vec<u64> = std::thread::scope(|scope| {
        let run = |thread| {
            move || {
                (0..40)
                    .filter(|_| fixture.decide(&calls(thread)).is_admitted())
                    .count() as u64
            }
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(run(thread)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a thread panicked"))
            .collect()
    });
    let total: u64 = admitted.iter().sum();
    assert!(total <= 20, "the narrow budget of 20 admitted {total}");
    assert!(
        total == 20 || !H::ATOMIC_SETS,
        "20 were there and {total} were admitted"
    );
    for (thread, admitted) in admitted.iter().enumerate() {
        let peek: Vec<Call> = calls(thread)
            .iter()
            .map(|c| Call::peek(c.key().expect("all apply").clone()))
            .collect();
        let decision = fixture.decide(&peek);
        let left: Vec<u64> = decision
            .statuses()
            .iter()
            .map(|status| status.remaining())
            .collect();
        assert_eq!(
            left,
            [1_000 - admitted, 20 - total, 1_000 - total],
            "thread {thread}, admitted {admitted}"
        );
    }
}
