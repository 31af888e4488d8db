//! The store under the orders in which threads can take their steps, as the C++ memory model has
//! them (loom).
//!
//! Not a part of the usual tests, because it needs a build of its own: `tests/models.sh` runs it.

use std::sync::Arc;
use std::time::Duration;

use loom::model::Builder;
use loom::thread;

use super::store::{MemorySet, Store};
use crate::algorithm::{FixedWindow, Gcra, SlidingLog};
use crate::backend::{Call, Receipt};
use crate::decision::Decision;
use crate::key::Key;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::{AnyCharge, PolicySet, PolicyTree};
use crate::time::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);
const TOMORROW: Timestamp = NOW.after_micros(2 * 86_400_000_000);

/// Runs a model in every order in which threads lose their processor at most once
/// (`LOOM_MAX_PREEMPTIONS` sets another number of times).
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(1));
    builder.max_branches = 100_000;
    builder.check(run);
}

struct Fixture {
    store: Store,
    set: MemorySet,
}

impl Fixture {
    /// A store with one policy of `limit` units a day.
    fn new(max_keys: usize, limit: u64) -> Arc<Self> {
        let policy = Policy::new("p", FixedWindow::new(Rate::per_day(limit))).unwrap();
        Self::with(max_keys, policy.into())
    }

    fn with(max_keys: usize, tree: PolicyTree) -> Arc<Self> {
        let store = Store::new(max_keys);
        let set = store.prepare(PolicySet::new(tree).unwrap()).unwrap();
        Arc::new(Self { store, set })
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
}

/// Runs a step in two threads, and another one in this. Returns what the three return.
fn three<T: 'static>(
    fixture: &Arc<Fixture>,
    first: impl Fn(&Fixture) -> T + 'static,
    second: impl Fn(&Fixture) -> T + 'static,
    third: impl Fn(&Fixture) -> T,
) -> [T; 3] {
    let (one, other) = (Arc::clone(fixture), Arc::clone(fixture));
    let one = thread::spawn(move || first(&one));
    let other = thread::spawn(move || second(&other));
    let third = third(fixture);
    [one.join().unwrap(), other.join().unwrap(), third]
}

fn admitted(decisions: &[Decision]) -> usize {
    decisions
        .iter()
        .filter(|decision| decision.is_admitted())
        .count()
}

#[test]
fn law_06_three_requests_for_two_units_of_a_known_key() {
    model(|| {
        let fixture = Fixture::new(100, 3);
        assert!(fixture.take(1).is_admitted());
        let take = |fixture: &Fixture| fixture.take(1);
        assert_eq!(admitted(&three(&fixture, take, take, take)), 2);
        assert_eq!(fixture.left(1), 0);
    });
}

#[test]
fn law_06_three_requests_for_one_unit_of_a_new_key() {
    model(|| {
        let fixture = Fixture::new(100, 1);
        let take = |fixture: &Fixture| fixture.take(1);
        assert_eq!(admitted(&three(&fixture, take, take, take)), 1);
        assert_eq!(fixture.store.keys(), 1);
    });
}

/// A look that runs beside a charge and its refund sees the state before, between or after.
#[test]
fn law_06_a_look_beside_a_charge_and_a_refund_sees_no_mixture() {
    model(|| {
        // A unit each 1,500,000.5 µs, so that both words of the state change: a mixture is half a
        // microsecond off.
        let gcra = Gcra::new(Rate::new(2, Duration::from_micros(3_000_001))).burst(4);
        let fixture = Fixture::with(100, Policy::new("p", gcra).unwrap().into());
        let first = fixture.take(1);
        let reset = |fixture: &Fixture| {
            fixture
                .store
                .decide(&fixture.set, &[Call::peek(Key::from(1))], NOW)
                .reset_after()
        };
        let refund = move |fixture: &Fixture| {
            let calls = [Call::from(Key::from(1))];
            let decision = fixture.store.decide(&fixture.set, &calls, NOW);
            let receipt = Receipt::of(&decision, &calls).map(|receipt| receipt.actual(0));
            fixture.store.settle(&fixture.set, receipt.unwrap(), NOW);
        };
        let before = first.reset_after();
        let between = before + Duration::from_micros(1_500_000);
        let other = Arc::clone(&fixture);
        let refunding = thread::spawn(move || refund(&other));
        let looking = Arc::clone(&fixture);
        let looking = thread::spawn(move || reset(&looking));
        for seen in [reset(&fixture), looking.join().unwrap()] {
            assert!(seen == before || seen == between, "{seen:?}");
        }
        refunding.join().unwrap();
        assert_eq!(reset(&fixture), before);
    });
}

#[test]
fn law_06_charges_beside_an_insert_that_grows_the_table() {
    model(|| {
        let fixture = Fixture::new(100, 3);
        // One of two slots: the next insert moves the key.
        assert!(fixture.take(1).is_admitted());
        let take = |fixture: &Fixture| fixture.take(1);
        let all = three(&fixture, take, |fixture| fixture.take(2), take);
        assert_eq!(admitted(&all), 3);
        assert_eq!(
            (fixture.left(1), fixture.left(2), fixture.store.keys()),
            (0, 2, 2)
        );
    });
}

#[test]
fn law_06_charges_beside_a_sweep_that_forgets_their_key() {
    model(|| {
        let fixture = Fixture::new(100, 2);
        assert!(fixture.take(1).is_admitted());
        let take = |fixture: &Fixture| fixture.take_at(1, TOMORROW);
        let all = three(&fixture, take, |fixture| fixture.take_at(2, TOMORROW), take);
        assert_eq!(admitted(&all), 3, "yesterday's unit does not count");
        assert!(!fixture.take_at(1, TOMORROW).is_admitted());
    });
}

