//! Room: which keys the sweep forgets, and when, so that newcomers find room and idle keys never
//! pile up.

use super::NOW;
use crate::algorithm::{Algorithm, FixedWindow, Gcra, IntoAlgorithm, SlidingLog};
use crate::backend::Call;
use crate::decision::Decision;
use crate::key::Key;
use crate::memory::store::{MemorySet, Store};
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// So few keys that the sweep for one newcomer passes all of a shard's slots, also where several of
/// them want the last.
const FEW: usize = 8;
const SECOND: u64 = 1_000_000;

fn prepare(store: &Store, name: &str, algorithm: impl IntoAlgorithm) -> MemorySet {
    store
        .prepare(PolicySet::new(Policy::new(name, algorithm).unwrap()).unwrap())
        .unwrap()
}

fn take(store: &Store, set: &MemorySet, key: u64, now: Timestamp) -> Decision {
    store.decide(set, &[Call::from(Key::from(key))], now)
}

#[test]
fn law_09_one_idle_key_of_a_full_store_makes_room_for_one_newcomer() {
    for _ in 0..8 {
        let store = Store::new(FEW);
        let second = prepare(&store, "second", FixedWindow::new(Rate::per_second(9)));
        let day = prepare(&store, "day", FixedWindow::new(Rate::per_day(9)));
        (1..FEW as u64).for_each(|key| assert!(take(&store, &day, key, NOW).is_admitted()));
        let is_overflow = |set, key, now| take(&store, set, key, now).statuses()[0].is_overflow();
        for round in 0..4 {
            let now = NOW.after_micros(round * 2 * SECOND);
            assert!(!is_overflow(&second, 0, now));
            assert!(is_overflow(&day, 100 + round, now), "no key is idle");
            let later = now.after_micros(SECOND);
            assert!(
                !is_overflow(&second, 1 + round, later),
                "the key of the last second is idle"
            );
            assert_eq!(store.keys(), FEW);
        }
    }
}

/// Not only the buckets of keys that have a place.
#[test]
fn a_reset_of_everything_empties_all_overflow_buckets() {
    let store = Store::new(FEW);
    let set = prepare(&store, "p", FixedWindow::new(Rate::per_day(9)));
    let fill =
        |from: u64| (from..from + FEW as u64).for_each(|key| drop(take(&store, &set, key, NOW)));
    fill(0);
    // Newcomers of a full store, which share a bucket in each shard.
    let used = |key| 9 - take(&store, &set, key, NOW).statuses()[0].remaining();
    assert!((100..200).any(|key| used(key) > 1));
    for key in 0..FEW as u64 {
        store.reset(&set, 0, &Key::from(key));
    }
    assert_eq!(store.keys(), 0);
    store.reset_all("");
    fill(0);
    for shard in 0..store.shards.len() {
        let newcomer = (1_000..)
            .find(|key| store.index(store.key_hasher.hash(&Key::from(*key))) == shard)
            .unwrap();
        let decision = take(&store, &set, newcomer, NOW);
        let status = &decision.statuses()[0];
        assert!(status.is_overflow());
        assert_eq!(
            status.remaining(),
            8,
            "shard {shard}: nothing was left of what others had charged"
        );
    }
}

#[test]
fn law_09_a_sweep_of_a_whole_shard_forgets_every_idle_key() {
    let all: [Algorithm; 3] = [
        FixedWindow::new(Rate::per_second(9)).build().unwrap(),
        Gcra::new(Rate::per_second(1)).build().unwrap(),
        SlidingLog::new(Rate::per_second(9)).build().unwrap(),
    ];
    for algorithm in all {
        let store = Store::new(FEW);
        let set = prepare(&store, "p", algorithm);
        for round in 0..8 {
            let now = NOW.after_micros(round * 2 * SECOND);
            (0..FEW as u64)
                .for_each(|key| assert!(take(&store, &set, round * 100 + key, now).is_admitted()));
            store.sweep_elsewhere(now);
            assert_eq!(store.keys(), FEW, "{algorithm:?}: no key is idle");
            // One sweep passes as many slots as there are, and stays at a slot whose key it has
            // forgotten.
            (0..2).for_each(|_| store.sweep_elsewhere(now.after_micros(SECOND)));
            assert_eq!(store.keys(), 0, "{algorithm:?}: all keys are idle");
        }
    }
}

/// A table grows only where more than half of its keys are live. Where they are few, their first
/// segments are used.
#[test]
fn law_09_idle_keys_never_pile_up() {
    const EACH: u64 = 40_000;
    let store = Store::new(1_000_000);
    let set = prepare(&store, "p", FixedWindow::new(Rate::per_second(9)));
    for second in 0..10 {
        let now = NOW.after_micros(second * SECOND);
        (0..EACH)
            .for_each(|key| assert!(take(&store, &set, second * EACH + key, now).is_admitted()));
        let most = 2 * EACH as usize + 28 * store.shards.len();
        assert!(
            store.keys() <= most,
            "{} keys, of which {EACH} are live",
            store.keys()
        );
    }
}

