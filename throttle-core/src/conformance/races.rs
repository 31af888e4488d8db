//! Threads that race for what is left.

use std::sync::Barrier;

use super::Harness;
use super::random::Random;
use super::replay::START;
use super::sample::unit_samples;
use super::subject::Subject;
use super::traces::policy;
use crate::algorithm::{Algorithm, Ban, FixedWindow, IntoAlgorithm};
use crate::backend::{Call, KeyStep};
use crate::key::Key;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::set::PolicyTree;

const THREADS: usize = 8;

/// Runs `body` on all threads together, and returns what each has returned.
fn race<T: Send>(body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let ready = &Barrier::new(THREADS);
    let body = &body;
    let run = |thread| {
        move || {
            ready.wait();
            body(thread)
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(run(thread)))
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|outcome| outcome.expect("a thread panicked"))
            .collect()
    })
}

pub(super) fn start<H: Harness>() -> H {
    let harness = H::start();
    harness.set_time(START);
    harness
}

/// Checks a law on a policy of each sample, called `policy`.
pub(super) fn for_each_sample<H: Harness>(law: impl Fn(&Algorithm, &H, &Subject<'_, H>)) {
    for sample in unit_samples::<H>() {
        let harness = start::<H>();
        let subject = Subject::new(&harness, policy("policy", &sample));
        law(&sample, &harness, &subject);
    }
}

pub(super) fn per_day(limit: u64) -> Algorithm {
    FixedWindow::new(Rate::per_day(limit))
        .into_algorithm()
        .expect("a valid quota")
}

/// Threads race for the last K units of a key, first with mixed costs. Exactly K are admitted.
pub fn law_06_exactly_k<H: Harness>() {
    for_each_sample::<H>(|sample, _, subject| {
        let name = sample.name();
        let capacity = sample.capacity();
        for round in 0..12 {
            let key = Key::from(round);
            let used = round % 4;
            if used > 0 {
                assert!(subject.take(&key, used).is_admitted());
            }
            let mixed = if round % 2 == 0 { 4 } else { 0 };
            let admitted = race(|thread| {
                let costs = (0..mixed).map(|i| 1 + (thread as u64 + i) % 3);
                costs
                    .chain(std::iter::repeat_n(1, capacity as usize))
                    .filter(|cost| subject.take(&key, *cost).is_admitted())
                    .sum::<u64>()
            });
            let admitted: u64 = admitted.into_iter().sum();
            assert_eq!(
                admitted,
                capacity - used,
                "law 6, exactly K, {name}: units admitted to {THREADS} threads in round {round}"
            );
            assert_eq!(
                subject.remaining(&key),
                0,
                "law 6, exactly K, {name}: what remains"
            );
        }
    });
}

/// Threads race on an `all` in which one member has K units left. K requests are admitted, and the
/// other members are charged for exactly those.
pub fn law_05_saturated_member_under_contention<H: Harness>() {
    let harness = start::<H>();
    let quotas = [("wide", 1_000), ("narrow", 20), ("shared", 1_000)];
    let members = quotas.map(|(name, limit)| policy(name, &per_day(limit)).into());
    let subject = Subject::new(&harness, PolicyTree::All(members.to_vec()));
    // Each thread has a wide budget of its own; all share the narrow one.
    let calls =
        |thread: usize| [Key::from(thread as u64), Key::CONSTANT, Key::CONSTANT].map(Call::from);
    let admitted = race(|thread| {
        let requests = (0..40).filter(|_| subject.decide(&calls(thread)).is_admitted());
        requests.count() as u64
    });
    let total: u64 = admitted.iter().sum();
    assert!(
        total == 20 || (total < 20 && !H::ATOMIC_SETS),
        "law 5, all or nothing: `is_admitted` for {total} requests, and 20 units were there"
    );
    for (thread, admitted) in admitted.iter().enumerate() {
        let peek = subject.decide(&calls(thread).map(Call::peeking));
        let left: Vec<u64> = peek.statuses().iter().map(|s| s.remaining()).collect();
        assert_eq!(
            left,
            [1_000 - admitted, 20 - total, 1_000 - total],
            "law 5, all or nothing: `remaining` of thread {thread}"
        );
    }
}

/// Racers in tiers and under their own parameters use all units of the largest, and no more.
pub fn law_06_racers_under_all_parameters_share_one_budget<H: Harness>() {
    let harness = start::<H>();
    let tiers = [10, 40, 100].map(|count| (format!("of {count}"), per_day(count)));
    let policy = Policy::tiered("policy", tiers).expect("three tiers");
    let own = |count| policy.own(per_day(count)).expect("a quota of a day");
    let key = Key::from("key");
    let one = || Call::from(key.clone());
    let calls = [
        (10, one().in_tier(0)),
        (20, one().under(own(20))),
        (40, one().in_tier(1)),
        (60, one().under(own(60))),
        (100, one().in_tier(2)),
    ];
    let subject = Subject::new(&harness, policy);
    let admitted = race(|racer| {
        let mut random = Random::new(racer as u64);
        let mut admitted = [0_u64; 5];
        for round in 0..60 {
            // Each racer ends with the largest, so that it is asked for more than it holds.
            let index = if round < 30 { random.below(5) } else { 4 } as usize;
            let decision = subject.decide(std::slice::from_ref(&calls[index].1));
            admitted[index] += u64::from(decision.is_admitted());
        }
        admitted
    });
    let mut sum = 0;
    for (index, (count, _)) in calls.iter().enumerate() {
        sum += admitted.iter().map(|each| each[index]).sum::<u64>();
        assert!(
            sum <= *count,
            "law 6, one budget: {sum} units by parameters of at most {count}"
        );
    }
    assert_eq!(
        sum, 100,
        "law 6, one budget: the largest tier's units, once"
    );
}

/// Of strikes that race for the last one before a ban, one begins it.
pub fn contract_one_of_racing_strikes_begins_the_ban<H: Harness>() {
    let harness = start::<H>();
    let subject = Subject::new(&harness, policy("policy", &per_day(100)));
    if !subject.has_exceptions() {
        return;
    }
    for round in 0..8 {
        let key = Key::from(round);
        let begun = race(|_| {
            let step = KeyStep::Strike(key.clone(), Ban::after(THREADS as u32));
            let begun = subject.try_run(0, step).expect("the backend strikes");
            !begun.is_empty()
        });
        assert_eq!(
            begun.iter().filter(|begun| **begun).count(),
            1,
            "contract, exceptions and bans: bans begun by {THREADS} strikes that race"
        );
        assert!(
            !subject.take(&key, 1).is_admitted(),
            "contract, exceptions and bans: `is_admitted` of a banned key"
        );
    }
}
