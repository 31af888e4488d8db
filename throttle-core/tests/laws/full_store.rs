//! A store without room: newcomers share an overflow bucket for each set of parameters, which may
//! refuse early and never admits too much. While the store is full, a key without a place has a
//! budget in the bucket of each of its parameters.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use throttle_core::algorithm::State;
use throttle_core::backend::{Call, KeyStep, Receipt};
use throttle_core::{
    Algorithm, Backend, Decision, FixedWindow, Gcra, IntoAlgorithm, Key, LeakyBucket, ManualClock,
    MemoryBackend, MemorySet, Policy, PolicySet, PolicyTree, Rate, SlidingLog, SlidingWindow,
    Timestamp, TokenBucket,
};

use crate::support::machines::{InMemory, Machine, Pure};
use crate::support::reference::reported;
use crate::support::spec::{HOUR, Kind, Tree};
use crate::support::strategies::{any_spec, run, run_times};
use crate::support::trace::{Case, cases};

const T0: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);
const SECOND: u64 = 1_000_000;

/// A store that keys of another policy fill.
struct FullStore {
    backend: MemoryBackend<ManualClock>,
    clock: ManualClock,
}

impl FullStore {
    fn of(max_keys: usize) -> Self {
        let clock = ManualClock::new(T0);
        let backend = MemoryBackend::builder()
            .clock(clock.clone())
            .max_keys(max_keys)
            .build();
        let filler = Policy::new("filler", FixedWindow::new(Rate::per_day(9))).unwrap();
        let filler = backend.prepare(PolicySet::new(filler).unwrap()).unwrap();
        for key in 0..max_keys as u64 {
            assert!(
                backend
                    .decide_now(&filler, &[Call::from(Key::from(key))])
                    .is_admitted()
            );
        }
        Self { backend, clock }
    }

    fn prepare(&self, tree: impl Into<PolicyTree>) -> MemorySet {
        self.backend.prepare(PolicySet::new(tree).unwrap()).unwrap()
    }

    /// A decision about a new key of one policy.
    fn ask(&self, set: &MemorySet, tier: u8, cost: u64) -> Decision {
        self.backend.decide_now(set, &[call(cost).in_tier(tier)])
    }

    fn left(&self, set: &MemorySet, tier: u8) -> u64 {
        self.ask(set, tier, 0).remaining()
    }

    /// Forgets the keys that fill the store, so that there is room for others.
    fn make_room(&self) {
        drop(self.backend.reset_all("filler"));
        assert_eq!(self.backend.keys(), 0);
    }
}

fn call(cost: u64) -> Call {
    Call::from(Key::from("newcomer")).costing(cost)
}

fn per_hour(count: u64) -> Gcra {
    Gcra::new(Rate::per_hour(count))
}

fn plan(counts: &[u64]) -> Policy {
    let tiers = counts
        .iter()
        .enumerate()
        .map(|(tier, count)| (format!("t{tier}"), per_hour(*count)));
    Policy::tiered("plan", tiers).unwrap()
}

#[test]
fn law_09_each_tier_has_a_bucket_while_the_store_is_full() {
    let store = FullStore::of(1);
    let set = store.prepare(plan(&[10, 100]));
    for tier in [0, 1] {
        assert!(store.ask(&set, tier, 6).statuses()[0].is_overflow());
    }
    assert_eq!(
        [0, 1].map(|tier| store.left(&set, tier)),
        [4, 94],
        "what a tier counts is not used in the other"
    );
    let refused = store.ask(&set, 0, 5);
    assert!(!refused.is_admitted());
    store.clock.set(T0 + refused.retry_after().unwrap());
    assert!(store.ask(&set, 0, 5).is_admitted(), "law 2");
}

