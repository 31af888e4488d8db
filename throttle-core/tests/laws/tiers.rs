//! Policies with tiers: what is carried over, by hand and at random, and that no change of tier buys more.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Algorithm, Backend, BackendErrorKind, Carry, Cost, FixedWindow, Gcra, IntoAlgorithm, Key, LeakyMeter, LocalShare,
    ManualClock, MemoryBackend, MemorySet, Policy, PolicySet, Rate, SlidingLog, SlidingWindow, Timestamp, TokenBucket,
};

use crate::support::strategies::run;

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

struct Desk {
    backend: MemoryBackend<ManualClock>,
    set: MemorySet,
    clock: ManualClock,
}

impl Desk {
    fn of(tiers: &[Algorithm], carry: Carry) -> Self {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder().clock(clock.clone()).build();
        let set = backend.prepare(set(tiers, carry)).unwrap();
        Self { backend, set, clock }
    }

    fn decide(&self, tier: u8, cost: u64) -> throttle_core::Decision {
        self.backend.decide_now(&self.set, &[call(tier, cost)])
    }

    /// The remaining units after a decision about `cost` units.
    fn left(&self, tier: u8, cost: u64) -> u64 {
        let decision = self.decide(tier, cost);
        assert!(decision.is_admitted(), "{decision:?}");
        decision.remaining()
    }

    /// The wait for `cost` units, in µs.
    fn wait(&self, tier: u8, cost: u64) -> u128 {
        let decision = self.decide(tier, cost);
        assert!(!decision.is_admitted(), "{decision:?}");
        decision.retry_after().unwrap().as_micros()
    }
}

fn call(tier: u8, cost: u64) -> Call {
    let key = Key::from("key");
    Cost::new(cost).map_or_else(|_| Call::peek(key.clone()), |cost| Call::new(key.clone(), cost)).in_tier(tier)
}

fn set(tiers: &[Algorithm], carry: Carry) -> PolicySet {
    let named = tiers.iter().enumerate().map(|(place, tier)| (format!("tier {place}"), *tier));
    PolicySet::new(Policy::tiered("policy", named, carry).unwrap().replace_existing()).unwrap()
}

fn per_minute(counts: &[u64]) -> Vec<Algorithm> {
    counts.iter().map(|count| Gcra::new(Rate::per_minute(*count)).build().unwrap()).collect()
}

#[test]
fn law_07_tiers_keep_units() {
    let desk = Desk::of(&per_minute(&[60, 600]), Carry::Keep);
    assert_eq!(desk.left(0, 60), 0);
    assert_eq!(desk.left(1, 0), 540, "60 used of 600");
    assert_eq!(desk.left(0, 0), 0, "a look moves nothing");
    assert_eq!(desk.left(1, 40), 500);
    // The small tier has counted all of it, as far as it could: one drains each second.
    assert_eq!(desk.wait(0, 1), 1_000_000);
    assert_eq!(desk.wait(0, 60), 60_000_000);
    desk.clock.set(T0.after_micros(1_000_000));
    assert_eq!(desk.left(0, 1), 0);
    assert_eq!(desk.left(1, 0), 509, "100 were used, and ten have drained when one more is");
}

#[test]
fn law_07_a_tier_that_was_never_charged_waits_at_the_pace_of_the_others() {
    let desk = Desk::of(&per_minute(&[60, 600]), Carry::Keep);
    assert_eq!(desk.left(1, 100), 500);
    // 10 drain each second: 60 fit the small tier in 4 s, and one more in 4.1 s.
    assert_eq!(desk.wait(0, 1), 4_100_000);
    assert_eq!(desk.wait(0, 60), 10_000_000);
    desk.clock.set(T0.after_micros(4_100_000));
    assert_eq!(desk.left(0, 1), 0);
    assert_eq!(desk.wait(0, 1), 1_000_000, "from now on one each second");
}

#[test]
fn law_07_tiers_in_proportion_round_up() {
    let desk = Desk::of(&per_minute(&[60, 100, 7]), Carry::Proportional);
    assert_eq!(desk.left(0, 1), 59);
    assert_eq!(desk.left(1, 0), 98, "a sixtieth is 1.67 of 100, so 2");
    assert_eq!(desk.left(2, 0), 6, "and 0.12 of 7, so 1");
    assert_eq!(desk.left(0, 29), 30);
    assert_eq!(desk.left(1, 0), 50);
    assert_eq!(desk.left(2, 0), 3, "3.5 of 7, so 4");
    // 4 units of the small tier fit when at most 25.71 of 60 are used: 25, in 5 s.
    assert_eq!(desk.wait(2, 4), 5_000_000);
}

