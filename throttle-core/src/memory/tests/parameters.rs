//! Parameters that are not those of the first tier: what a store holds of them, and until when.

use super::NOW;
use crate::algorithm::{Algorithm, FixedWindow, IntoAlgorithm, SlidingLog};
use crate::backend::Call;
use crate::decision::Decision;
use crate::key::Key;
use crate::memory::store::{MemorySet, Store};
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::PolicySet;
use crate::time::Timestamp;

const TOMORROW: Timestamp = NOW.after_micros(86_400_000_000);
const LATER: Timestamp = TOMORROW.after_micros(86_400_000_000);

/// A store of one shard.
struct Fixture {
    store: Store,
    set: MemorySet,
    policy: Policy,
}

impl Fixture {
    fn new(max_keys: usize) -> Self {
        let (store, policy) = (Store::new(max_keys), Policy::new("p", per_day(50)).unwrap());
        let set = prepare(&store, "p", per_day(50));
        Self { store, set, policy }
    }

    /// Charges one unit under a key's own parameters.
    fn take(&self, key: u64, own: impl IntoAlgorithm, now: Timestamp) -> u64 {
        let call = Call::from(Key::from(key)).under(self.policy.own(own).unwrap());
        let decision = self.store.decide(&self.set, &[call], now);
        assert!(decision.is_admitted() && !decision.statuses()[0].is_overflow());
        decision.remaining()
    }

    /// Keys, those of them whose states do not fit their slots, and places for such states.
    fn stored(&self) -> (usize, usize, usize) {
        let (states, places) = self.store.shards[0].lock().rest.large_states();
        (self.store.keys(), states, places)
    }

    fn sweep(&self, now: Timestamp) {
        (0..2).for_each(|_| self.store.sweep_elsewhere(now));
    }
}

fn prepare(store: &Store, name: &str, algorithm: impl IntoAlgorithm) -> MemorySet {
    store
        .prepare(PolicySet::new(Policy::new(name, algorithm).unwrap()).unwrap())
        .unwrap()
}

fn take(store: &Store, set: &MemorySet, key: u64, now: Timestamp) -> Decision {
    store.decide(set, &[Call::from(Key::from(key))], now)
}

fn per_day(count: u64) -> FixedWindow {
    FixedWindow::new(Rate::per_day(count))
}

fn log(count: u64) -> Algorithm {
    SlidingLog::new(Rate::per_day(count)).build().unwrap()
}

#[test]
fn states_of_own_parameters_are_freed_with_their_keys() {
    let fixture = Fixture::new(100);
    let charge = || {
        for key in 0..20 {
            for number in 0..20 {
                let count = 1_000 + 20 * key + number;
                let left = if number % 2 == 0 {
                    fixture.take(key, per_day(count), NOW)
                } else {
                    fixture.take(key, log(count), NOW)
                };
                assert_eq!(
                    left,
                    count - 1 - number,
                    "all that was charged under others counts"
                );
            }
        }
        assert_eq!(fixture.stored(), (20, 20, 20), "one state for each key");
    };
    for _ in 0..2 {
        charge();
        (0..20).for_each(|key| fixture.store.reset(&fixture.set, 0, &Key::from(key)));
        assert_eq!(fixture.stored(), (0, 0, 20), "reset");
        charge();
        fixture.store.reset_all("p");
        assert_eq!(fixture.stored(), (0, 0, 20), "reset all at once");
        charge();
        fixture.sweep(NOW);
        assert_eq!(fixture.stored(), (20, 20, 20), "in use");
        fixture.sweep(LATER);
        assert_eq!(fixture.stored(), (0, 0, 20), "swept");
    }
}

/// A charge in a tier puts a small state back into the slot.
#[test]
fn a_charge_in_a_tier_frees_the_place_of_own_parameters() {
    let fixture = Fixture::new(100);
    assert_eq!(fixture.take(1, per_day(90), NOW), 89);
    assert_eq!(fixture.stored(), (1, 1, 1));
    assert_eq!(take(&fixture.store, &fixture.set, 1, NOW).remaining(), 48);
    assert_eq!(fixture.stored(), (1, 0, 1));
}

/// The parameters after the 255th of one policy have no number in a slot.
#[test]
fn more_parameters_than_numbers_decide_exactly_and_are_freed() {
    const LIMITS: u64 = 600;
    let store = Store::new(128);
    let sets: Vec<MemorySet> = (0..LIMITS)
        .map(|n| prepare(&store, "p", per_day(1_000 + n)))
        .collect();
    let large = || store.shards[0].lock().rest.large_states();
    for day in 0..3 {
        let now = NOW.after_micros(day * 86_400_000_000);
        for (number, set) in (0..).zip(&sets) {
            // One key that every limit charges in turn, and one for each few of them.
            let decision = take(&store, set, 1_000, now);
            assert_eq!(
                decision.remaining(),
                1_000 + number - (number + 1),
                "limit {number}, day {day}"
            );
            let key = number % 60;
            assert_eq!(
                take(&store, set, key, now).remaining(),
                1_000 + number - number / 60 - 1,
                "limit {number}"
            );
        }
        let first = store.decide(&sets[0], &[Call::peek(Key::from(1_000))], now);
        assert_eq!(
            first.remaining(),
            1_000 - LIMITS,
            "those without a number are read by those with one"
        );
        assert_eq!(
            (store.keys(), large()),
            (61, (61, 61)),
            "one state for each key, day {day}"
        );
        (0..2).for_each(|_| store.sweep_elsewhere(now));
        assert_eq!(store.keys(), 61, "in use");
    }
    // One sweep passes a part of a shard of so many keys.
    (0..8).for_each(|_| store.sweep_elsewhere(LATER.after_micros(86_400_000_000)));
    assert_eq!((store.keys(), large()), (0, (0, 61)), "swept");
}

#[test]
fn policy_beyond_the_last_number_is_refused_with_their_bound() {
    let (store, policies) = (Store::new(1), 1_023);
    (0..policies).for_each(|n| drop(prepare(&store, &n.to_string(), per_day(1))));
    let set = |name| PolicySet::new(Policy::new(name, per_day(1)).unwrap()).unwrap();
    let error = store.prepare(set("one more")).unwrap_err().to_string();
    assert!(
        error.contains("number of policies is 1024") && error.contains("at most 1023"),
        "{error}"
    );
    assert!(store.prepare(set("7")).is_ok(), "a name that is known");
}

/// The other keys are those of another limit, or of another limit of the same name.
#[test]
fn law_09_a_full_shard_forgets_each_key_by_its_own_limit() {
    for other in ["p", "q"] {
        let store = Store::new(128);
        let day = prepare(&store, "p", per_day(50));
        (0..12).for_each(|key| assert_eq!(take(&store, &day, key, NOW).remaining(), 49));
        let second = prepare(&store, other, FixedWindow::new(Rate::per_second(9)));
        (12..28).for_each(|key| assert_eq!(take(&store, &second, key, NOW).remaining(), 8));
        let later = NOW.after_micros(2_000_000);
        assert_eq!(take(&store, &second, 28, later).remaining(), 8);
        assert_eq!(
            store.keys(),
            12 + 1,
            "{other}: those of the last second are idle, and no other"
        );
        (0..12)
            .for_each(|key| assert_eq!(take(&store, &day, key, later).remaining(), 48, "{other}"));
    }
}
