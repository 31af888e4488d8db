//! Parameters that travel with the call: a key has one budget, whatever tier it is in and whatever
//! parameters of its own it has, and a change between them buys nothing.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{
    Algorithm, Backend, BackendErrorKind, CalendarQuota, Decision, FixedWindow, Gcra,
    IntervalBucket, IntoAlgorithm, Key, LeakyBucket, LeakyMeter, LocalShare, ManualClock,
    MemoryBackend, MemorySet, Policy, PolicySet, Rate, SlidingLog, SlidingWindow, Timestamp,
    TokenBucket,
};

use crate::support::spec::Kind;
use crate::support::strategies::{any_spec, run_times, small};

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

fn per_minute(count: u64) -> Algorithm {
    Gcra::new(Rate::per_minute(count)).build().unwrap()
}

fn per_hour(count: u64) -> Algorithm {
    FixedWindow::new(Rate::per_hour(count)).build().unwrap()
}

fn call(cost: u64) -> Call {
    Call::from(Key::from("key")).costing(cost)
}

fn tiered(tiers: &[Algorithm]) -> PolicySet {
    let named = tiers
        .iter()
        .enumerate()
        .map(|(place, tier)| (format!("tier {place}"), *tier));
    PolicySet::new(Policy::tiered("policy", named).unwrap()).unwrap()
}

/// Every kind of parameters reads the unused state of every other kind as unused.
#[test]
fn law_09_named_unused_state_is_unused_for_parameters_of_another_algorithm() {
    let rate = Rate::per_hour(7);
    let all = [
        Gcra::new(rate).build(),
        TokenBucket::new(rate).build(),
        LeakyMeter::new(rate).build(),
        LeakyBucket::new(rate)
            .max_wait(Duration::from_secs(3_600))
            .build(),
        IntervalBucket::new(7)
            .refill(7, Duration::from_secs(3_600))
            .build(),
        FixedWindow::new(rate).build(),
        CalendarQuota::monthly(7).build(),
        SlidingWindow::new(rate).buckets(1).build(),
        SlidingWindow::new(rate).buckets(6).build(),
        SlidingLog::new(rate).build(),
    ];
    let all = all.map(Result::unwrap);
    for (writer, reader) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
        let set = PolicySet::new(Policy::new("policy", *writer).unwrap()).unwrap();
        let call = [call(1).under(Arc::new(*reader))];
        let decided = |by: &Algorithm| {
            let mut states = [by.fresh().written_under(by)];
            set.decide(&mut states, T0, &call)
        };
        assert_eq!(decided(writer), decided(reader), "{writer:?}, {reader:?}");
    }
}

/// A policy with tiers in memory, and one key.
struct Store {
    backend: MemoryBackend<ManualClock>,
    set: MemorySet,
    clock: ManualClock,
}

impl Store {
    fn of(tiers: &[Algorithm]) -> Self {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder().clock(clock.clone()).build();
        let set = backend.prepare(tiered(tiers)).unwrap();
        Self {
            backend,
            set,
            clock,
        }
    }

    fn policy(&self) -> &Policy {
        &MemoryBackend::<ManualClock>::set(&self.set).policies()[0]
    }

    fn ask(&self, call: Call) -> Decision {
        self.backend.decide_now(&self.set, &[call])
    }

    /// The remaining units after a charge of `cost` units.
    fn left(&self, tier: u8, cost: u64) -> u64 {
        let decision = self.ask(call(cost).in_tier(tier));
        assert!(decision.is_admitted(), "{decision:?}");
        decision.remaining()
    }

    fn charge(&self, tier: u8, cost: u64) -> Receipt {
        let calls = [call(cost).in_tier(tier)];
        Receipt::of(&self.backend.decide_now(&self.set, &calls), &calls).unwrap()
    }
}

