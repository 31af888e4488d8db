//! Keys with exceptions: exempt, blocked, banned or under another limit until an instant, and as
//! before from then on. That a store decides as the algorithms do is checked by the kit's traces,
//! and that a decision is true by laws 1 to 4.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::backend::{Ban, Call, Exception, KeyStep, Receipt, Treatment, drain};
use throttle_core::{
    Algorithm, Backend, BoxBackend, FixedWindow, Gcra, IntoAlgorithm, Key, LocalShareBackend,
    MemoryBackend, Policy, PolicySet, Rate, Timestamp,
};

use super::law_07_lying_clocks::every_algorithm;
use crate::support::machines::{InMemory, Machine, Pure, answered};
use crate::support::spec::{TODAY, Tree};

const T0: Timestamp = Timestamp::from_micros(TODAY);
const MINUTE: i64 = 60_000_000;

fn until(treatment: Treatment, micros: i64) -> Option<Exception> {
    let until = Timestamp::from_micros(TODAY + micros);
    Some(Exception { treatment, until })
}

fn limit(algorithm: impl IntoAlgorithm) -> Treatment {
    Treatment::Limit(Arc::new(algorithm.into_algorithm().unwrap()))
}

fn except(store: &InMemory, key: &str, exception: Option<Exception>) -> Result<(), String> {
    store
        .run(0, KeyStep::Except(Key::from(key), exception))
        .map(drop)
}

/// A store of so many keys of a limit of nine a day.
fn nine_a_day(max_keys: usize) -> InMemory {
    let store = InMemory::of_limit(Gcra::new(Rate::per_day(9)), max_keys);
    store.clock.set(T0);
    store
}

/// Six of nine units are used, on a limit of nine a day.
#[test]
fn each_treatment_is_over_at_its_instant_and_what_was_used_stays_used() {
    for (treatment, during, after) in [
        (Treatment::Exempt, [Some(9), Some(9)], Some(2)),
        (Treatment::Blocked, [None, None], Some(2)),
        (
            limit(FixedWindow::new(Rate::per_day(20))),
            [Some(13), Some(12)],
            Some(0),
        ),
        (
            limit(FixedWindow::new(Rate::per_day(7))),
            [Some(0), None],
            Some(1),
        ),
    ] {
        let store = InMemory::of_limit(FixedWindow::new(Rate::per_day(9)), 9);
        let left = |at: i64, cost| {
            let decision = store.take_for(TODAY + at, "ada", cost).0;
            let is_excepted = decision.statuses()[0].is_excepted();
            assert_eq!(is_excepted, (1..1_000).contains(&at));
            decision.is_admitted().then(|| decision.remaining())
        };
        assert_eq!(left(0, 6), Some(3));
        except(&store, "ada", until(treatment.clone(), 1_000)).unwrap();
        assert_eq!([left(1, 1), left(999, 1)], during, "{treatment:?}");
        assert_eq!(left(1_000, 1), after, "{treatment:?}");
    }
}

/// A request is admitted by the limit of the exception in the instant in which the exception is
/// over: a tenth of an hour.
#[test]
fn law_02_wait_that_ends_with_the_exception_goes_on_under_the_limit() {
    let burst = |burst| Gcra::new(Rate::per_hour(10)).burst(burst);
    let few = burst(1).into_algorithm().unwrap();
    for (seconds, wait) in [(361, 360), (360, 3_600), (359, 3_600)] {
        let exception = until(limit(burst(10)), seconds * 1_000_000);
        let mut states = [few.fresh().excepted(exception)];
        let set = PolicySet::new(Policy::new("p", few).unwrap()).unwrap();
        let mut decide = |cost| {
            set.decide(
                &mut states,
                T0,
                &[Call::from(Key::from("ada")).costing(cost)],
            )
            .retry_after()
        };
        assert_eq!(
            [decide(10), decide(1)],
            [0, wait].map(|wait| Some(Duration::from_secs(wait))),
            "{seconds} s"
        );
    }
}

