//! What the memory backend says of itself, and how it keeps its bounds: its options, its clock, its
//! numbers of keys and policies, and that it works for sets of any size.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{
    Backend, Clock, FixedWindow, Gcra, Key, ManualClock, MemoryBackend, Policy, PolicySet,
    PolicyTree, Rate, SlidingLog, Timestamp,
};

use crate::support::strategies::run;
use crate::support::trace::{Raw, raws};

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

fn per_day(name: &str, count: u64) -> Policy {
    Policy::new(name, FixedWindow::new(Rate::per_day(count))).unwrap()
}

fn set(tree: impl Into<PolicyTree>) -> PolicySet {
    PolicySet::new(tree).unwrap()
}

fn key(n: u64) -> [Call; 1] {
    [Call::from(Key::from(n))]
}

#[test]
fn a_store_of_no_keys_has_room_for_one() {
    for (max_keys, room) in [(0, 1), (1, 1), (3, 3)] {
        let builder = MemoryBackend::builder().max_keys(max_keys);
        let backend = builder.clock(ManualClock::new(T0)).build();
        let prepared = backend.prepare(set(per_day("p", 9))).unwrap();
        assert!(backend.decide_now(&prepared, &key(0)).is_admitted());
        assert_eq!(
            format!("{backend:?}"),
            format!("MemoryBackend {{ keys: 1, max_keys: {room}, .. }}")
        );
        let overflows = |n| backend.decide_now(&prepared, &key(n)).statuses()[0].is_overflow();
        let expected: Vec<bool> = (0..5).map(|n| n >= room).collect();
        assert_eq!((0..5).map(overflows).collect::<Vec<_>>(), expected);
        assert_eq!(backend.keys() as u64, room);
    }
}

#[test]
fn memory_decides_at_once_by_a_clock_that_it_knows_and_cannot_fail() {
    let backend = MemoryBackend::builder().clock(ManualClock::new(T0)).build();
    let prepared = Arc::new(backend.prepare(set(per_day("p", 9))).unwrap());
    assert!(!backend.can_fail());
    assert_eq!(backend.now(&prepared, &key(1)), Some(T0));
    let decision = backend
        .decide_at_once(&prepared, &key(1))
        .expect("without waiting");
    assert_eq!(decision.remaining(), 8);
    let _ = backend.decide_now(&prepared, &key(2));
    assert_eq!(backend.keys_held(), Some(2));
}

#[test]
fn law_05_keys_of_a_request_lie_in_any_two_shards() {
    let backend = MemoryBackend::builder().clock(ManualClock::new(T0)).build();
    let both = PolicyTree::All(vec![per_day("p", 1).into(), per_day("q", 2).into()]);
    let prepared = backend.prepare(set(both)).unwrap();
    for n in 0..100 {
        let decisions = [(); 2].map(|()| {
            backend.decide_now(&prepared, &[n, 1_000 + n].map(|n| Call::from(Key::from(n))))
        });
        assert_eq!(
            decisions.each_ref().map(|decision| decision.is_admitted()),
            [true, false],
            "{n}"
        );
        assert_eq!(
            decisions[1]
                .statuses()
                .iter()
                .map(|status| status.remaining())
                .collect::<Vec<_>>(),
            [0, 1]
        );
    }
}

#[test]
fn a_set_that_another_store_prepared_is_refused_loudly() {
    let [own, other] =
        [(), ()].map(|()| MemoryBackend::builder().clock(ManualClock::new(T0)).build());
    let [prepared, foreign] =
        [&own, &other].map(|store| Arc::new(store.prepare(set(per_day("p", 9))).unwrap()));
    let decision = own.decide_now(&prepared, &key(1));
    let receipt = || Receipt::of(&decision, &key(1)).unwrap().actual(0);
    let steps: [&dyn Fn(); 5] = [
        &|| drop(own.decide_now(&foreign, &key(1))),
        &|| drop(own.decide_as_of(&foreign, &key(1), T0)),
        &|| own.settle_now(&foreign, receipt()),
        &|| drop(own.settle(&foreign, receipt())),
        &|| drop(own.run(&foreign, 0, KeyStep::Reset(Key::from(1)))),
    ];
    for (n, step) in steps.into_iter().enumerate() {
        assert!(catch_unwind(AssertUnwindSafe(step)).is_err(), "step {n}");
    }
    assert_eq!(
        own.decide_now(&prepared, &[Call::peek(Key::from(1))])
            .remaining(),
        8
    );
}