/// Limits that count alike are one limit, however they are written, in memory and in stored bytes.
#[test]
fn law_08_tiers_that_count_alike_are_one() {
    let alike = [Rate::per_minute(60), Rate::per_second(1)]
        .map(|rate| Gcra::new(rate).burst(10).build().unwrap());
    assert_eq!(alike[0].tag(), alike[1].tag());
    let store = Store::of(&alike);
    assert_eq!(
        (store.left(0, 3), store.left(1, 1), store.left(0, 1)),
        (7, 6, 5)
    );
}

/// The window within which the remaining units can be used, as headers state it.
#[test]
fn effective_window_of_a_tier_follows_its_own_pace() {
    let store = Store::of(&[per_minute(60), per_minute(600)]);
    for (tier, seconds) in [(0, 50), (1, 58)] {
        let status = store.ask(call(10).in_tier(tier)).statuses()[0];
        assert_eq!(
            status.effective_window(store.policy()).as_secs(),
            seconds,
            "tier {tier}"
        );
    }
}

/// A store may have forgotten a key of which nothing is used, so it must not matter what wrote its
/// state.
#[test]
fn law_09_settling_ignores_what_wrote_a_state_that_counts_nothing() {
    for (forgotten, actual, left) in [(false, 9, 55), (true, 9, 55), (false, 0, 60), (true, 0, 60)]
    {
        let store = Store::of(&[per_minute(60), per_minute(600)]);
        let (first, last) = (store.charge(0, 4), store.charge(1, 1));
        store.backend.settle_now(&store.set, last.actual(0));
        store.clock.set(T0.after_micros(10_000_000));
        assert_eq!(store.left(1, 0), 600);
        if forgotten {
            drop(store.backend.run(
                &Arc::new(store.set.clone()),
                0,
                KeyStep::Reset(Key::from("key")),
            ));
        }
        store.backend.settle_now(&store.set, first.actual(actual));
        assert_eq!(store.left(0, 0), left, "forgotten: {forgotten}");
    }
}

#[test]
fn shares_are_noted_and_settled_under_the_parameters_charged() {
    let (store, memory) = (
        Store::of(&[per_hour(10), per_hour(100)]),
        Store::of(&[per_hour(10), per_hour(100)]),
    );
    let set = MemoryBackend::<ManualClock>::set(&store.set);
    let share = LocalShare::new(&memory.backend, set, NonZeroU32::new(2).unwrap()).unwrap();
    let own = store.policy().own(per_hour(200)).unwrap();
    for (under, half) in [(call(40).in_tier(1), 50), (call(40).under(own), 100)] {
        let left = || {
            share
                .decide(&[under.clone().costing(0)], BackendErrorKind::Timeout)
                .remaining()
        };
        let calls = [under.clone()];
        let decision = store.backend.decide_now(&store.set, &calls);
        share.note(&decision, &calls);
        assert_eq!(left(), half - 40);
        let receipt = Receipt::of(&decision, &calls).unwrap().actual(0);
        let receipt = share.settle(receipt).expect("the store's charge");
        store.backend.settle_now(&store.set, receipt);
        assert_eq!(left(), half);
    }
}

/// A key in one store, under any parameters.
struct OneKey {
    backend: MemoryBackend<ManualClock>,
    set: MemorySet,
    clock: ManualClock,
}

impl OneKey {
    fn new() -> Self {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder().clock(clock.clone()).build();
        let set = backend.prepare(tiered(&[per_minute(1)])).unwrap();
        Self {
            backend,
            set,
            clock,
        }
    }

    fn ask(&self, by: &Algorithm, cost: u64, now: Timestamp) -> Decision {
        self.clock.set(now);
        self.backend
            .decide_now(&self.set, &[call(cost).under(Arc::new(*by))])
    }
}

/// Of any kinds, most of them small, without shapers, of which some hold nothing until all has
/// drained, and all a part of a unit beyond their capacity.
fn unlike_counters() -> impl Strategy<Value = Vec<Algorithm>> {
    let is_counter = |kind: &Kind| !matches!(kind, Kind::Shaper | Kind::Undelayed);
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(is_counter).collect();
    let spec =
        select(kinds).prop_flat_map(|kind| prop_oneof![3 => small(kind), 1 => any_spec(kind)]);
    vec(spec.prop_map(|spec| spec.algorithm()), 2..4)
}