#[test]
fn law_07_tiers_reset_on_purpose_only() {
    let desk = Desk::of(&per_minute(&[60, 600]), Carry::Reset);
    assert_eq!(desk.left(0, 60), 0);
    assert_eq!(desk.left(1, 0), 600);
    assert_eq!(desk.wait(0, 1), 1_000_000, "a look resets nothing");
    assert_eq!(desk.left(1, 1), 599);
    assert_eq!(desk.left(0, 0), 60);
}

/// Limits that count alike are one limit, however they are written, in memory and in stored bytes.
#[test]
fn law_08_a_change_between_tiers_that_count_alike_is_none() {
    let alike = [Rate::per_minute(60), Rate::per_second(1)].map(|rate| Gcra::new(rate).burst(10).build().unwrap());
    assert_eq!(alike[0].tag(), alike[1].tag());
    let desk = Desk::of(&alike, Carry::Reset);
    assert_eq!((desk.left(0, 3), desk.left(1, 1), desk.left(0, 1)), (7, 6, 5));
}

/// The window within which the remaining units can be used, as headers state it.
#[test]
fn what_remains_of_a_tier_lasts_for_as_long_as_its_own_pace_says() {
    let desk = Desk::of(&per_minute(&[60, 600]), Carry::Keep);
    let policy = &MemoryBackend::<ManualClock>::set(&desk.set).policies()[0];
    for (tier, seconds) in [(0, 50), (1, 58)] {
        let status = desk.decide(tier, 10).statuses()[0];
        assert_eq!(status.effective_window(policy).as_secs(), seconds, "tier {tier}");
    }
}

#[test]
fn law_07_limits_of_tiers_that_change_are_carried_over_by_the_same_rule() {
    for (carry, left) in [(Carry::Keep, 90), (Carry::Proportional, 50), (Carry::Reset, 100)] {
        let desk = Desk::of(&per_minute(&[20, 600]), carry);
        assert_eq!(desk.left(0, 10), 10);
        let set = desk.backend.prepare(set(&per_minute(&[100, 600]), carry)).unwrap();
        let decision = desk.backend.decide_now(&set, &[call(0, 0)]);
        assert_eq!(decision.remaining(), left, "{carry:?}");
        // They are in force for the set that was prepared first, too.
        assert_eq!(desk.left(0, 0), left, "{carry:?}");
    }
}

#[test]
fn law_10_a_charge_is_given_back_in_the_tier_that_holds_it() {
    for (carry, left) in [(Carry::Keep, 580), (Carry::Proportional, 490), (Carry::Reset, 590)] {
        let desk = Desk::of(&per_minute(&[60, 600]), carry);
        let first = desk.decide(0, 20);
        let receipt = Receipt::of(&first, &[call(0, 20)]).unwrap();
        assert_eq!(receipt.items()[0].tier(), 0);
        assert!(desk.decide(1, 10).is_admitted());
        // 10 of the 20 are given back: unchanged, as 100 of 600, or not at all if they were forgotten.
        desk.backend.settle_now(&desk.set, receipt.actual(10));
        assert_eq!(desk.left(1, 0), left, "{carry:?}");
    }
}

/// What is given back is rounded down, and what is debited is rounded up: no settlement is a gift.
#[test]
fn law_10_settlements_in_proportion_are_no_gift() {
    for (taken, actual, left) in [(2, 1, 96), (1, 2, 95), (3, 3, 94), (2, 0, 98), (1, 60, 0)] {
        let desk = Desk::of(&per_minute(&[60, 100]), Carry::Proportional);
        let first = desk.decide(0, taken);
        let receipt = Receipt::of(&first, &[call(0, taken)]).unwrap();
        assert!(desk.decide(1, 1).is_admitted());
        desk.backend.settle_now(&desk.set, receipt.actual(actual));
        assert_eq!(desk.left(1, 0), left, "{taken} of 60, then 1 of 100, then {actual} instead of {taken}");
    }
}

