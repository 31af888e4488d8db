//! Law 12: what one decision does is bounded, however large the store is, and waits for its own
//! keys' shards only.

mod growth;
mod labels;
mod large_states;
mod parameters;
mod room;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::store::{MemorySet, Store};
use super::sweep::{SWEEP, SWEEP_ELSEWHERE, SWEEP_WHEN_FULL};
use crate::algorithm::FixedWindow;
use crate::backend::Call;
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::{PolicySet, PolicyTree};
use crate::time::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// A store and one policy whose keys stay live.
struct Fixture {
    store: Store,
    set: MemorySet,
}

impl Fixture {
    fn new(max_keys: usize) -> Arc<Self> {
        let store = Store::new(max_keys);
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(9))).unwrap();
        let set = store.prepare(PolicySet::new(policy).unwrap()).unwrap();
        Arc::new(Self { store, set })
    }

    fn full(keys: u64) -> Arc<Self> {
        let fixture = Self::new(usize::try_from(keys).unwrap());
        (0..keys).for_each(|key| drop(fixture.take(key)));
        assert_eq!(fixture.store.keys() as u64, keys);
        fixture
    }

    fn take(&self, key: u64) -> Decision {
        self.store
            .decide(&self.set, &[Call::from(Key::from(key))], NOW)
    }

    fn shard_of(&self, key: u64) -> usize {
        self.store
            .index(self.store.key_hasher.hash(&Key::from(key)))
    }

    fn widths(&self) -> Vec<usize> {
        self.store
            .shards
            .iter()
            .map(|shard| shard.table.width())
            .collect()
    }

    /// Each shard's sweep: where it goes on, and of how many slots.
    fn sweeps(&self) -> Vec<(usize, usize)> {
        self.store
            .shards
            .iter()
            .map(|shard| shard.lock().sweep_position())
            .collect()
    }
}

#[test]
fn law_12_a_decision_in_a_full_store_looks_at_a_bounded_number_of_slots() {
    const KEYS: u64 = 300_000;
    let fixture = Fixture::full(KEYS);
    let mut before = fixture.sweeps();
    for newcomer in 0..500 {
        assert!(fixture.take(KEYS + newcomer).statuses()[0].is_overflow());
        let after = fixture.sweeps();
        // A shard is swept before it grows, so the sweep has wrapped at the former width.
        let moved = before
            .iter()
            .zip(&after)
            .map(|((from, width), (to, _))| (to + width - from) % width);
        let (moved, shards) = moved
            .filter(|slots| *slots > 0)
            .fold((0, 0), |(sum, n), slots| (sum + slots, n + 1));
        assert!(
            moved <= SWEEP + SWEEP_WHEN_FULL + SWEEP_ELSEWHERE,
            "{moved} slots of {KEYS}"
        );
        assert!(shards <= 2, "{shards} shards");
        before = after;
    }
}

#[test]
fn law_12_an_insert_grows_one_shard_by_an_eighth_or_a_segment_at_most() {
    let fixture = Fixture::new(1_000_000);
    let mut before = fixture.widths();
    for key in 0..20_000 {
        drop(fixture.take(key));
        let after = fixture.widths();
        let grown: Vec<_> = before
            .iter()
            .zip(&after)
            .filter(|(from, to)| from != to)
            .collect();
        assert!(grown.len() <= 1, "{} shards grew", grown.len());
        for (from, to) in grown {
            assert!(to - from <= (from / 8).max(32), "from {from} slots to {to}");
        }
        before = after;
    }
    let (widest, all) = before
        .iter()
        .fold((0, 0), |(most, sum), width| (most.max(*width), sum + width));
    assert!(
        widest * before.len() <= 4 * all,
        "a shard of {widest} slots among {all}: growing it moves as many"
    );
}

#[test]
fn law_12_shards_that_are_held_stop_no_decision_about_keys_of_others() {
    const KEYS: u64 = 10_000;
    let fixture = Fixture::full(KEYS);
    let held = (
        fixture.store.shards[0].lock(),
        fixture.store.shards[1].table.change(),
    );
    let (done, ended) = channel();
    let others = Arc::clone(&fixture);
    let decisions = thread::spawn(move || {
        // Known keys, and newcomers that sweep each of the shards in turn, those that are held too.
        let elsewhere = |key: &u64| others.shard_of(*key) > 1;
        let decided: Vec<_> = (0..2 * KEYS)
            .filter(elsewhere)
            .map(|key| others.take(key))
            .collect();
        done.send(decided.len()).unwrap();
    });
    let decided = ended.recv_timeout(Duration::from_secs(60));
    drop(held);
    decisions.join().unwrap();
    assert!(decided.expect("no decision waits for a shard that is held") > 15_000);
}