#[test]
fn law_09_own_parameters_have_a_bucket_while_the_store_is_full() {
    let store = FullStore::of(1);
    let policy = plan(&[10]);
    let set = store.prepare(policy.clone());
    let own = [15, 40].map(|count| policy.own(per_hour(count)).unwrap());
    let ask = |own: &Arc<Algorithm>, cost| {
        store
            .backend
            .decide_now(&set, &[call(cost).under(Arc::clone(own))])
    };
    for own in &own {
        assert!(ask(own, 6).statuses()[0].is_overflow());
    }
    assert_eq!(own.each_ref().map(|own| ask(own, 0).remaining()), [9, 34]);
    let peek = store.ask(&set, 0, 0).statuses()[0];
    assert_eq!(
        (peek.remaining(), peek.is_overflow()),
        (10, false),
        "no bucket counts for a key of which nothing is known"
    );
    assert!(!ask(&own[0], 10).is_admitted() && ask(&own[0], 9).is_admitted());
}

/// The bucket of parameters that are its own, and no other's.
#[test]
fn law_09_a_key_that_gets_a_place_keeps_what_its_bucket_counts() {
    let store = FullStore::of(1);
    let set = store.prepare(plan(&[10, 100]));
    assert!(store.ask(&set, 0, 6).is_admitted());
    store.make_room();
    assert_eq!(
        store.left(&set, 0),
        4,
        "the key may have used the shared units"
    );
    let decision = store.ask(&set, 0, 1);
    assert_eq!(
        (decision.statuses()[0].is_overflow(), decision.remaining()),
        (false, 3)
    );
    assert_eq!(store.left(&set, 1), 93, "one state for all tiers");
}

#[test]
fn law_10_refund_of_a_forgotten_key_leaves_the_bucket_of_others_as_it_is() {
    let store = FullStore::of(1);
    store.make_room();
    let set = Arc::new(store.prepare(Policy::new("p", per_hour(9)).unwrap()));
    let take = |key: &'static str, cost| {
        let calls = [Call::from(Key::from(key)).costing(cost)];
        let decision = store.backend.decide_now(&set, &calls);
        (
            (decision.remaining(), decision.statuses()[0].is_overflow()),
            Receipt::of(&decision, &calls),
        )
    };
    let (_, forgotten) = take("ada", 3);
    drop(store.backend.run(&set, 0, KeyStep::Reset(Key::from("ada"))));
    assert_eq!(
        [take("bob", 1).0, take("eve", 5).0],
        [(8, false), (4, true)],
        "eve has the bucket"
    );
    store.backend.settle_now(&set, forgotten.unwrap().actual(0));
    assert_eq!(take("eve", 0).0, (4, true));
}

/// The shared bucket of one policy is idle, and another policy of the same request looks for room,
/// mostly among other slots than the first one: the bucket is not forgotten while it is being
/// charged.
#[test]
fn law_05_a_bucket_that_a_request_charges_is_not_swept_by_it() {
    let store = FullStore::of(128);
    let policy = |name| Policy::new(name, FixedWindow::new(Rate::per_second(9))).unwrap();
    let (a, both) = (
        store.prepare(policy("a")),
        vec![policy("a").into(), policy("b").into()],
    );
    let both = store.prepare(PolicyTree::All(both));
    for round in 0..60 {
        store.clock.set(T0.after_micros(round * 3 * SECOND));
        assert!(store.ask(&a, 0, 2).statuses()[0].is_overflow());
        store.clock.advance(Duration::from_secs(1));
        let calls = [1, 2].map(|key| Call::from(Key::from(key)).costing(3));
        let decision = store.backend.decide_now(&both, &calls);
        assert!(
            decision
                .statuses()
                .iter()
                .all(|status| status.is_overflow() && status.remaining() == 6)
        );
        assert_eq!(
            store.left(&a, 0),
            6,
            "what was charged to the shared bucket is there"
        );
    }
}