/// A share of one limit that has no exact equivalent in another counts as all of it until the key has recovered, and
/// settlements do not change it.
#[test]
fn law_08_shares_that_cannot_be_converted_exactly_count_in_full() {
    let hourly = |count: u64| FixedWindow::new(Rate::per_hour(count)).build().unwrap();
    let desk = Desk::of(&[hourly(1 << 30)], Carry::Proportional);
    let first = desk.decide(0, 1 << 20);
    let receipt = Receipt::of(&first, &[call(0, 1 << 20)]).unwrap();
    let look = |tiers: &MemorySet| desk.backend.decide_now(tiers, &[call(0, 0)]).remaining();
    let exact = desk.backend.prepare(set(&[hourly((1 << 23) - 1)], Carry::Proportional)).unwrap();
    assert_eq!(look(&exact), (1 << 23) - 1 - (1 << 13), "a thousandth");
    let inexact = desk.backend.prepare(set(&[hourly(1 << 23)], Carry::Proportional)).unwrap();
    assert_eq!(look(&inexact), 0);
    desk.backend.settle_now(&inexact, receipt.actual(0));
    assert_eq!(look(&inexact), 0);
    assert_eq!(
        look(&desk.backend.prepare(set(&[hourly(1 << 30)], Carry::Proportional)).unwrap()),
        (1 << 30) - (1 << 20)
    );
}

/// Five in ten seconds or ten in a thousand, for every kind that has windows. All windows begin at [`T0`].
fn short_and_long() -> [[Algorithm; 2]; 3] {
    let rates = [Rate::new(5, Duration::from_secs(10)), Rate::new(10, Duration::from_secs(1_000))];
    [
        rates.map(|rate| FixedWindow::new(rate).build().unwrap()),
        rates.map(|rate| SlidingLog::new(rate).build().unwrap()),
        // Sub-windows of ten seconds.
        [SlidingWindow::new(rates[0]).buckets(1), SlidingWindow::new(rates[1]).buckets(100)]
            .map(|w| w.build().unwrap()),
    ]
}

/// Use from a window that is over is not carried over, so it is not given back in the key's new tier.
#[test]
fn law_10_a_charge_of_a_window_that_is_over_is_not_settled_in_another_tier() {
    for tiers in short_and_long() {
        for (actual, name) in [(0, "given back"), (9, "debited")] {
            let desk = Desk::of(&tiers, Carry::Keep);
            let receipt = Receipt::of(&desk.decide(0, 5), &[call(0, 5)]).unwrap();
            desk.clock.set(T0.after_micros(20_000_000));
            assert_eq!(desk.left(1, 9), 1, "{tiers:?}: nothing is left of the first window");
            desk.backend.settle_now(&desk.set, receipt.actual(actual));
            assert_eq!(desk.left(1, 0), 1, "{tiers:?}: nothing is {name}");
        }
    }
}

/// The same while the window is open and the charge was carried over to the key's tier.
#[test]
fn law_10_a_charge_of_an_open_window_is_settled_in_another_tier() {
    for tiers in short_and_long() {
        for (actual, left) in [(0, 9), (2, 7), (7, 2), (900, 0)] {
            let desk = Desk::of(&tiers, Carry::Keep);
            let receipt = Receipt::of(&desk.decide(0, 5), &[call(0, 5)]).unwrap();
            assert_eq!(desk.left(1, 1), 4);
            desk.backend.settle_now(&desk.set, receipt.actual(actual));
            assert_eq!(desk.left(1, 0), left, "{tiers:?} settled with {actual}");
        }
    }
}

/// A charge is forgotten by a change of tier, and then all later use ends. A store may forget the key then, so nothing
/// may depend on whether it has.
#[test]
fn law_09_a_charge_of_which_nothing_is_left_is_not_debited() {
    let counts = [Rate::per_minute(5), Rate::per_minute(10)];
    let tiers = counts.map(|rate| SlidingWindow::new(rate).build().unwrap());
    for forgotten in [false, true] {
        let desk = Desk::of(&tiers, Carry::Reset);
        let charge = |tier: u8, cost: u64| Receipt::of(&desk.decide(tier, cost), &[call(tier, cost)]).unwrap();
        let (first, _, last) = (charge(0, 2), charge(1, 1), charge(0, 1));
        desk.backend.settle_now(&desk.set, last.actual(0));
        if forgotten {
            drop(desk.backend.reset(&Arc::new(desk.set.clone()), 0, &Key::from("key")));
        }
        desk.backend.settle_now(&desk.set, first.actual(4));
        assert_eq!(desk.left(0, 0), 5, "forgotten: {forgotten}");
    }
}