/// Whether it had an exception or not.
#[test]
fn law_08_drained_key_is_as_after_one_charge_of_all_that_it_had_left() {
    for spec in every_algorithm() {
        for is_blocked in [false, true] {
            let tree = Tree::Leaf(spec);
            let (store, mut state) = (InMemory::new(&tree), Pure::new(&tree));
            let mut take = |at: i64, cost| {
                let expected = state.take(TODAY + at, cost).0;
                (store.take_for(TODAY + at, "ada", cost).0, expected)
            };
            let (found, expected) = take(0, 2);
            assert_eq!(found, expected);
            let _ = take(MINUTE, 0).1;
            if is_blocked {
                except(&store, "ada", until(Treatment::Blocked, 9 * MINUTE)).unwrap();
            }
            let call = Call::peek(Key::from("ada")).reserving(1);
            store.drain(0, &call).unwrap();
            let left = state.peek(TODAY + MINUTE).remaining();
            assert!(state.take(TODAY + MINUTE, left).0.is_admitted());
            for minutes in [1, 9, 60, 600, 1_440, 2_880] {
                let at = TODAY + minutes * MINUTE;
                for cost in [0, 1] {
                    let found = store.take_for(at, "ada", cost).0;
                    assert_eq!(found, state.take(at, cost).0, "{spec:?} at {minutes} min");
                }
            }
        }
    }
}

#[test]
fn key_that_shares_the_overflow_bucket_of_a_full_store_is_not_drained() {
    let store = nine_a_day(1);
    let take = |key: u64| store.take_for(TODAY, key, 1).0;
    let kept = (0..)
        .take_while(|key| !take(*key).statuses()[0].is_overflow())
        .count() as u64;
    assert_eq!(
        store
            .drain(0, &Call::from(Key::from(kept + 1)))
            .unwrap_err(),
        "the store is full of live keys: raise max_keys"
    );
    assert!(
        take(kept + 2).is_admitted(),
        "other keys have that bucket, too"
    );
}

#[test]
fn law_09_ten_thousand_exceptions_stay_until_they_are_over() {
    let store = nine_a_day(10_000);
    let blocked = || until(Treatment::Blocked, MINUTE);
    for n in 0..10_000_u64 {
        let step = KeyStep::Except(Key::from(n), blocked());
        store.run(0, step).unwrap();
    }
    let take = |at: i64, n: u64| store.take_for(TODAY + at, n, 1).0;
    let is_overflow = |at, n| take(at, n).statuses()[0].is_overflow();
    let list = |most| store.run(0, KeyStep::Exceptions { most }).unwrap();
    // The store is full of them, so other keys share buckets.
    assert!((10_000..11_000).all(|n| is_overflow(0, n)));
    assert!((0..10_000).all(|n| !take(0, n).is_admitted()));
    let listed = list(usize::MAX);
    assert_eq!(listed.len(), 10_000);
    assert!(
        listed
            .iter()
            .all(|listed| Some(&listed.exception) == blocked().as_ref())
    );
    assert_eq!(list(7).len(), 7);
    store.clock.set(T0.after_micros(MINUTE as u64));
    assert!(list(usize::MAX).is_empty());
    let fits = (20_000..29_000)
        .filter(|n| !is_overflow(MINUTE, *n))
        .count();
    assert!(fits > 8_000, "they have made room: {fits}");
}