/// A key without a place that a set of several policies looks at, or refuses, counts what its
/// bucket counts.
#[test]
fn law_09_a_set_reads_the_bucket_of_a_key_that_it_does_not_charge() {
    let store = FullStore::of(1);
    let (a, b) = (plan(&[10]), Policy::new("other", per_hour(2)).unwrap());
    let (alone, both) = (
        store.prepare(a.clone()),
        store.prepare(PolicyTree::All(vec![a.into(), b.into()])),
    );
    assert!(store.ask(&alone, 0, 6).is_admitted());
    for (cost, admitted) in [(0, true), (3, false)] {
        let decision = store.backend.decide_now(&both, &[call(cost), call(cost)]);
        let plan = &decision.statuses()[0];
        assert_eq!(
            (decision.is_admitted(), plan.remaining(), plan.is_overflow()),
            (admitted, 4, true),
            "{cost} units"
        );
    }
}

/// Parameters of any kind and pace.
fn unlike() -> impl Strategy<Value = Vec<Algorithm>> {
    let count = || prop::sample::select(vec![1_u64, 2, 3, 5, 8, 13, 60]);
    prop::collection::vec((0..5_usize, count(), 1..40_u64), 2..4).prop_map(|all| {
        let one = |(kind, count, period)| {
            let rate = Rate::new(count, Duration::from_micros(period * 10));
            match kind {
                0 => Gcra::new(rate).into_algorithm(),
                1 => TokenBucket::new(rate).into_algorithm(),
                2 => SlidingLog::new(rate).into_algorithm(),
                3 => SlidingWindow::new(rate).into_algorithm(),
                _ => FixedWindow::new(rate).into_algorithm(),
            }
        };
        all.into_iter().map(|each| one(each).unwrap()).collect()
    })
}

type Steps = Vec<(u8, u64, u64)>;

fn steps() -> impl Strategy<Value = Steps> {
    prop::collection::vec(
        (
            0..4_u8,
            0..14_u64,
            prop_oneof![Just(0_u64), 0..40_u64, 0..900_u64],
        ),
        1..120,
    )
}