/// Tiers of one kind, each larger one at least as quick.
fn ladder() -> impl Strategy<Value = Vec<Algorithm>> {
    let count = || prop::sample::select(vec![1_u64, 2, 3, 5, 8, 13, 60]);
    (0..4_usize, prop::collection::btree_set(count(), 2..4), 1..100_u64).prop_map(|(kind, counts, period)| {
        let tier = |count: u64| {
            let rate = Rate::new(count, Duration::from_micros(period * 7));
            match kind {
                0 => Gcra::new(rate).into_algorithm(),
                1 => TokenBucket::new(rate).into_algorithm(),
                2 => LeakyMeter::new(rate).into_algorithm(),
                _ => FixedWindow::new(rate).into_algorithm(),
            }
        };
        counts.into_iter().map(|count| tier(count).unwrap()).collect()
    })
}

type Steps = Vec<(u8, u64, u64)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec((0..4_u8, 0..14_u64, prop_oneof![Just(0_u64), 0..40_u64, 0..900_u64]), 1..120)
}

/// Whatever the tiers of the calls, the largest tier alone would have admitted all that was admitted.
#[test]
fn law_07_no_change_of_tier_buys_more_than_the_largest_admits() {
    for carry in [Carry::Keep, Carry::Proportional] {
        run(&format!("{carry:?}"), &(ladder(), steps()), |(tiers, steps)| {
            let desk = Desk::of(tiers, carry);
            let largest = tiers.last().unwrap();
            let (mut alone, mut now) = (largest.fresh(), T0);
            for (tier, cost, ahead) in steps {
                now = now.after_micros(*ahead);
                desk.clock.set(now);
                if desk.decide(*tier, *cost).is_admitted() {
                    let (state, verdict) = largest.decide(alone, now, *cost);
                    prop_assert!(verdict.is_admitted(), "{} units at {:?} of {:?}", cost, now, largest);
                    alone = state;
                }
            }
            Ok(())
        });
    }
}

/// Every report about a tier is true at any time: the remaining units are admitted and one more is not, a wait ends
/// exactly when it was reported to, and asking changes nothing.
#[test]
fn law_01_02_03_04_tiers_tell_the_truth() {
    for carry in [Carry::Keep, Carry::Proportional, Carry::Reset] {
        run(&format!("{carry:?}"), &(ladder(), steps(), 1..14_u64), |(tiers, steps, cost)| {
            let set = set(tiers, carry);
            let (mut states, mut now) = (vec![set.policies()[0].algorithm().fresh()], T0);
            for (tier, units, ahead) in steps {
                now = now.after_micros(*ahead);
                let _ = set.decide(&mut states, now, &[call(*tier, *units)]);
            }
            for tier in 0..tiers.len() as u8 {
                let asked = |cost: u64, at: Timestamp| set.decide(&mut states.clone(), at, &[call(tier, cost)]);
                let capacity = tiers[usize::from(tier)].capacity();
                let remaining = asked(0, now).remaining();
                prop_assert!(remaining == 0 || asked(remaining, now).is_admitted());
                prop_assert!(!asked(remaining + 1, now).is_admitted());
                match asked(*cost, now).retry_after() {
                    None => prop_assert!(*cost > capacity),
                    Some(wait) if wait.is_zero() => prop_assert!(*cost <= remaining),
                    Some(wait) => {
                        let wait = wait.as_micros() as u64;
                        prop_assert!(asked(*cost, now.after_micros(wait)).is_admitted());
                        prop_assert!(!asked(*cost, now.after_micros(wait - 1)).is_admitted());
                    }
                }
                let reset = asked(0, now).reset_after().as_micros() as u64;
                let at_reset = asked(0, now.after_micros(reset));
                prop_assert_eq!(
                    (at_reset.remaining(), at_reset.reset_after().as_micros()),
                    (capacity, 0),
                    "as if unused"
                );
                if let Some(before) = reset.checked_sub(1) {
                    let before = asked(0, now.after_micros(before));
                    prop_assert_eq!(before.reset_after().as_micros(), 1, "and not earlier");
                }
                let mut kept = states.clone();
                let _ = set.decide(&mut kept, now, &[call(tier, capacity + 1)]);
                let _ = set.decide(&mut kept, now, &[call(tier, 0)]);
                prop_assert_eq!(&kept, &states);
            }
            Ok(())
        });
    }
}

/// Units used, and the tier they were used in: a key's whole state while the clock stands still.
#[derive(Clone, Copy)]
struct Naive {
    used: u64,
    tier: usize,
}

impl Naive {
    fn in_tier(self, tier: usize, capacities: &[u64], carry: Carry) -> u64 {
        let (old, new) = (capacities[self.tier], capacities[tier]);
        if tier == self.tier {
            return self.used;
        }
        match carry {
            Carry::Keep => self.used,
            Carry::Proportional => (self.used * new).div_ceil(old),
            _ => 0,
        }
    }
}

