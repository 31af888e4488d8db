//! Laws 5 and 6: requests that race for K units get exactly K, whatever runs at the same time. Which
//! members a composition charges is checked by the exact model of law 8.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::backend::{Ban, Call, Exception, KeyStep, Receipt, Treatment};
use throttle_core::{
    Algorithm, Cost, FixedWindow, Gcra, IntoAlgorithm, Key, ManualClock, MemoryBackend, MemorySet,
    Policy, PolicySet, PolicyTree, Rate, SlidingLog, SlidingWindow, Timestamp,
};
use throttle_core::{AnyCharge, Backend};

use crate::support::spec::{Cadence, Kind, Spec, TODAY};

fn frozen(max_keys: usize) -> MemoryBackend<ManualClock> {
    MemoryBackend::builder()
        .clock(ManualClock::new(Timestamp::from_micros(TODAY)))
        .max_keys(max_keys)
        .build()
}

fn one_of(name: &str, kind: Kind, limit: u64) -> Policy {
    let hour = 3_600_000_000;
    let spec = match kind {
        Kind::Gcra => Spec::gcra(limit, hour, limit),
        Kind::TokenBucket => Spec::token_bucket(limit, hour, limit),
        Kind::LeakyMeter => Spec::leaky_meter(limit, hour, limit),
        Kind::Interval => Spec::Interval {
            capacity: limit,
            refill: 1,
            interval: hour,
            aligned: false,
        },
        Kind::Fixed => Spec::fixed(limit, 24 * hour),
        Kind::Log => Spec::log(limit, hour),
        Kind::Buckets => Spec::buckets(limit, hour, 10),
        Kind::Calendar => Spec::calendar(limit, Cadence::Month, 0),
        Kind::Shaper | Kind::Undelayed => Spec::shaper(1, hour, hour * (limit - 1)),
    };
    Policy::new(name, spec.algorithm()).expect("a valid name")
}

async fn race(
    backend: &MemoryBackend<ManualClock>,
    set: &Arc<MemorySet>,
    tasks: usize,
    work: impl Fn(MemoryBackend<ManualClock>, Arc<MemorySet>, usize) + Clone + Send + 'static,
) {
    let spawned = (0..tasks).map(|task| {
        let (backend, set, work) = (backend.clone(), Arc::clone(set), work.clone());
        tokio::spawn(async move { work(backend, set, task) })
    });
    for task in spawned.collect::<Vec<_>>() {
        task.await.expect("no task panics");
    }
}