/// Keys that never change their parameters get no more than these alone admit, while they share
/// buckets and after they get a place, in tiers and under parameters of their own.
#[test]
fn law_09_a_key_of_a_full_store_gets_no_more_than_its_parameters_admit() {
    run(
        "unlike",
        &(unlike(), steps(), 1..4_usize),
        |(all, steps, max_keys)| {
            let clock = ManualClock::new(T0);
            let backend = MemoryBackend::builder()
                .clock(clock.clone())
                .max_keys(*max_keys)
                .build();
            // The first is the policy's, and the others are the keys' own.
            let set = backend
                .prepare(PolicySet::new(Policy::new("policy", all[0]).unwrap()).unwrap())
                .unwrap();
            let own: Vec<Arc<Algorithm>> = all.iter().copied().map(Arc::new).collect();
            let mut alone: Vec<State> = (0..6).map(|key| all[key % all.len()].fresh()).collect();
            let mut now = T0;
            for (step, (dice, cost, ahead)) in steps.iter().enumerate() {
                now = now.after_micros(*ahead);
                clock.set(now);
                let (key, cost) = (
                    (step * 7 + usize::from(*dice)) % alone.len(),
                    (*cost).max(1),
                );
                let place = key % all.len();
                let call = Call::from(Key::from(key as u64)).costing(cost);
                let call = if place == 0 {
                    call
                } else {
                    call.under(Arc::clone(&own[place]))
                };
                if backend.decide_now(&set, &[call]).is_admitted() {
                    let (state, verdict) = all[place].decide(alone[key].clone(), now, cost);
                    prop_assert!(
                        verdict.is_admitted(),
                        "{} units of {} at {:?} of {:?}",
                        cost,
                        key,
                        now,
                        all[place]
                    );
                    alone[key] = state;
                }
            }
            Ok(())
        },
    );
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The clock has stepped back behind an instant at which keys were forgotten: keys without a place
/// of their own are decided at that instant, and their waits and resets count from the clock's
/// time.
#[test]
fn law_04_waits_count_from_a_clock_that_has_stepped_back() {
    let queue = LeakyBucket::new(Rate::per_second(1))
        .max_wait(seconds(1))
        .build()
        .unwrap();
    for (algorithm, delays) in [
        (
            Gcra::new(Rate::per_second(1)).burst(2).build().unwrap(),
            false,
        ),
        (queue, true),
    ] {
        let (clock, policy) = (ManualClock::new(T0), Policy::new("p", algorithm).unwrap());
        let backend = MemoryBackend::builder()
            .clock(clock.clone())
            .max_keys(1)
            .build();
        let second = Policy::new("second", FixedWindow::new(Rate::per_second(9))).unwrap();
        let [set, second] = [policy, second]
            .map(|policy| backend.prepare(PolicySet::new(policy).unwrap()).unwrap());
        let ask = |set: &MemorySet, key: &str, cost| {
            backend.decide_now(set, &[Call::from(Key::from(key)).costing(cost)])
        };
        assert!(ask(&second, "forgotten", 1).is_admitted());
        clock.advance(seconds(1));
        let day = Policy::new("day", FixedWindow::new(Rate::per_day(9))).unwrap();
        let day = backend.prepare(PolicySet::new(day).unwrap()).unwrap();
        assert!(
            !ask(&day, "fills the store", 1).statuses()[0].is_overflow(),
            "the other key was forgotten"
        );
        clock.set(T0);
        let delay = |micros| {
            if delays {
                seconds(micros)
            } else {
                Duration::ZERO
            }
        };
        let answer = |decision: &Decision| {
            (
                decision.delay(),
                decision.reset_after(),
                decision.retry_after(),
            )
        };
        assert_eq!(
            answer(&ask(&set, "ada", 1)),
            (delay(1), seconds(2), Some(Duration::ZERO)),
            "{algorithm:?}"
        );
        let both = ask(&set, "ada", 1);
        assert_eq!(answer(&both), (delay(2), seconds(3), Some(Duration::ZERO)));
        assert_eq!(
            (both.remaining(), both.statuses()[0].is_overflow()),
            (0, true)
        );
        let window = both.statuses()[0]
            .effective_window(&MemoryBackend::<ManualClock>::set(&set).policies()[0]);
        assert_eq!(window, seconds(2), "until the next unit");
        assert_eq!(
            answer(&ask(&set, "ada", 1)),
            (Duration::ZERO, seconds(3), Some(seconds(2)))
        );
        assert_eq!(
            answer(&ask(&set, "ada", 3)),
            (Duration::ZERO, seconds(3), None),
            "never"
        );
        assert_eq!(answer(&ask(&set, "ada", 0)).1, seconds(3));
    }
}

/// The clock has stepped back into the window of a key that was forgotten when that window ended.
/// A charge of an absent key counts in the window after it, so a peek states the end of that one.
#[test]
fn law_04_a_peek_after_a_step_back_states_the_window_of_a_charge() {
    const NOON: Timestamp = Timestamp::from_micros(1_790_078_400_000_000);
    let clock = ManualClock::new(NOON);
    let backend = MemoryBackend::builder()
        .clock(clock.clone())
        .max_keys(1)
        .build();
    let policy = |name, rate| Policy::new(name, FixedWindow::new(rate)).unwrap();
    let hour = policy("hour", Rate::per_hour(9));
    let prepare = |tree: PolicyTree| backend.prepare(PolicySet::new(tree).unwrap()).unwrap();
    let alone = prepare(hour.clone().into());
    let both = prepare(PolicyTree::All(vec![
        hour.clone().into(),
        policy("day", Rate::per_day(9)).into(),
    ]));
    let window = |set: &MemorySet, key: &'static str, cost| {
        let calls = [0, 1].map(|_| Call::from(Key::from(key)).costing(cost));
        let calls = &calls[..MemoryBackend::<ManualClock>::set(set).policies().len()];
        backend.decide_now(set, calls).statuses()[0].effective_window(&hour)
    };
    window(&alone, "is forgotten", 1);
    clock.advance(seconds(3_600));
    window(&alone, "takes its room", 1);
    clock.set(NOON.after_micros(1_800 * SECOND));
    for (set, cost) in [(&alone, 0), (&both, 0), (&alone, 1)] {
        assert_eq!(window(set, "ada", cost), seconds(5_400), "{cost} units");
    }
}