#[test]
fn law_07_tiers_equal_a_naive_count_while_the_clock_stands_still() {
    for carry in [Carry::Keep, Carry::Proportional, Carry::Reset] {
        run(&format!("{carry:?}"), &(ladder(), steps()), |(tiers, steps)| {
            let desk = Desk::of(tiers, carry);
            let capacities: Vec<u64> = tiers.iter().map(Algorithm::capacity).collect();
            let mut naive = Naive { used: 0, tier: 0 };
            for (tier, cost, _) in steps {
                let place = if usize::from(*tier) < tiers.len() { usize::from(*tier) } else { 0 };
                let used = naive.in_tier(place, &capacities, carry);
                let admitted = used + cost <= capacities[place] || *cost == 0;
                let decision = desk.decide(*tier, *cost);
                prop_assert_eq!(decision.is_admitted(), admitted);
                prop_assert_eq!(usize::from(decision.statuses()[0].tier()), place);
                if admitted && *cost > 0 {
                    naive = Naive { used: used + cost, tier: place };
                }
                let left = capacities[place].saturating_sub(naive.in_tier(place, &capacities, carry));
                prop_assert_eq!(decision.remaining(), left);
            }
            Ok(())
        });
    }
}

/// What does not fit a lowered limit is known again in a large tier, by way of a small one or not.
#[test]
fn law_07_use_that_a_lowered_limit_could_not_hold_counts_in_each_tier() {
    let hourly = |count: u64| Gcra::new(Rate::per_hour(count)).build().unwrap();
    let plain = |count: u64| PolicySet::new(Policy::new("policy", hourly(count)).unwrap().replace_existing()).unwrap();
    for through in [None, Some(1)] {
        let desk = Desk::of(&[hourly(100)], Carry::Keep);
        assert!(desk.decide(0, 80).is_admitted());
        let lowered = desk.backend.prepare(plain(10)).unwrap();
        assert!(!desk.backend.decide_now(&lowered, &[call(0, 1)]).is_admitted());
        let tiers = desk.backend.prepare(set(&[10, 5, 100].map(hourly), Carry::Keep)).unwrap();
        desk.clock.set(T0.after_micros(47 * 60_000_000));
        // More than 78 of the 80 have drained, and one more passes through the smaller tier.
        let used = through.map_or(2, |smaller| {
            assert!(desk.backend.decide_now(&tiers, &[call(smaller, 1)]).is_admitted());
            3
        });
        let left = desk.backend.decide_now(&tiers, &[call(2, 0)]).remaining();
        assert_eq!(left, 100 - used, "through {through:?}");
    }
}

/// A store too small for its keys admits no more of a key than the largest tier alone would: neither while keys share
/// an overflow bucket nor after they get a place of their own.
#[test]
fn law_09_tiers_in_a_full_store_admit_no_more_than_the_largest() {
    for carry in [Carry::Keep, Carry::Proportional] {
        run(&format!("{carry:?}"), &(ladder(), steps(), 1..4_usize), |(tiers, steps, max_keys)| {
            let clock = ManualClock::new(T0);
            let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(*max_keys).build();
            let set = backend.prepare(set(tiers, carry)).unwrap();
            let largest = tiers.last().unwrap();
            let (mut alone, mut now) = (vec![largest.fresh(); 8], T0);
            for (step, (tier, cost, ahead)) in steps.iter().enumerate() {
                now = now.after_micros(*ahead);
                clock.set(now);
                let who = (step * 7 + usize::from(*tier) * 3 + *cost as usize) % alone.len();
                let asked = Call::new(Key::from(who as u64), Cost::at_least_one(*cost)).in_tier(*tier);
                if backend.decide_now(&set, &[asked]).is_admitted() {
                    let (state, verdict) = largest.decide(alone[who].clone(), now, (*cost).max(1));
                    prop_assert!(verdict.is_admitted(), "{} units of {} at {:?} of {:?}", cost, who, now, largest);
                    alone[who] = state;
                }
            }
            Ok(())
        });
    }
}

