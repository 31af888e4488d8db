//! Keys that were charged under several sets of parameters: what the side table holds of them, and until when.

use super::NOW;
use crate::algorithm::{Carry, FixedWindow, IntoAlgorithm, SlidingLog};
use crate::backend::{Call, Receipt};
use crate::decision::Decision;
use crate::key::Key;
use crate::memory::store::{MemorySet, Store};
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// A store of one shard.
struct Desk {
    store: Store,
    set: MemorySet,
}

impl Desk {
    fn new(max_keys: usize) -> Self {
        let store = Store::new(max_keys);
        let set = prepare(&store, per_day(50));
        Self { store, set }
    }

    fn replace(&mut self, algorithm: impl IntoAlgorithm) {
        self.set = prepare(&self.store, algorithm);
    }

    fn take_at(&self, key: u64, now: Timestamp) -> Decision {
        self.store.decide(&self.set, &[Call::from(Key::from(key))], now)
    }

    fn take(&self, key: u64) -> u64 {
        let decision = self.take_at(key, NOW);
        assert!(decision.is_admitted());
        decision.remaining()
    }

    /// Keys, those of them that have kin, and large states.
    fn held(&self) -> (usize, usize, usize) {
        let shard = self.store.shards[0].lock();
        (self.store.keys(), shard.rest.keys_with_kin(), shard.rest.large_states().0)
    }
}

fn prepare(store: &Store, algorithm: impl IntoAlgorithm) -> MemorySet {
    let policy = Policy::new("p", algorithm).unwrap().replace_existing();
    store.prepare(PolicySet::new(policy).unwrap()).unwrap()
}

fn per_day(count: u64) -> FixedWindow {
    FixedWindow::new(Rate::per_day(count))
}

const TOMORROW: Timestamp = NOW.after_micros(86_400_000_000);

#[test]
fn kin_go_with_their_key() {
    let mut desk = Desk::new(100);
    let log = SlidingLog::new(Rate::per_day(90));
    let charge_both = |desk: &mut Desk| {
        desk.replace(per_day(50));
        (0..20).for_each(|key| _ = desk.take(key));
        desk.replace(log);
        (0..20).for_each(|key| assert_eq!(desk.take(key), 88));
        assert_eq!(desk.held(), (20, 20, 20));
    };
    charge_both(&mut desk);
    (0..20).for_each(|key| desk.store.reset(&desk.set, 0, &Key::from(key)));
    assert_eq!(desk.held(), (0, 0, 0), "reset");
    charge_both(&mut desk);
    desk.store.reset_all("p");
    assert_eq!(desk.held(), (0, 0, 0), "reset all at once");
    charge_both(&mut desk);
    (0..2).for_each(|_| desk.store.sweep_elsewhere(TOMORROW.after_micros(86_400_000_000)));
    assert_eq!(desk.held(), (0, 0, 0), "swept");
}

/// The fixed window is over, and the log still counts.
#[test]
fn law_09_a_key_is_forgotten_only_when_all_of_its_states_are_fresh() {
    let mut desk = Desk::new(2);
    desk.replace(SlidingLog::new(Rate::per_day(90)));
    assert_eq!(desk.take(1), 89);
    desk.replace(per_day(50));
    assert_eq!(desk.take(1), 48);
    // The day of `NOW` ends in 35,200 s.
    let window_is_over = NOW.after_micros(40_000_000_000);
    for key in 2..40 {
        drop(desk.take_at(key, window_is_over));
    }
    desk.replace(SlidingLog::new(Rate::per_day(90)));
    let decision = desk.store.decide(&desk.set, &[Call::peek(Key::from(1))], window_is_over);
    assert_eq!(decision.remaining(), 88, "both charges were less than a day ago");
    let shard = desk.store.shards[0].lock();
    assert_eq!(shard.rest.keys_with_kin(), 1);
}

#[test]
fn growing_a_shard_moves_keys_and_leaves_their_kin() {
    let mut desk = Desk::new(128);
    assert_eq!(desk.take(0), 49);
    desk.replace(per_day(90));
    assert_eq!(desk.take(0), 88);
    (1..100).for_each(|key| _ = desk.take(key));
    desk.replace(per_day(50));
    assert_eq!(desk.take(0), 47, "it has counted all three");
    assert_eq!(desk.held(), (100, 1, 0));
}

/// The other keys are those of another limit, or of the same one that was changed.
#[test]
fn law_09_a_shard_that_is_full_forgets_each_key_by_the_limit_that_it_was_charged_under() {
    for other in ["p", "q"] {
        let store = Store::new(128);
        let put_in_force = |name, algorithm: FixedWindow| {
            let policy = Policy::new(name, algorithm).unwrap().replace_existing();
            store.prepare(PolicySet::new(policy).unwrap()).unwrap()
        };
        let take = |set: &MemorySet, key: u64, now| store.decide(set, &[Call::from(Key::from(key))], now).remaining();
        let day = put_in_force("p", per_day(50));
        (0..12).for_each(|key| assert_eq!(take(&day, key, NOW), 49));
        let second = put_in_force(other, FixedWindow::new(Rate::per_second(9)));
        (12..28).for_each(|key| assert_eq!(take(&second, key, NOW), 8));
        let later = NOW.after_micros(2_000_000);
        assert_eq!(take(&second, 28, later), 8);
        assert_eq!(store.keys(), 12 + 1, "{other}: those of the last second are idle, and no other");
        let day = put_in_force("p", per_day(50));
        (0..12).for_each(|key| assert_eq!(take(&day, key, later), 48, "{other}"));
    }
}