#[test]
fn law_09_newcomers_of_a_full_store_share_one_bucket() {
    model(|| {
        let fixture = Fixture::new(1, 2);
        assert!(fixture.take(1).is_admitted());
        let all = three(
            &fixture,
            |fixture| fixture.take(2),
            |fixture| fixture.take(3),
            |fixture| fixture.take(1),
        );
        assert_eq!(admitted(&all), 3);
        assert_eq!(
            admitted(&[fixture.take(1), fixture.take(2), fixture.take(3)]),
            0
        );
    });
}

/// A key with a large state is forgotten and its state's place given to another key, while two
/// requests charge it.
#[test]
fn law_06_charges_of_a_large_state_beside_a_key_that_takes_its_place() {
    model(|| {
        let fixture = Fixture::with(
            100,
            Policy::new("p", SlidingLog::new(Rate::per_day(3)))
                .unwrap()
                .into(),
        );
        assert!(fixture.take(1).is_admitted());
        let take = |fixture: &Fixture| fixture.take(1);
        let replace = |fixture: &Fixture| {
            fixture.store.reset(&fixture.set, 0, &Key::from(1));
            fixture.take(2)
        };
        assert_eq!(admitted(&three(&fixture, take, replace, take)), 3);
        // Requests before the reset are forgotten with the key.
        assert!((1..=3).contains(&fixture.left(1)));
        assert_eq!(fixture.left(2), 2, "charged by its own request");
    });
}

/// An `all` and an `any` with a large state lock the same two shards, in different ways.
#[test]
fn law_12_an_all_and_an_any_with_a_large_state_do_not_wait_for_each_other() {
    model(|| {
        let members = || {
            let small = Policy::new("small", FixedWindow::new(Rate::per_day(9)))
                .unwrap()
                .into();
            vec![
                small,
                Policy::new("large", SlidingLog::new(Rate::per_day(3)))
                    .unwrap()
                    .into(),
            ]
        };
        let fixture = Fixture::with(1_000, PolicyTree::All(members()));
        let any = PolicySet::new(PolicyTree::Any(members(), AnyCharge::EveryAdmitting)).unwrap();
        let any = fixture.store.prepare(any).unwrap();
        let shard = |key: &u64| {
            fixture
                .store
                .index(fixture.store.key_hasher.hash(&Key::from(*key)))
        };
        let calls = [0, 1].map(|wanted| (1..).find(|key| shard(key) == wanted).unwrap());
        let calls = calls.map(|key| Call::from(Key::from(key)));
        let take = |fixture: &Fixture, set: &MemorySet, calls: &[Call]| {
            fixture.store.decide(set, calls, NOW)
        };
        assert!(take(&fixture, &fixture.set, &calls).is_admitted());
        let (other, same) = (Arc::clone(&fixture), calls.clone());
        let other = thread::spawn(move || take(&other, &any, &same));
        assert!(take(&fixture, &fixture.set, &calls).is_admitted());
        assert!(other.join().unwrap().is_admitted());
        assert!(!take(&fixture, &fixture.set, &calls).is_admitted());
    });
}

#[test]
fn law_06_two_keys_in_opposite_orders_beside_a_charge_of_one() {
    model(|| {
        let policy = |name| {
            Policy::new(name, FixedWindow::new(Rate::per_day(3)))
                .unwrap()
                .into()
        };
        let fixture = Fixture::with(1_000, PolicyTree::All(vec![policy("a"), policy("b")]));
        let shard = |key: u64| {
            fixture
                .store
                .index(fixture.store.key_hasher.hash(&Key::from(key)))
        };
        assert_ne!(shard(1), shard(2));
        let take = |fixture: &Fixture, first: u64, second: u64| {
            fixture.store.decide(
                &fixture.set,
                &[first, second].map(|key| Call::from(Key::from(key))),
                NOW,
            )
        };
        assert!(take(&fixture, 1, 2).is_admitted() && take(&fixture, 2, 1).is_admitted());
        let all = three(
            &fixture,
            move |fixture| take(fixture, 1, 2),
            move |fixture| take(fixture, 2, 1),
            move |fixture| take(fixture, 1, 2),
        );
        assert!(all[1].is_admitted());
        assert_eq!(admitted(&all), 3);
        assert!(!take(&fixture, 1, 2).is_admitted());
    });
}

/// Of three requests for the same two keys, those that come late find slots that the first has
/// added.
#[test]
fn law_06_two_new_keys_in_opposite_orders() {
    model(|| {
        let policy = |name| {
            Policy::new(name, FixedWindow::new(Rate::per_day(3)))
                .unwrap()
                .into()
        };
        let fixture = Fixture::with(1_000, PolicyTree::All(vec![policy("a"), policy("b")]));
        let calls = |first: u64, second: u64| [first, second].map(|key| Call::from(Key::from(key)));
        let take = move |fixture: &Fixture, first, second| {
            fixture
                .store
                .decide(&fixture.set, &calls(first, second), NOW)
        };
        let one = move |fixture: &Fixture| take(fixture, 1, 2);
        assert_eq!(
            admitted(&three(
                &fixture,
                one,
                move |fixture| take(fixture, 2, 1),
                one
            )),
            3
        );
        assert_eq!(fixture.store.keys(), 4);
        let look = |key| [Call::peek(Key::from(key)), Call::SKIP];
        assert_eq!(
            [1, 2].map(|key| fixture
                .store
                .decide(&fixture.set, &look(key), NOW)
                .remaining()),
            [1, 2]
        );
    });
}