/// A charge above what remains of another tier's shared bucket fills it: a part of a unit that has drained there is no
/// room for the next key.
#[test]
fn law_09_a_charge_that_a_smaller_tier_cannot_hold_fills_its_shared_bucket() {
    let clock = ManualClock::new(T0);
    let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(1).build();
    let set = backend.prepare(set(&per_minute(&[3, 13]), Carry::Keep)).unwrap();
    let take = |after_seconds: u64, key: &str, cost: u64, tier: u8| {
        clock.set(T0.after_micros(after_seconds * 1_000_000));
        let call = Call::new(Key::from(key), Cost::at_least_one(cost)).in_tier(tier);
        backend.decide_now(&set, &[call]).statuses()[0]
    };
    assert!(!take(0, "first", 1, 0).is_overflow());
    assert!(take(0, "ada", 5, 1).is_overflow());
    assert!(!take(52, "second", 1, 1).is_overflow(), "the first one's unit has drained");
    assert!(take(56, "bob", 13, 1).is_overflow());
    assert!(take(60, "bob", 1, 0).is_violated(), "bob has used all 13 units of his tier four seconds ago");
}

#[test]
fn law_09_what_was_used_of_a_shared_bucket_in_one_tier_stays_used_in_another() {
    let clock = ManualClock::new(T0);
    let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(1).build();
    let set = backend.prepare(set(&per_minute(&[60, 600]), Carry::Keep)).unwrap();
    let take = |key: &str, cost: u64, tier: u8| {
        let call = Call::new(Key::from(key), Cost::at_least_one(cost)).in_tier(tier);
        backend.decide_now(&set, &[call]).statuses()[0]
    };
    assert!(!take("ada", 1, 1).is_overflow());
    assert!(take("bob", 30, 1).is_overflow(), "there is room for one");
    clock.set(T0.after_micros(100_000));
    let moved = take("bob", 1, 0);
    assert_eq!(
        (moved.is_overflow(), moved.remaining()),
        (false, 29),
        "29.9 of 30 are not drained at the pace of this tier"
    );
}

/// A store with room for one key, which a key of another policy occupies for a second.
fn full_store(tiers: &[Algorithm], carry: Carry) -> Desk {
    let clock = ManualClock::new(T0);
    let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(1).build();
    let filler = Policy::new("filler", Gcra::new(Rate::per_second(1))).unwrap();
    let filler = backend.prepare(PolicySet::new(filler).unwrap()).unwrap();
    assert!(backend.decide_now(&filler, &[Call::from(Key::from("filler"))]).is_admitted());
    let set = backend.prepare(set(tiers, carry)).unwrap();
    Desk { backend, set, clock }
}

#[test]
fn law_09_units_that_a_smaller_tier_s_shared_bucket_cannot_hold_stay_used() {
    let tiers = [10, 100].map(|count| Gcra::new(Rate::per_hour(count)).build().unwrap());
    for carry in [Carry::Keep, Carry::Proportional] {
        let desk = full_store(&tiers, carry);
        assert_eq!(desk.left(1, 50), 50, "in the shared bucket");
        // The first unit of the small tier has drained, and the key gets a place of its own.
        desk.clock.set(T0.after_micros(6 * 60_000_000));
        assert!(!desk.decide(0, 1).statuses()[0].is_overflow());
        // Ten of the fifty have drained at the pace of the large tier, and one was used since.
        assert!(!desk.decide(1, 60).is_admitted(), "{carry:?}: 41 of 100 are used, and 60 more are too many");
    }
}

#[test]
fn law_10_a_charge_of_a_shared_bucket_is_given_back_in_its_own_tier() {
    let tiers = [10, 100].map(|count| Gcra::new(Rate::per_hour(count)).build().unwrap());
    for carry in [Carry::Keep, Carry::Proportional, Carry::Reset] {
        let (desk, calls) = (full_store(&tiers, carry), [call(1, 50)]);
        let decision = desk.decide(1, 50);
        assert!(decision.is_admitted() && decision.statuses()[0].is_overflow());
        desk.backend.settle_now(&desk.set, Receipt::of(&decision, &calls).unwrap().actual(20));
        assert_eq!(desk.left(1, 0), 80, "{carry:?}: 20 of 100 were used in the end");
        assert_eq!(desk.left(0, 0), 0, "{carry:?}: a bucket that could not hold all of it gives nothing back");
    }
}