/// Whatever happens in a store too small for its keys, it loses count of none: without keys it has
/// room for as many as ever.
#[test]
fn law_09_a_store_that_has_forgotten_all_keys_has_all_its_room() {
    fn tiered(name: &str, variant: u64) -> Policy {
        let tiers = [
            (
                "window",
                FixedWindow::new(Rate::new(3 + variant, Duration::from_micros(70)))
                    .build()
                    .unwrap(),
            ),
            (
                "log",
                SlidingLog::new(Rate::new(5, Duration::from_micros(50 + variant)))
                    .build()
                    .unwrap(),
            ),
            (
                "gcra",
                Gcra::new(Rate::new(8, Duration::from_micros(90)))
                    .build()
                    .unwrap(),
            ),
        ];
        Policy::tiered(name, tiers).unwrap()
    }
    fn forgets(max_keys: usize, raws: &[Raw]) -> Result<(), TestCaseError> {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder()
            .clock(clock.clone())
            .max_keys(max_keys)
            .build();
        let both = |variant| {
            set(PolicyTree::All(vec![
                tiered("a", variant).into(),
                tiered("b", variant).into(),
            ]))
        };
        let mut prepared = Arc::new(backend.prepare(both(0)).unwrap());
        let mut receipts = Vec::new();
        for raw in raws {
            clock.set(Timestamp::from_micros(
                clock.now().as_micros() + raw.micros(30, true),
            ));
            let tier = (raw.members % 3) as u8;
            let calls = [raw.pick % 5, raw.pick / 5 % 4].map(|key| {
                Call::from(Key::from(u64::from(key)))
                    .costing(raw.cost(4))
                    .in_tier(tier)
            });
            match raw.what {
                0..=5 => {
                    let decision = backend.decide_now(&prepared, &calls);
                    receipts.extend(Receipt::of(&decision, &calls));
                }
                6 | 7 => {
                    if let Some(receipt) = receipts.pop() {
                        backend.settle_now(&prepared, receipt.actual(u64::from(raw.pick % 8)));
                    }
                }
                8 => drop(backend.run(
                    &prepared,
                    usize::from(raw.pick % 2),
                    KeyStep::Reset(calls[0].key().unwrap().clone()),
                )),
                _ if raw.pick % 4 == 0 => {
                    drop(backend.reset_all(if raw.pick % 8 == 0 { "a" } else { "" }));
                }
                _ => prepared = Arc::new(backend.prepare(both(u64::from(raw.pick) % 3)).unwrap()),
            }
            prop_assert!(
                backend.keys() <= max_keys,
                "{} keys of {}",
                backend.keys(),
                max_keys
            );
        }
        drop(backend.reset_all(""));
        prop_assert_eq!(backend.keys(), 0);
        let day = backend.prepare(set(per_day("day", 9))).unwrap();
        let overflows = (0..=max_keys as u64)
            .map(|n| backend.decide_now(&day, &key(n)).statuses()[0].is_overflow());
        let expected: Vec<bool> = (0..=max_keys).map(|n| n == max_keys).collect();
        prop_assert_eq!(overflows.collect::<Vec<_>>(), expected);
        Ok(())
    }
    run(
        "tiny stores",
        &(1_usize..7, raws(80)),
        |(max_keys, raws)| forgets(*max_keys, raws),
    );
}