/// Transfers charge sender and receiver by one limit, in either order: both or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn law_05_two_keys_of_one_policy_are_charged_together_or_not() {
    const ACCOUNTS: u64 = 8;
    const UNITS: u64 = 500;
    for kind in [Kind::Gcra, Kind::Log] {
        let backend = frozen(1_000);
        let policy = one_of("account", kind, UNITS);
        let alone = backend.prepare(PolicySet::new(policy.clone()).unwrap());
        let both = PolicyTree::All(vec![policy.into(); 2]);
        let set = Arc::new(
            backend
                .prepare(PolicySet::repeating(both).unwrap())
                .unwrap(),
        );
        let admitted = Arc::new([const { AtomicU64::new(0) }; ACCOUNTS as usize]);
        let counted = Arc::clone(&admitted);
        race(&backend, &set, 16, move |backend, set, task| {
            for turn in 0..400 {
                let from = (task as u64 * 7 + turn) % ACCOUNTS;
                let to = (from + 1 + turn % (ACCOUNTS - 1)) % ACCOUNTS;
                let calls = [from, to].map(|key| Call::from(Key::from(key)));
                if backend.decide_now(&set, &calls).is_admitted() {
                    for key in [from, to] {
                        counted[key as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        })
        .await;
        let alone = alone.unwrap();
        let used = (0..ACCOUNTS).map(|key| {
            let peek = backend.decide_now(&alone, &[Call::peek(Key::from(key))]);
            UNITS - peek.remaining()
        });
        let used: Vec<u64> = used.collect();
        let counts: Vec<u64> = admitted.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        assert_eq!(used, counts, "{kind:?}");
        assert!(used.contains(&UNITS), "somebody ran out: {used:?}");
    }
}

/// 64 tasks, 200 keys, K units each, on a clock that stands still: exactly K are admitted, again
/// and again.
async fn exactly(k: u64, repetitions: u64) {
    const KEYS: u64 = 200;
    const TASKS: usize = 64;
    // Just enough rounds that the tasks request more of every key than it has.
    let rounds = k / TASKS as u64 + 2;
    let gcra = Gcra::new(Rate::per_hour(1)).burst(k);
    for repetition in 0..repetitions {
        let backend = frozen(if repetition % 2 == 0 { 1_000_000 } else { 200 });
        let set = PolicySet::new(Policy::new("race", gcra).unwrap()).unwrap();
        let set = Arc::new(backend.prepare(set).unwrap());
        let admitted: Arc<Vec<AtomicU64>> =
            Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect());
        let count = Arc::clone(&admitted);
        race(&backend, &set, TASKS, move |backend, set, task| {
            for round in 0..rounds {
                for key in 0..KEYS {
                    // Tasks visit the keys in different orders.
                    let key = (key * 7 + task as u64 * 13 + round) % KEYS;
                    let allowed = backend
                        .decide_now(&set, &[Call::from(Key::from(key))])
                        .is_admitted();
                    count[key as usize].fetch_add(allowed.into(), Ordering::Relaxed);
                }
            }
        })
        .await;
        for (key, admitted) in admitted.iter().enumerate() {
            assert_eq!(
                admitted.load(Ordering::Relaxed),
                k,
                "key {key}, repetition {repetition}"
            );
        }
        assert!(backend.keys() <= 1_000_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn law_06_exactly_k_of_64_tasks_on_200_keys() {
    for (k, repetitions) in [(1, 50), (7, 100), (1_000, 10)] {
        exactly(k, repetitions).await;
    }
}

/// Eight threads on two keys, which they name in both orders, of two policies: both states small,
/// both large, and one of each. Other keys come, go and are reset beside them, so that tables grow
/// and places of large states change hands.
#[test]
fn law_06_eight_threads_on_small_and_large_states_admit_exactly_k() {
    const THREADS: u64 = 8;
    const DECISIONS: u64 = 3_000;
    const UNITS: u64 = 9_000;
    let small = || {
        FixedWindow::new(Rate::per_day(UNITS))
            .into_algorithm()
            .unwrap()
    };
    let log = || {
        SlidingLog::new(Rate::per_day(UNITS))
            .into_algorithm()
            .unwrap()
    };
    let window = || {
        SlidingWindow::new(Rate::per_day(UNITS))
            .into_algorithm()
            .unwrap()
    };
    let pairs = [
        [small(), small()],
        [small(), log()],
        [window(), small()],
        [log(), window()],
    ];
    for (pair, max_keys) in pairs
        .into_iter()
        .flat_map(|pair| [(pair, 1_000_000), (pair, 300), (pair, 100)])
    {
        let backend = frozen(max_keys);
        let prepare = |names: [&str; 2], pair: [Algorithm; 2]| {
            let member =
                |(name, algorithm)| PolicyTree::from(Policy::new(name, algorithm).unwrap());
            let members = names.into_iter().zip(pair).map(member).collect();
            Arc::new(
                backend
                    .prepare(PolicySet::new(PolicyTree::All(members)).unwrap())
                    .unwrap(),
            )
        };
        let (both, passing) = (prepare(["a", "b"], pair), prepare(["c", "d"], pair));
        let alone = PolicySet::new(Policy::new("alone", pair[1]).unwrap()).unwrap();
        let alone = Arc::new(backend.prepare(alone).unwrap());
        let (admitted, admitted_alone) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (backend, both, passing, alone) = (&backend, &both, &passing, &alone);
                let (admitted, admitted_alone) = (&admitted, &admitted_alone);
                scope.spawn(move || {
                    let keys = if thread % 2 == 0 {
                        ["x", "y"]
                    } else {
                        ["y", "x"]
                    };
                    let everybody = keys.map(|key| Call::from(Key::from(key)));
                    for n in 0..DECISIONS {
                        let decision = backend.decide_now(both, &everybody);
                        admitted.fetch_add(decision.is_admitted().into(), Ordering::Relaxed);
                        let decision = backend.decide_now(alone, &everybody[..1]);
                        admitted_alone.fetch_add(decision.is_admitted().into(), Ordering::Relaxed);
                        if n % 8 == 0 {
                            // A key that only this thread uses, and no two of its policies in one
                            // shard.
                            let keys =
                                [0, 1].map(|half| Key::from(n * 2 * THREADS + 2 * thread + half));
                            let calls = keys.clone().map(Call::from);
                            for used in 1..=2 {
                                let own = backend.decide_now(passing, &calls);
                                for status in
                                    own.statuses().iter().filter(|status| !status.is_overflow())
                                {
                                    assert_eq!(
                                        status.remaining(),
                                        UNITS - used,
                                        "charged by no other thread"
                                    );
                                }
                            }
                            for (policy, key) in keys.iter().enumerate() {
                                drop(backend.run(passing, policy, KeyStep::Reset(key.clone())));
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(
            [admitted, admitted_alone].map(AtomicU64::into_inner),
            [2 * UNITS; 2],
            "{pair:?}"
        );
        let left = backend.decide_now(&both, &["x", "y"].map(|key| Call::peek(Key::from(key))));
        assert_eq!(left.remaining(), 0);
    }
}

/// One thread charges a key and gives the charge back, again and again. Threads that look at the
/// key meanwhile see it as it is before or after a charge, and no mixture of the two.
#[test]
fn law_06_looks_beside_charges_and_refunds_see_no_mixture() {
    const LOOKS: usize = 150_000;
    // A unit each 1,500,000.5 µs, so that a charge changes the whole microseconds of a state and
    // the part of one.
    let gcra = Gcra::new(Rate::new(2, Duration::from_micros(3_000_001))).burst(4);
    let backend = frozen(1_000);
    let set = Arc::new(
        backend
            .prepare(PolicySet::new(Policy::new("p", gcra).unwrap()).unwrap())
            .unwrap(),
    );
    let calls = [Call::from(Key::from("key"))];
    let first = backend.decide_now(&set, &calls).reset_after();
    let second = first + Duration::from_micros(1_500_000);
    std::thread::scope(|scope| {
        let looks = [(); 2].map(|()| {
            scope.spawn(|| {
                let look = [Call::peek(Key::from("key"))];
                for _ in 0..LOOKS {
                    let seen = backend.decide_now(&set, &look).reset_after();
                    assert!(seen == first || seen == second, "{seen:?}");
                }
            })
        });
        while !looks.iter().all(|looking| looking.is_finished()) {
            let decision = backend.decide_now(&set, &calls);
            backend.settle_now(
                &set,
                Receipt::of(&decision, &calls).expect("admitted").actual(0),
            );
        }
    });
}

/// Every algorithm, one key, mixed costs: the units admitted never exceed K, and requests of cost 1
/// use up the last of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn law_06_attack_34_exactly_k_units_of_every_algorithm() {
    for kind in Kind::ALL {
        let backend = frozen(1_000);
        let set = Arc::new(
            backend
                .prepare(PolicySet::new(one_of("race", kind, 97)).unwrap())
                .unwrap(),
        );
        let units = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&units);
        race(&backend, &set, 64, move |backend, set, task| {
            for cost in [1 + task as u64 % 5, 1, 1] {
                let call = Call::new(Key::from("key"), Cost::new(cost).unwrap());
                let allowed = backend.decide_now(&set, &[call]).is_admitted();
                count.fetch_add(if allowed { cost } else { 0 }, Ordering::Relaxed);
            }
        })
        .await;
        assert_eq!(units.load(Ordering::Relaxed), 97, "{kind:?}");
    }
}

/// Fifty callers race for a capacity of one through the trait's own `decide`.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn trap_v26_one_unit_for_fifty_callers() {
    let backend = frozen(1_000);
    let log = SlidingLog::new(Rate::per_hour(1));
    let set = Arc::new(
        backend
            .prepare(PolicySet::new(Policy::new("one", log).unwrap()).unwrap())
            .unwrap(),
    );
    let callers = (0..50).map(|_| {
        let (backend, set) = (backend.clone(), Arc::clone(&set));
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            backend
                .decide(&set, &[Call::from(Key::from("key"))])
                .await
                .expect("memory never fails")
                .is_admitted()
        })
    });
    let mut admitted = 0;
    for caller in callers.collect::<Vec<_>>() {
        admitted += usize::from(caller.await.expect("no task panics"));
    }
    assert_eq!(admitted, 1);
}

/// The work of a decision grows with the size of the set, not exponentially with its depth.
#[test]
fn law_12_nesting_is_not_paid_for_twice_at_every_level() {
    use throttle_core::backend::Call;
    use throttle_core::{Gcra, Key, Policy, PolicySet, PolicyTree, Rate, Timestamp};
    let leaf = PolicyTree::from(Policy::new("leaf", Gcra::new(Rate::per_second(1))).unwrap());
    let nested = (0..PolicySet::MAX_DEPTH).fold(leaf, |rule, _| {
        PolicyTree::Any(vec![rule], Default::default())
    });
    let set = PolicySet::new(nested).unwrap();
    let mut states = [set.policies()[0].algorithm().fresh()];
    let call = [Call::from(Key::from("key"))];
    // If each level doubled the work, this would not end.
    assert!(
        set.decide(&mut states, Timestamp::EPOCH, &call)
            .is_admitted()
    );
    let denied = set.decide(&mut states, Timestamp::EPOCH, &call);
    assert_eq!((denied.is_admitted(), denied.binding()), (false, Some(0)));
}

/// A tree of so many policies: one `all`, one `any`, or both nested in each other.
fn tree(shape: usize, members: Vec<PolicyTree>) -> PolicyTree {
    let any = |members, every: bool| {
        PolicyTree::Any(
            members,
            if every {
                AnyCharge::EveryAdmitting
            } else {
                AnyCharge::First
            },
        )
    };
    let groups = |wrap: &dyn Fn(Vec<PolicyTree>) -> PolicyTree| -> Vec<PolicyTree> {
        members
            .chunks(3)
            .map(|group| wrap(group.to_vec()))
            .collect()
    };
    match shape {
        0 => PolicyTree::All(members),
        1 => any(members, false),
        2 => any(members, true),
        3 => PolicyTree::All(groups(&|group| any(group, false))),
        4 => PolicyTree::All(groups(&|group| any(vec![PolicyTree::All(group)], true))),
        5 => any(groups(&PolicyTree::All), false),
        _ => any(
            groups(&|group| any(vec![PolicyTree::All(group)], false)),
            true,
        ),
    }
}

/// Eight threads skip limits at random, and ask for some with a reserve, or under parameters of
/// their own that say the same. One key has a strike, and one an exception of the same limit. Each
/// limit admits exactly what it holds to those that it applied to, and no request is charged by a
/// part of its set.
#[test]
fn law_06_limits_that_threads_skip_at_random_admit_exactly_what_they_hold() {
    for shape in 0..7 {
        let limits = [40_u64, 90, 60, 30, 70];
        let backend = frozen(10_000);
        let kinds = [
            Kind::Gcra,
            Kind::Fixed,
            Kind::Log,
            Kind::TokenBucket,
            Kind::Buckets,
        ];
        let member = |n: usize| one_of(&format!("p{n}"), kinds[n], limits[n]).into();
        let set = PolicySet::new(tree(shape, (0..limits.len()).map(member).collect())).unwrap();
        let own: [_; 5] = std::array::from_fn(|n| Arc::new(*set.policies()[n].algorithm()));
        let set = Arc::new(backend.prepare(set).unwrap());
        drop(backend.run(&set, 1, KeyStep::Strike(Key::from(0), Ban::after(2))));
        let same = Exception {
            treatment: Treatment::Limit(Arc::clone(&own[3])),
            until: Timestamp::MAX,
        };
        drop(backend.run(&set, 3, KeyStep::Except(Key::from(1), Some(same))));
        let charged: [AtomicU64; 5] = std::array::from_fn(|_| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (backend, set, charged, own) = (&backend, &set, &charged, &own);
                scope.spawn(move || {
                    let mut seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread + 1);
                    for _ in 0..400 {
                        seed = seed
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        // Some limits have the same key, and so the same shard.
                        let call = |n: usize| match seed >> (30 + 4 * n) & 15 {
                            0..7 => Call::SKIP,
                            7 => Call::from(Key::from(n as u64 / 2)).reserving(5),
                            8 => Call::from(Key::from(n as u64 / 2)).under(Arc::clone(&own[n])),
                            _ => Call::from(Key::from(n as u64 / 2)),
                        };
                        let decision =
                            backend.decide_now(set, &std::array::from_fn::<_, 5, _>(call));
                        for (charged, status) in charged.iter().zip(decision.statuses()) {
                            assert!(
                                decision.is_admitted() || status.charged() == 0,
                                "{decision:?}"
                            );
                            charged.fetch_add(status.charged(), Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let left = |n: usize| {
            let peek = std::array::from_fn::<_, 5, _>(|of| {
                if of == n {
                    Call::peek(Key::from(n as u64 / 2))
                } else {
                    Call::SKIP
                }
            });
            backend.decide_now(&set, &peek).statuses()[n].remaining()
        };
        for (n, limit) in limits.into_iter().enumerate() {
            assert_eq!(
                charged[n].load(Ordering::Relaxed) + left(n),
                limit,
                "limit {n} of shape {shape}"
            );
        }
        assert!(
            (0..limits.len()).any(|n| left(n) == 0),
            "shape {shape} uses some limit up"
        );
    }
}