/// Tiers of one kind and one window, or that all drain. Each larger one is at least as quick.
fn ladder() -> impl Strategy<Value = Vec<Algorithm>> {
    let count = || select(vec![1_u64, 2, 3, 5, 8, 13, 60]);
    (0..8_usize, btree_set(count(), 2..4), 1..100_u64).prop_map(|(kind, counts, period)| {
        let tier = |count: u64| {
            let rate = Rate::new(count, Duration::from_micros(period * 7));
            match if kind > 5 { (count % 3) as usize } else { kind } {
                0 => Gcra::new(rate).into_algorithm(),
                1 => TokenBucket::new(rate).into_algorithm(),
                2 => LeakyMeter::new(rate).into_algorithm(),
                3 => SlidingLog::new(rate).into_algorithm(),
                4 => SlidingWindow::new(rate).buckets(7).into_algorithm(),
                _ => FixedWindow::new(rate).into_algorithm(),
            }
        };
        counts
            .into_iter()
            .map(|count| tier(count).unwrap())
            .collect()
    })
}

/// Which parameters, units, and microseconds ahead.
type Asked = Vec<(usize, u64, u64)>;

fn asked(most: usize) -> impl Strategy<Value = Asked> {
    vec(
        (
            0..4_usize,
            0..14_u64,
            prop_oneof![Just(0_u64), 0..40_u64, 0..900_u64],
        ),
        1..most,
    )
}