/// Tiers of any kind and pace.
fn unlike() -> impl Strategy<Value = Vec<Algorithm>> {
    let count = || prop::sample::select(vec![1_u64, 2, 3, 5, 8, 13, 60]);
    prop::collection::vec((0..5_usize, count(), 1..40_u64), 2..4).prop_map(|tiers| {
        let tier = |(kind, count, period)| {
            let rate = Rate::new(count, Duration::from_micros(period * 10));
            match kind {
                0 => Gcra::new(rate).into_algorithm(),
                1 => TokenBucket::new(rate).into_algorithm(),
                2 => SlidingLog::new(rate).into_algorithm(),
                3 => SlidingWindow::new(rate).into_algorithm(),
                _ => FixedWindow::new(rate).into_algorithm(),
            }
        };
        tiers.into_iter().map(|one| tier(one).unwrap()).collect()
    })
}

/// Keys that never change tier get no more than their tier alone admits, while keys of other tiers share their bucket
/// and after they get a place of their own.
#[test]
fn law_09_keys_of_several_tiers_in_a_full_store_get_no_more_than_their_own_tier_admits() {
    for carry in [Carry::Keep, Carry::Reset] {
        run(&format!("{carry:?}"), &(unlike(), steps(), 1..4_usize), |(tiers, steps, max_keys)| {
            let clock = ManualClock::new(T0);
            let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(*max_keys).build();
            let set = backend.prepare(set(tiers, carry)).unwrap();
            let tier_of = |key: usize| key % tiers.len();
            let mut alone: Vec<State> = (0..6).map(|key| tiers[tier_of(key)].fresh()).collect();
            let mut now = T0;
            for (step, (dice, cost, ahead)) in steps.iter().enumerate() {
                now = now.after_micros(*ahead);
                clock.set(now);
                let key = (step * 7 + usize::from(*dice)) % alone.len();
                let call = Call::new(Key::from(key as u64), Cost::at_least_one(*cost)).in_tier(tier_of(key) as u8);
                if backend.decide_now(&set, &[call]).is_admitted() {
                    let own = &tiers[tier_of(key)];
                    let (state, verdict) = own.decide(alone[key].clone(), now, (*cost).max(1));
                    prop_assert!(verdict.is_admitted(), "{} units of {} at {:?} of {:?}", cost, key, now, own);
                    alone[key] = state;
                }
            }
            Ok(())
        });
    }
}

/// Two keys that never change tier, at one instant and over an hour, in a store with no room for either.
#[test]
fn law_09_a_full_store_is_no_amnesty_under_any_carry_rule() {
    for carry in [Carry::Keep, Carry::Proportional, Carry::Reset] {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder().clock(clock.clone()).max_keys(1).build();
        let filler = PolicySet::new(Policy::new("filler", FixedWindow::new(Rate::per_day(9))).unwrap()).unwrap();
        let filler = backend.prepare(filler).unwrap();
        assert!(backend.decide_now(&filler, &[Call::from(Key::from("filler"))]).is_admitted());
        let per_hour = [10, 100].map(|count| Gcra::new(Rate::per_hour(count)).build().unwrap());
        let set = backend.prepare(set(&per_hour, carry)).unwrap();
        let admitted = |key: &str, tier: u8| {
            let decision = backend.decide_now(&set, &[Call::from(Key::from(key)).in_tier(tier)]);
            assert!(decision.statuses()[0].is_overflow(), "there is room for the filler only");
            u32::from(decision.is_admitted())
        };
        let (mut free, mut pro) = (0, 0);
        for _ in 0..1000 {
            free += admitted("ada", 0);
            pro += admitted("bob", 1);
        }
        assert!(free <= 10 && pro <= 100, "{carry:?}: {free} of 10 and {pro} of 100 in one instant");
        for second in 1..=3600 {
            clock.set(T0.after_micros(second * 1_000_000));
            let now = admitted("ada", 0);
            // Bob asks only right after ada was admitted, so that her units would drain at his pace if that were
            // possible.
            pro += if now > 0 { admitted("bob", 1) } else { 0 };
            free += now;
        }
        assert!(free <= 20 && pro <= 200, "{carry:?}: {free} of 20 and {pro} of 200 in an hour");
    }
}

#[test]
fn shares_of_tiers_are_noted_and_settled_in_the_tier_that_was_charged() {
    let tiers = [10, 100].map(|count| FixedWindow::new(Rate::per_hour(count)).build().unwrap());
    let store = Desk::of(&tiers, Carry::Keep);
    let desk = Desk::of(&tiers, Carry::Keep);
    let two = std::num::NonZeroU32::new(2).unwrap();
    let share = LocalShare::new(&desk.backend, MemoryBackend::<ManualClock>::set(&store.set), two).unwrap();
    let left = || share.decide(&[call(1, 0)], BackendErrorKind::Timeout).remaining();
    let calls = [call(1, 40)];
    let decision = store.decide(1, 40);
    share.note(&decision, &calls);
    assert_eq!(left(), 10, "half of a hundred, less forty");
    let receipt = Receipt::of(&decision, &calls).unwrap();
    assert!(share.settle(receipt.actual(0)).is_some(), "the rest is the store's");
    assert_eq!(left(), 50);
}