#[test]
fn exception_that_cannot_be_is_an_error_and_changes_nothing() {
    let store = nine_a_day(1);
    let take = |cost| store.take_for(TODAY, "eve", cost).0.is_admitted();
    assert!(take(9));
    let exempt = |at| until(Treatment::Exempt, at);
    let other = until(limit(Gcra::new(Rate::per_second(1))), 9);
    for (key, exception, why) in [
        ("ada", exempt(9), "the store is full of live keys"),
        (
            "eve",
            exempt(0),
            "it must be after the present time of the store",
        ),
        ("eve", other, "at most 100 times as long"),
    ] {
        let error = except(&store, key, exception).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let listed = store.run(0, KeyStep::Exceptions { most: 9 }).unwrap();
    assert!(listed.is_empty());
    assert!(except(&store, "eve", exempt(9)).is_ok(), "it has a slot");
    assert!(take(1));
    assert!(except(&store, "eve", None).is_ok());
    assert!(!take(1));
}

/// An hour under one window or bucket, with an exception of another kind between the charge and its
/// settlement.
#[test]
fn law_10_an_exception_opens_no_later_window_to_a_settlement() {
    let window = FixedWindow::new(Rate::per_hour(100)).into_algorithm();
    let bucket = |count| Gcra::new(Rate::per_hour(count));
    let per_minute = || limit(FixedWindow::new(Rate::per_minute(1_000)));
    let store = |algorithm: Algorithm| {
        let store = InMemory::of_limit(algorithm, 9);
        store.clock.set(T0);
        store
    };
    let take = |store: &InMemory, minutes: i64| {
        let (decision, receipt) = store.take_for(TODAY + minutes * MINUTE, "ada", 100);
        (decision.is_admitted(), receipt)
    };
    let settle = |store: &InMemory, receipt: Option<Receipt>| {
        let settle =
            |receipt: Receipt| store.backend.settle_now(&store.prepared, receipt.actual(0));
        receipt.map(settle);
    };
    // Set after the charge: the charge's own window is over.
    let one = store(window.unwrap());
    let (_, old) = take(&one, 0);
    assert!(take(&one, 61).0);
    except(&one, "ada", until(limit(bucket(200)), 65 * MINUTE)).unwrap();
    settle(&one, old);
    assert!(!take(&one, 66).0, "the window of the charge was over");
    // Over before the settlement: what the exception's limit has charged is not given back.
    let one = store(bucket(100).into_algorithm().unwrap());
    except(&one, "ada", until(per_minute(), 2 * MINUTE)).unwrap();
    let (admitted, old) = take(&one, 0);
    assert!(admitted && old.is_none());
    assert!(take(&one, 3).0);
    settle(&one, old);
    assert!(!take(&one, 4).0);
    // A charge of the policy is given back while another limit decides.
    let one = store(bucket(100).into_algorithm().unwrap());
    let (_, charged) = take(&one, 0);
    except(&one, "ada", until(per_minute(), 2 * MINUTE)).unwrap();
    settle(&one, charged);
    assert!(take(&one, 2).0);
}

/// A key that the store does not know may have been used and forgotten before the clock was set
/// back.
#[test]
fn law_07_an_exception_gives_no_budget_to_a_key_of_the_future() {
    let store = InMemory::of_limit(Gcra::new(Rate::per_hour(10)), 1);
    assert!(store.take_for(TODAY, "ada", 10).0.is_admitted());
    assert!(
        store
            .take_for(TODAY + 120 * MINUTE, "bob", 1)
            .0
            .is_admitted(),
        "in the slot of ada, who counts as unused by now"
    );
    store.run(0, KeyStep::Reset(Key::from("bob"))).unwrap();
    store.clock.set(T0);
    let refused = except(&store, "ada", until(Treatment::Blocked, 1)).unwrap_err();
    assert!(refused.starts_with("the clock is behind"), "{refused}");
}

/// A request of an operator for a limit that is not there must not look as if it had worked. That it
/// is an error of every step is checked by the kit's traces.
#[test]
fn an_index_without_a_policy_is_an_error_that_names_it() {
    fn errors<B: Backend>(backend: &B) -> [String; 2] {
        let set = PolicySet::new(Policy::new("p", Gcra::new(Rate::per_day(9))).unwrap()).unwrap();
        let set = Arc::new(backend.prepare(set).unwrap());
        let strike = KeyStep::Strike(Key::from("ada"), Ban::after(1));
        let struck = answered(backend.run(&set, 7, strike)).unwrap_err();
        let backend = backend.clone();
        let drained = answered(Box::pin(async move {
            drain(&backend, &set, 7, &Call::from(Key::from("ada"))).await
        }));
        [struck, drained.unwrap_err()]
    }
    let memory = MemoryBackend::new();
    let share = LocalShareBackend::new(memory.clone(), NonZeroU32::MIN);
    let boxed = BoxBackend::new(memory.clone());
    let why = "policy is 7: an index must be below 1, the number of policies in the set";
    let errors = [errors(&memory), errors(&share), errors(&boxed)];
    assert_eq!(errors, [[why; 2]; 3]);
}