/// The locks of all shards are held, so only requests that take none are decided: those on known
/// keys with small states, in whatever shards they are.
#[test]
fn law_12_decisions_on_known_keys_with_small_states_wait_for_no_lock() {
    for policies in [1, 2, 3, 5, 16] {
        let store = Store::new(10_000);
        let policy = |n: usize| {
            Policy::new(&format!("p{n}"), FixedWindow::new(Rate::per_day(9)))
                .unwrap()
                .into()
        };
        let set = PolicySet::new(PolicyTree::All((0..policies).map(policy).collect())).unwrap();
        let set = store.prepare(set).unwrap();
        // The first two keys are equal, so that two of three policies share a shard.
        let keys = |first: u64| {
            (0..policies as u64).map(move |n| Call::from(Key::from(first + n.saturating_sub(1))))
        };
        let all: Vec<Vec<Call>> = (0..20).map(|round| keys(100 * round).collect()).collect();
        all.iter()
            .for_each(|calls| assert!(store.decide(&set, calls, NOW).is_admitted()));
        thread::scope(|scope| {
            let held: Vec<_> = store.shards.iter().map(|shard| shard.lock_rest()).collect();
            let (done, ended) = channel();
            let (store, set, all) = (&store, &set, &all);
            scope.spawn(move || {
                let left = all
                    .iter()
                    .map(|calls| store.decide(set, calls, NOW).remaining());
                done.send(left.collect::<Vec<_>>()).unwrap();
            });
            let left = ended.recv_timeout(Duration::from_secs(60));
            drop(held);
            assert_eq!(
                left.expect("no decision waits for a lock"),
                [7; 20],
                "{policies} policies"
            );
        });
    }
}

#[test]
fn law_14_refusals_and_looks_of_a_known_key_write_nothing() {
    let fixture = Fixture::new(1_000);
    (0..9).for_each(|_| assert!(fixture.take(1).is_admitted()));
    let changes = || fixture.store.shards[fixture.shard_of(1)].table.seen();
    let before = changes();
    assert!(before.is_some() && !fixture.take(1).is_admitted());
    let look = fixture
        .store
        .decide(&fixture.set, &[Call::peek(Key::from(1))], NOW);
    assert_eq!((look.remaining(), changes()), (0, before));
}

#[test]
fn law_09_newcomers_get_the_room_of_idle_keys_in_other_shards() {
    const KEYS: usize = 512;
    // The policies of the set, and those that a request asks.
    for (policies, asked) in [(1, [true; 2]), (2, [true; 2]), (2, [false, true])] {
        let store = Store::new(KEYS);
        let policy = |n: usize| {
            Policy::new(&format!("p{n}"), FixedWindow::new(Rate::per_day(9)))
                .unwrap()
                .into()
        };
        let set = PolicySet::new(PolicyTree::All((0..policies).map(policy).collect())).unwrap();
        let set = store.prepare(set).unwrap();
        let call = |key: u64, asks: &bool| {
            if *asks {
                Call::from(Key::from(key))
            } else {
                Call::SKIP
            }
        };
        let calls = |key: u64| {
            asked[..policies]
                .iter()
                .map(|asks| call(key, asks))
                .collect::<Vec<_>>()
        };
        let take = |key: u64, now| store.decide(&set, &calls(key), now);
        let is_in_first = |key: &u64| store.index(store.key_hasher.hash(&Key::from(*key))) == 0;
        let mut elsewhere = (0..).filter(|key| !is_in_first(key));
        while store.keys() < KEYS {
            assert!(take(elsewhere.next().unwrap(), NOW).is_admitted());
        }
        let (newcomer, later) = (
            (0..).find(is_in_first).unwrap(),
            NOW.after_micros(2 * 86_400_000_000),
        );
        let is_overflow = || take(newcomer, later).statuses()[policies - 1].is_overflow();
        assert!(is_overflow(), "the store is full");
        assert!(
            (0..1_000).any(|_| !is_overflow()),
            "the other keys are idle, and keep their room"
        );
    }
}