/// Runs a check on each step of a history, with the parameters, the cost and the instant.
fn each<'a>(
    all: &'a [Algorithm],
    asked: &'a Asked,
) -> impl Iterator<Item = (&'a Algorithm, u64, Timestamp)> + use<'a> {
    let at = asked.iter().scan(T0, |now, (_, _, ahead)| {
        *now = now.after_micros(*ahead);
        Some(*now)
    });
    asked
        .iter()
        .zip(at)
        .map(|((place, cost, _), now)| (&all[place % all.len()], *cost, now))
}

/// Histories of each property: with the lives that equal the reference, more than 100,000 in all.
const HISTORIES: u32 = 6_000;

/// Law 7 (ii): the largest tier alone would have admitted all that was admitted, if it forgets no
/// unit later than the others do.
#[test]
fn law_07_a_change_of_tier_buys_no_more_than_the_largest_admits() {
    run_times(
        HISTORIES,
        "ladders",
        &(ladder(), asked(200)),
        |(tiers, asked)| {
            let (store, largest) = (OneKey::new(), tiers.last().unwrap());
            let mut alone = largest.fresh();
            for (by, cost, now) in each(tiers, asked) {
                if store.ask(by, cost, now).is_admitted() {
                    let (state, verdict) = largest.decide(alone, now, cost);
                    prop_assert!(
                        verdict.is_admitted(),
                        "{} units at {:?} of {:?}",
                        cost,
                        now,
                        largest
                    );
                    alone = state;
                }
            }
            Ok(())
        },
    );
}

/// For parameters of any kinds: at most the sum of what each of them alone would admit to a client
/// that takes all units as soon as they are there.
#[test]
fn law_07_a_change_of_parameters_buys_no_more_than_all_of_them_admit() {
    run_times(
        HISTORIES,
        "unlike",
        &(unlike_counters(), asked(100)),
        |(all, asked)| {
            let store = OneKey::new();
            let mut alone: Vec<State> = all.iter().map(Algorithm::fresh).collect();
            let (mut admitted, mut most) = (0, 0);
            for (by, cost, now) in each(all, asked) {
                for (by, state) in all.iter().zip(&mut alone) {
                    let left = by.peek(state, now).remaining();
                    *state = by.decide(state.clone(), now, left).0;
                    most += u128::from(left);
                }
                let cost = if cost == 13 {
                    store.ask(by, 0, now).remaining()
                } else {
                    cost
                };
                admitted += u128::from(cost) * u128::from(store.ask(by, cost, now).is_admitted());
                prop_assert!(
                    admitted <= most,
                    "{} admitted of {} at {:?}",
                    admitted,
                    most,
                    now
                );
            }
            Ok(())
        },
    );
}

/// A log holds more and is quicker than a bucket that drains a part of each unit sooner than the
/// log forgets it. What drained at the bucket's pace is not known to the log.
#[test]
fn law_07_units_drain_at_the_pace_of_the_parameters_charged_last() {
    let log = SlidingLog::new(Rate::new(3, Duration::from_micros(10)))
        .build()
        .unwrap();
    let bucket = Gcra::new(Rate::new(2, Duration::from_micros(10)))
        .burst(1)
        .build()
        .unwrap();
    let store = OneKey::new();
    assert!(store.ask(&bucket, 1, T0).is_admitted());
    assert!(
        store.ask(&log, 3, T0.after_micros(5)).is_admitted(),
        "four within ten microseconds"
    );
    assert!(!store.ask(&bucket, 1, T0.after_micros(14)).is_admitted());
}

/// Law 7 (iii): a smaller limit's charge counts in the larger one as so many units, and no refusal
/// or look of it counts.
#[test]
fn law_07_a_charge_counts_its_units_under_every_other_parameters() {
    run_times(
        HISTORIES,
        "charges",
        &(unlike_counters(), asked(60)),
        |(all, asked)| {
            let store = OneKey::new();
            for (by, cost, now) in each(all, asked) {
                let left = || {
                    all.iter()
                        .map(|other| store.ask(other, 0, now).remaining())
                        .collect::<Vec<_>>()
                };
                let before = left();
                let is_admitted = store.ask(by, cost, now).is_admitted();
                for ((other, before), after) in all.iter().zip(before).zip(left()) {
                    let expected = if is_admitted {
                        before.saturating_sub(cost)
                    } else {
                        before
                    };
                    prop_assert_eq!(after, expected, "{} by {:?}, in {:?}", cost, by, other);
                }
            }
            Ok(())
        },
    );
}

/// However long the smaller limits' charges take to drain: the largest has no less than if all
/// charges were its own, but for what the others hold, and for what they admitted that it would
/// have refused.
#[test]
fn law_07_smaller_limits_cost_the_largest_no_more_than_they_hold() {
    let slow = (ladder(), 1..50_u64).prop_map(|(mut tiers, slower)| {
        let last = tiers.len() - 1;
        for tier in &mut tiers[..last] {
            let rate = tier.rate();
            let rate = Rate::new(rate.count(), rate.period() * u32::try_from(slower).unwrap());
            let capacity = tier.capacity();
            *tier = Gcra::new(rate).burst(capacity).build().unwrap();
        }
        tiers
    });
    run_times(HISTORIES, "slow", &(slow, asked(100)), |(tiers, asked)| {
        let (store, (largest, smaller)) = (OneKey::new(), tiers.split_last().unwrap());
        let held = smaller.iter().map(Algorithm::capacity).max().unwrap();
        let (mut alone, mut refused) = (largest.fresh().written_under(largest), 0);
        for (by, cost, now) in each(tiers, asked) {
            let left = [
                store.ask(largest, 0, now).remaining(),
                largest.peek(&alone, now).remaining(),
            ];
            prop_assert!(
                left[0] + held + refused >= left[1],
                "{:?} left at {:?}",
                left,
                now
            );
            if store.ask(by, cost, now).is_admitted() {
                // Units that drained sooner under the smaller limits left room that the largest
                // does not have alone.
                let fits = cost.min(largest.peek(&alone, now).remaining());
                refused += cost - fits;
                alone = largest.decide(alone, now, fits).0;
            }
        }
        Ok(())
    });
}