#[test]
fn a_key_that_was_idle_is_an_ordinary_one_again() {
    let mut desk = Desk::new(100);
    desk.take(1);
    desk.replace(per_day(90));
    desk.take(1);
    assert_eq!(desk.held(), (1, 1, 0));
    assert_eq!(desk.take_at(1, TOMORROW).remaining(), 89);
    assert_eq!(desk.held(), (1, 0, 0));
    let shard = desk.store.shards[0].lock();
    let slots: Vec<_> = (0..64).filter_map(|at| shard.table.get(at)).collect();
    assert!(matches!(&*slots, [slot] if !slot.has_kin()), "the fast path decides it");
}

/// Numbers of one customer have no place among the 128 versions of a limit, and take room with their keys only.
#[test]
fn own_numbers_go_with_their_key() {
    let plan = |large: bool| match large {
        true => Policy::new("p", SlidingLog::new(Rate::per_day(50))).unwrap(),
        false => Policy::new("p", per_day(50)).unwrap(),
    };
    for (large, states) in [(false, 0), (true, 20)] {
        let store = Store::new(100);
        let set = store.prepare(PolicySet::new(plan(large)).unwrap()).unwrap();
        let mut desk = Desk { store, set };
        let charge = |desk: &mut Desk| {
            for key in 0..20 {
                for number in 0..20 {
                    let count = 1_000 + 20 * key + number;
                    let own = match large {
                        true => plan(true).with_own(SlidingLog::new(Rate::per_day(count))),
                        false => plan(false).with_own(per_day(count)),
                    };
                    let own = desk.store.prepare(PolicySet::new(own.unwrap()).unwrap()).unwrap();
                    let call = [Call::from(Key::from(key))];
                    let left = desk.store.decide(&own, &call, NOW).remaining();
                    assert_eq!(left, count - 1 - number, "all that was charged under other numbers counts");
                }
            }
            assert_eq!(desk.held(), (20, 20, states), "what stands in the slots is unused");
        };
        charge(&mut desk);
        (0..20).for_each(|key| desk.store.reset(&desk.set, 0, &Key::from(key)));
        assert_eq!(desk.held(), (0, 0, 0), "reset");
        charge(&mut desk);
        (0..2).for_each(|_| desk.store.sweep_elsewhere(NOW));
        assert_eq!(desk.held(), (20, 20, states), "in use");
        (0..2).for_each(|_| desk.store.sweep_elsewhere(TOMORROW.after_micros(86_400_000_000)));
        assert_eq!(desk.held(), (0, 0, 0), "swept");
    }
}

#[test]
fn own_numbers_that_equal_a_version_of_the_limit_are_that_version() {
    let mut desk = Desk::new(100);
    assert_eq!(desk.take(1), 49);
    let own = Policy::new("p", per_day(7)).unwrap().with_own(per_day(50)).unwrap();
    desk.set = desk.store.prepare(PolicySet::new(own).unwrap()).unwrap();
    assert_eq!(desk.take(1), 48);
    assert_eq!(desk.held(), (1, 0, 0), "one state");
}

/// A charge under own numbers that is settled after the key went on to others changes what those count only as the
/// carry rule says: `Reset` not at all, `Keep` by the difference.
#[test]
fn law_10_a_late_settlement_of_own_numbers_begins_no_state_in_a_store_with_room() {
    for (carry, left) in [(Carry::Reset, 30), (Carry::Keep, 19)] {
        let plan = Policy::tiered("p", [("tier", per_day(50))], carry).unwrap();
        let of = |count| plan.with_own(per_day(count)).unwrap();
        for next in [plan.clone(), of(50), of(60)] {
            let store = Store::new(100);
            let capacity = next.algorithm().capacity();
            let prepare = |policy| store.prepare(PolicySet::new(policy).unwrap()).unwrap();
            let [_, own, next] = [plan.clone(), of(90), next].map(prepare);
            let take = |set, cost| {
                let calls = [Call::from(Key::from(1)).costing(cost)];
                let decision = store.decide(set, &calls, NOW);
                (decision.remaining(), Receipt::of(&decision, &calls))
            };
            let open = take(&own, 10).1.unwrap();
            let used = capacity - take(&next, 20).0;
            assert_eq!(used, if carry == Carry::Keep { 30 } else { 20 });
            store.settle(&own, open.actual(11), NOW);
            assert_eq!(take(&next, 0).0, left + capacity - 50, "{carry:?}, {capacity}");
        }
    }
}
