//! States that do not fit a slot: they are found again by a thread that waited, and their places
//! are used again.

use std::thread;
use std::time::Duration;

use super::NOW;
use crate::algorithm::{Algorithm, Gcra, IntoAlgorithm, SlidingLog, SlidingWindow};
use crate::backend::Call;
use crate::decision::Decision;
use crate::key::Key;
use crate::memory::shard::StateWriter;
use crate::memory::slot::Label;
use crate::memory::store::{MemorySet, Store};
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::{AnyCharge, PolicySet, PolicyTree};
use crate::time::Timestamp;

/// A store of one shard.
struct Fixture {
    store: Store,
    set: MemorySet,
}

impl Fixture {
    fn new(algorithm: impl IntoAlgorithm) -> Self {
        let store = Store::new(100);
        let set = store.prepare(Self::policy(algorithm)).unwrap();
        Self { store, set }
    }

    fn policy(algorithm: impl IntoAlgorithm) -> PolicySet {
        PolicySet::new(Policy::new("p", algorithm).unwrap()).unwrap()
    }

    fn change(&mut self, algorithm: impl IntoAlgorithm) {
        self.set = self.store.prepare(Self::policy(algorithm)).unwrap();
    }

    fn take(&self, key: u64) -> Decision {
        self.take_at(key, NOW)
    }

    fn take_at(&self, key: u64, now: Timestamp) -> Decision {
        self.store
            .decide(&self.set, &[Call::from(Key::from(key))], now)
    }

    fn left(&self, key: u64) -> u64 {
        self.store
            .decide(&self.set, &[Call::peek(Key::from(key))], NOW)
            .remaining()
    }

    fn reset(&self, key: u64) {
        self.store.reset(&self.set, 0, &Key::from(key));
    }

    fn label(&self, key: u64) -> Label {
        Label::new(self.store.key_hasher.hash(&Key::from(key)), 1)
    }

    /// States, and places for them.
    fn large_states(&self) -> (usize, usize) {
        self.store.shards[0].lock().rest.large_states()
    }
}

fn log() -> Algorithm {
    SlidingLog::new(Rate::per_day(3)).build().unwrap()
}

/// Another thread forgets the key that a request waits for, and puts another key's state in its
/// place.
#[test]
fn law_06_a_request_that_waited_for_a_large_state_charges_no_other_key() {
    let fixture = Fixture::new(log());
    let shard = &fixture.store.shards[0];
    for _ in 0..5 {
        assert_eq!(fixture.take(1).remaining(), 2);
        let decision = thread::scope(|scope| {
            let rest = shard.lock_rest();
            let waiting = scope.spawn(|| fixture.take(1));
            // Long enough, nearly always, for the request to find its key and wait for the state.
            thread::sleep(Duration::from_millis(20));
            let mut shard = shard.lock_with(rest);
            shard.forget(fixture.label(1), &fixture.store.shared);
            assert!(fixture.store.shared.reserve());
            shard.insert(
                fixture.label(2),
                log().fresh_repr(),
                StateWriter {
                    writer: 0,
                    unnumbered: None,
                },
            );
            drop(shard);
            waiting.join().unwrap()
        });
        assert_eq!(decision.remaining(), 2, "of a key that was forgotten");
        assert_eq!(
            (fixture.left(1), fixture.left(2)),
            (2, 3),
            "nobody has charged the other key"
        );
        fixture.reset(1);
        fixture.reset(2);
        assert_eq!(fixture.store.keys(), 0);
    }
}

#[test]
fn the_places_of_large_states_are_used_again() {
    let mut fixture = Fixture::new(log());
    let (count, later) = (20, NOW.after_micros(2 * 86_400_000_000));
    for round in 0..3 {
        (0..20).for_each(|key| drop(fixture.take(round * 20 + key)));
        assert_eq!(fixture.large_states(), (count, count), "round {round}");
        (0..20).for_each(|key| fixture.reset(round * 20 + key));
        assert_eq!(
            fixture.large_states(),
            (0, count),
            "a state that was reset takes up no memory"
        );
    }
    (0..20).for_each(|key| drop(fixture.take(key)));
    (0..2).for_each(|_| fixture.store.sweep_elsewhere(later));
    assert_eq!(
        (fixture.store.keys(), fixture.large_states()),
        (0, (0, count)),
        "swept"
    );
    for _ in 0..2 {
        (0..20).for_each(|key| drop(fixture.take(key)));
        fixture.store.reset_all("");
        assert_eq!(
            (fixture.store.keys(), fixture.large_states()),
            (0, (0, count)),
            "reset all at once"
        );
    }
    // After a charge under other parameters the slot has their state: a large one in the place of a
    // large or a small one, and a small one in the place of a large one.
    for _ in 0..2 {
        fixture.change(SlidingLog::new(Rate::per_day(50)));
        (0..20).for_each(|key| drop(fixture.take(key)));
        assert_eq!(fixture.large_states(), (count, count));
        fixture.change(SlidingWindow::new(Rate::per_day(50)));
        (0..20).for_each(|key| drop(fixture.take(key)));
        assert_eq!(fixture.large_states(), (count, count));
        fixture.change(Gcra::new(Rate::per_day(50)));
        (0..20).for_each(|key| drop(fixture.take(key)));
        assert_eq!(fixture.large_states(), (0, count));
    }
}

/// Requests that do not take the fast path move a state out of its place and in again.
#[test]
fn a_decision_that_moves_a_large_state_leaves_it_one_place() {
    let store = Store::new(100);
    let member = |name| {
        Policy::new(name, SlidingLog::new(Rate::per_day(9)))
            .unwrap()
            .into()
    };
    let any = PolicyTree::Any(vec![member("a"), member("b")], AnyCharge::EveryAdmitting);
    let set = store.prepare(PolicySet::new(any).unwrap()).unwrap();
    let take = || store.decide(&set, &[1, 2].map(|key| Call::from(Key::from(key))), NOW);
    for expected in [8, 7, 6] {
        assert!(
            take()
                .statuses()
                .iter()
                .all(|status| status.remaining() == expected)
        );
        assert_eq!(store.shards[0].lock().rest.large_states(), (2, 2));
    }
}