/// A key whose bucket no other key shares is decided as if the bucket were the key's own. All but
/// the shaper that refuses what it would delay: what it gives back depends on whether the schedule
/// was free in between.
#[test]
fn law_08_overflow_bucket_of_one_key_decides_as_the_keys_own_state() {
    let check = |case: &Case| {
        let store = FullStore::of(1);
        let mut full = InMemory {
            prepared: Arc::new(store.prepare(case.tree.policies())),
            backend: store.backend,
            clock: store.clock,
        };
        let mut own = Pure::new(&case.tree);
        let mut open = Vec::new();
        let mut t = T0.as_micros();
        for raw in &case.raws {
            // The key that fills the store lives for a day.
            t = (t + raw.micros(case.tree.step(), false)).min(T0.as_micros() + HOUR as i64);
            if raw.what > 6 && !open.is_empty() {
                let receipts: [Receipt; 2] = open.swap_remove(usize::from(raw.pick) % open.len());
                let [one, other] = receipts.map(|receipt| receipt.actual(raw.cost(2).min(9)));
                full.settle(t, one);
                own.settle(t, other);
            }
            let costs = raw.costs(&own.capacities());
            let (found, one) = full.decide(t, &costs);
            let (expected, other) = own.decide(t, &costs);
            prop_assert_eq!(reported(&found), reported(&expected), "at {}", t);
            open.extend(one.zip(other).map(|(one, other)| [one, other]));
        }
        Ok(())
    };
    for kind in Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::Undelayed)
    {
        let limits = any_spec(kind).prop_map(Tree::Leaf).boxed();
        run_times(400, &format!("{kind:?}"), &cases(limits, 60), check);
    }
}

/// Keys of one policy in one request that share a bucket are asked for the sum of their costs.
#[test]
fn law_09_several_new_keys_of_a_request_share_one_bucket() {
    let algorithms: [Algorithm; 3] = [
        per_hour(10).burst(10).build().unwrap(),
        SlidingLog::new(Rate::per_hour(10)).build().unwrap(),
        SlidingWindow::new(Rate::per_hour(10)).build().unwrap(),
    ];
    for (algorithm, is_known) in algorithms.iter().flat_map(|a| [(a, false), (a, true)]) {
        // One shard.
        let store = FullStore::of(16);
        let policy = Policy::new("p", *algorithm).unwrap();
        let alone = store.prepare(policy.clone());
        let set = PolicySet::repeating(PolicyTree::All(vec![policy.into(); 3])).unwrap();
        let set = store.backend.prepare(set).unwrap();
        if is_known {
            assert!(store.ask(&alone, 0, 1).is_admitted());
        }
        let left = store.left(&alone, 0);
        let ask = |costs: [u64; 3]| {
            let calls =
                [0, 1, 2].map(|n| Call::from(Key::from(1_000 + n)).costing(costs[n as usize]));
            store.backend.decide_now(&set, &calls)
        };
        assert!(!ask([left - 5, 4, 2]).is_admitted());
        assert_eq!(
            store.left(&alone, 0),
            left,
            "a refused request charges nothing"
        );
        let admitted = ask([3, 0, 2]);
        assert!(admitted.is_admitted(), "{algorithm:?}: {admitted:?}");
        let charged = admitted.statuses().iter().filter(|s| s.charged() > 0);
        assert!(
            charged.map(|s| s.is_overflow()).eq([true, true]),
            "{admitted:?}"
        );
        assert_eq!(store.left(&alone, 0), left - 5);
        assert_eq!(admitted.remaining(), left - 5, "law 3: {algorithm:?}");
        for status in admitted.statuses().iter().filter(|s| s.charged() > 0) {
            assert_eq!(status.remaining(), left - 5, "law 3: {algorithm:?}");
        }
        let calls = [0, 1, 2].map(|n| Call::from(Key::from(1_000 + n)).costing(left - 5));
        let peeks = store.backend.decide_now(&set, &calls.map(Call::peeking));
        assert!(peeks.is_admitted(), "each is decided as if it was alone");
        assert!(ask([1, left - 7, 1]).is_admitted());
        assert_eq!(store.left(&alone, 0), 0, "{algorithm:?}");
        assert!(!ask([0, 0, 1]).is_admitted() && ask([0, 0, 0]).is_admitted());
    }
}