/// The bytes of one key of one policy: what any backend may keep.
struct Kept(Option<Vec<u8>>);

impl Kept {
    fn state(&self, policy: &Policy, tier: u8) -> State {
        let Some(bytes) = &self.0 else { return policy.algorithm().fresh() };
        State::from_wire_of(policy, tier, bytes).expect("written by an algorithm")
    }
}

/// Limits that are deployed anew while keys live, with other tiers or none, decide as the core does on states in hand.
#[test]
fn law_08_tiers_that_are_deployed_anew_equal_states_in_hand() {
    let rule =
        || prop::option::weighted(0.8, prop::sample::select(vec![Carry::Keep, Carry::Proportional, Carry::Reset]));
    let deployed = prop::collection::vec((ladder(), rule()), 2..5);
    run("deployed", &(deployed, steps(), any::<u64>()), |(deployed, steps, seed)| {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder().clock(clock.clone()).build();
        let sets: Vec<PolicySet> = deployed.iter().map(|(tiers, carry)| one_policy(tiers, *carry)).collect();
        let (mut kept, mut now, mut dice) = (Kept(None), T0, *seed);
        let mut in_force = backend.prepare(sets[0].clone()).unwrap();
        for (tier, cost, ahead) in steps {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if dice >> 61 == 0 {
                in_force = backend.prepare(sets[(dice >> 40) as usize % sets.len()].clone()).unwrap();
            }
            // The clock steps back one time in four.
            let moved = if dice >> 59 & 3 == 0 { -(*ahead as i64) } else { *ahead as i64 };
            now = Timestamp::from_micros(now.as_micros() + moved);
            clock.set(now);
            let set = MemoryBackend::<ManualClock>::set(&in_force);
            let policy = &set.policies()[0];
            let mut states = [kept.state(policy, *tier)];
            let before = states.clone();
            let expected = set.decide(&mut states, now, &[call(*tier, *cost)]);
            prop_assert_eq!(&backend.decide_now(&in_force, &[call(*tier, *cost)]), &expected);
            if states != before {
                kept.0 = states[0].to_wire(policy.algorithm());
            }
        }
        Ok(())
    });
}

/// With tiers if there is a rule for them; otherwise one limit, the first.
fn one_policy(tiers: &[Algorithm], carry: Option<Carry>) -> PolicySet {
    match carry {
        Some(carry) => set(tiers, carry),
        None => PolicySet::new(Policy::new("policy", tiers[0]).unwrap().replace_existing()).unwrap(),
    }
}

#[test]
fn tiers_that_are_wrong_are_refused() {
    let refused = |tiers: &[(&str, Gcra)], carry| {
        let error = Policy::tiered("p", tiers.iter().copied(), carry).unwrap_err();
        (error.field().to_owned(), error.value().to_owned())
    };
    let rate = Rate::per_minute(60);
    let tier = Gcra::new(rate);
    assert_eq!(refused(&[], Carry::Keep), ("tiers".into(), "none".into()));
    assert_eq!(refused(&[("a", tier), ("a", tier)], Carry::Keep), ("tier".into(), "\"a\" twice".into()));
    let many: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    let many: Vec<(&str, Gcra)> = many.iter().map(|name| (name.as_str(), tier)).collect();
    assert_eq!(refused(&many, Carry::Keep), ("tiers".into(), "17".into()));
    let slow = [("a", tier), ("b", Gcra::new(rate).burst(61))];
    assert_eq!(refused(&slow, Carry::Proportional).0, "carry");
    assert!(Policy::tiered("p", slow, Carry::Keep).is_ok(), "units can always be kept");
    let apart = [("a", tier.burst(10)), ("b", Gcra::new(Rate::per_minute(1_200)).burst(100)), ("c", tier.burst(20))];
    assert_eq!(refused(&apart, Carry::Proportional), ("carry".into(), "Proportional between \"a\" and \"c\"".into()));
    let large = Gcra::new(Rate::per_second(100_000_000));
    assert_eq!(
        refused(&[("a", large), ("b", Gcra::new(Rate::per_second(99_999_999)))], Carry::Proportional).0,
        "carry"
    );
}