/// Each key expires a second after it came, so at any time a third of the room is idle, but in a
/// store that sweeps only when it is full, some shards have no idle key for a newcomer.
#[test]
fn law_09_a_nearly_full_store_forgets_idle_keys_early() {
    const KEYS: u64 = 10_000;
    const LIVE: u64 = KEYS * 2 / 3;
    let store = Store::new(KEYS as usize);
    let set = prepare(&store, "p", Gcra::new(Rate::per_second(1)));
    for key in 0..6 * LIVE {
        let decision = take(&store, &set, key, NOW.after_micros(key * SECOND / LIVE));
        assert!(
            decision.is_admitted() && !decision.statuses()[0].is_overflow(),
            "key {key} found no room"
        );
    }
}

/// Looks and refusals forget no key, even if all are idle: they add none.
#[test]
fn law_14_a_look_at_an_unknown_key_sweeps_nothing() {
    let store = Store::new(FEW);
    let set = prepare(&store, "p", FixedWindow::new(Rate::per_second(9)));
    (0..FEW as u64).for_each(|key| assert!(take(&store, &set, key, NOW).is_admitted()));
    let later = NOW.after_micros(SECOND);
    for key in 100..200 {
        let look = store.decide(&set, &[Call::peek(Key::from(key))], later);
        assert_eq!(
            (look.remaining(), look.statuses()[0].is_overflow()),
            (9, false)
        );
    }
    assert_eq!(store.keys(), FEW);
}

#[test]
fn overflow_buckets_are_forgotten_with_the_keys() {
    let store = Store::new(1);
    let tiers = [
        ("free", Gcra::new(Rate::per_second(5))),
        ("pro", Gcra::new(Rate::per_second(50))),
    ];
    let set = store
        .prepare(PolicySet::new(Policy::tiered("p", tiers).unwrap()).unwrap())
        .unwrap();
    let buckets = || store.shards[0].absent.overflow_buckets();
    let ask = |key: u64, tier| store.decide(&set, &[Call::from(Key::from(key)).in_tier(tier)], NOW);
    for round in 0..3 {
        assert!(!ask(1, 1).statuses()[0].is_overflow());
        assert_eq!(buckets(), 0);
        for key in 2..6 {
            assert!(ask(key, (key % 2) as u8).statuses()[0].is_overflow());
        }
        assert_eq!(
            (buckets(), store.keys()),
            (2, 1),
            "one for each tier that is used, which are no keys"
        );
        if round == 1 {
            (0..2).for_each(|_| store.sweep_elsewhere(NOW.after_micros(SECOND)));
        } else {
            store.reset_all("p");
        }
        assert_eq!((buckets(), store.keys()), (0, 0));
    }
}

/// Whichever key the sweep reaches first: for a clock that steps back, all that it has forgotten
/// may have been used.
#[test]
fn law_07_a_shard_remembers_when_its_last_forgotten_key_was_live() {
    for _ in 0..16 {
        let store = Store::new(FEW);
        let noon = Timestamp::from_micros(1_790_078_400_000_000);
        let second = prepare(&store, "second", FixedWindow::new(Rate::per_second(9)));
        let hour = prepare(&store, "hour", FixedWindow::new(Rate::per_hour(9)));
        for key in 0..4 {
            assert!(
                take(&store, &second, key, noon).is_admitted()
                    && take(&store, &hour, key, noon).is_admitted()
            );
        }
        let ends = noon.after_micros(3_600 * SECOND);
        (0..2).for_each(|_| store.sweep_elsewhere(ends));
        assert_eq!((store.keys(), store.shards[0].absent.horizon()), (0, ends));
    }
}

/// A table that is full forgets its idle keys before it grows, far below the store's most keys.
#[test]
fn law_07_a_shard_that_grows_remembers_when_its_last_forgotten_key_was_live() {
    const KEYS: u64 = 40;
    let store = Store::new(128);
    let noon = Timestamp::from_micros(1_790_078_400_000_000);
    let hour = prepare(&store, "hour", FixedWindow::new(Rate::per_hour(9)));
    (0..KEYS).for_each(|key| assert!(take(&store, &hour, key, noon).is_admitted()));
    assert_eq!(store.shards[0].absent.horizon(), Timestamp::MIN);
    let ends = noon.after_micros(3_600 * SECOND);
    (KEYS..2 * KEYS).for_each(|key| assert!(take(&store, &hour, key, ends).is_admitted()));
    assert_eq!(store.keys() as u64, KEYS, "the idle keys are forgotten");
    assert_eq!(store.shards[0].absent.horizon(), ends);
}