/// Few parameters of keys' own share an overflow bucket, and so may those of two keys of a request.
#[test]
fn law_09_keys_of_a_request_share_a_bucket_and_keep_their_own_limits() {
    let store = FullStore::of(16);
    let of = |count| FixedWindow::new(Rate::per_day(count));
    let policy = Policy::new("p", of(10)).unwrap();
    store.prepare(policy.clone());
    let small = policy.own(of(1)).unwrap();
    let large: Vec<_> = (0..300)
        .map(|n| policy.own(of(1_000 + n)).unwrap())
        .collect();
    let both = PolicyTree::All(vec![policy.into(); 2]);
    let set = PolicySet::repeating(both).unwrap();
    let set = store.backend.prepare(set).unwrap();
    let call = |key: usize, own: &Arc<Algorithm>| {
        Call::from(Key::from(1_000 + key as u64)).under(Arc::clone(own))
    };
    let decide = |calls: [Call; 2]| store.backend.decide_now(&set, &calls);
    let admitted = (large.iter().enumerate())
        .filter(|(n, large)| decide([call(2 * n, large), call(2 * n + 1, &small)]).is_admitted())
        .count();
    assert!(
        admitted <= 1,
        "{admitted} new keys, of which each may use one unit of one bucket"
    );
}

/// A peek's key has no slot after the request, and so shares the bucket.
#[test]
fn law_03_a_peek_reports_what_other_keys_of_the_request_leave_in_a_new_bucket() {
    // Without room, and with room for the peek alone.
    for (room, cost) in [(0, 0), (0, 1), (1, 1)] {
        let store = FullStore::of(16);
        let policy = Policy::new("p", FixedWindow::new(Rate::per_hour(9))).unwrap();
        let alone = store.prepare(policy.clone());
        if room > 0 {
            store.backend.reset_all("filler").into_inner().unwrap();
            let filler = Policy::new("filler", FixedWindow::new(Rate::per_day(9))).unwrap();
            let filler = store.prepare(filler);
            for key in 0..16 - room {
                let call = [Call::from(Key::from(key))];
                assert!(store.backend.decide_now(&filler, &call).is_admitted());
            }
        }
        let set = PolicySet::repeating(PolicyTree::All(vec![policy.into(); 2])).unwrap();
        let set = store.backend.prepare(set).unwrap();
        let [ada, bob] = ["ada", "bob"].map(|key| Call::from(Key::from(key)));
        let calls = [ada.costing(cost).peeking(), bob.costing(4)];
        let decision = store.backend.decide_now(&set, &calls);
        assert!(decision.is_admitted() && decision.statuses()[1].is_overflow());
        let left = store
            .backend
            .decide_now(&alone, &[Call::peek(Key::from("ada"))]);
        assert_eq!(left.remaining(), 5);
        let told = decision.statuses().iter().map(|status| status.remaining());
        assert_eq!(told.collect::<Vec<_>>(), [5, 5], "{room} {cost}");
        assert_eq!(decision.remaining(), 5);
    }
}
