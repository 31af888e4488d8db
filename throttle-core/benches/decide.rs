//! The time of one decision in memory: each algorithm, sets of one, three and ten limits, what a
//! share is charged for a decision made elsewhere, and the clock by itself.
//!
//! For working on throttle; how it stands beside other crates is measured by `tests/peers`.
//!
//! Run with `cargo bench -p tower-throttle-core --bench decide`.

#![allow(clippy::print_stdout, reason = "it prints figures")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use throttle_core::backend::Call;
use throttle_core::{
    Algorithm, Backend, CalendarQuota, Clock, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm,
    Key, LeakyBucket, LeakyMeter, LocalShare, MemoryBackend, Policy, PolicySet, PolicyTree, Rate,
    SlidingLog, SlidingWindow, SystemClock, TokenBucket,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().expect("the algorithm is valid")
}

/// Each algorithm as one that admits everything, and as one that admits a single request an hour.
fn each() -> Vec<(&'static str, Algorithm, Algorithm)> {
    let (many, one) = (Rate::new(1_000_000_000, HOUR), Rate::new(1, HOUR));
    vec![
        ("gcra", built(Gcra::new(many)), built(Gcra::new(one))),
        (
            "token_bucket",
            built(TokenBucket::new(many)),
            built(TokenBucket::new(one)),
        ),
        (
            "leaky_meter",
            built(LeakyMeter::new(many)),
            built(LeakyMeter::new(one)),
        ),
        (
            "interval_bucket",
            built(IntervalBucket::new(many.count()).refill(1_000, HOUR)),
            built(IntervalBucket::new(1).refill(1, HOUR)),
        ),
        (
            "fixed_window",
            built(FixedWindow::new(many)),
            built(FixedWindow::new(one)),
        ),
        (
            "sliding_window",
            built(SlidingWindow::new(Rate::new(10_000_000, HOUR))),
            built(SlidingWindow::new(one)),
        ),
        // A window of 100 µs, so that the log holds some hundred instants.
        (
            "sliding_log",
            built(SlidingLog::new(Rate::new(
                1_000_000,
                Duration::from_micros(100),
            ))),
            built(SlidingLog::new(one)),
        ),
        (
            "calendar_quota",
            built(CalendarQuota::monthly(many.count())),
            built(CalendarQuota::monthly(1)),
        ),
        (
            "leaky_bucket",
            built(
                LeakyBucket::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(1_000_000)),
            ),
            built(LeakyBucket::new(one).max_wait(Duration::ZERO)),
        ),
    ]
}

fn key(n: u32) -> Key {
    Key::from(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)))
}

const CALLS: u32 = 10_000;
const ROUNDS: usize = 101;

/// Prints the median of the rounds, in picoseconds a call.
fn time<T>(name: &str, mut call: impl FnMut() -> T) {
    let mut rounds: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| drop(black_box(call())));
            start.elapsed()
        })
        .collect();
    rounds.sort_unstable();
    println!(
        "{name:<24} {:>9} ps",
        rounds[ROUNDS / 2].as_nanos() * 1_000 / u128::from(CALLS)
    );
}

/// Decides again and again about the same calls, the key of each built anew.
fn decide<const N: usize>(name: &str, rule: PolicyTree, keys: [u32; N]) {
    let backend = MemoryBackend::new();
    let set = backend
        .prepare(PolicySet::new(rule).expect("the set is valid"))
        .expect("the backend has room");
    // The single unit of those that refuse is gone before the median round.
    time(name, || {
        backend.decide_now(&set, &keys.map(|n| Call::from(key(black_box(n)))))
    });
}

fn policy(name: &str, algorithm: Algorithm) -> PolicyTree {
    Policy::new(name, algorithm)
        .expect("the policy is valid")
        .into()
}

fn algorithms() {
    for (what, admits) in [("allow", true), ("deny", false)] {
        for (name, allow, deny) in each() {
            decide(
                &format!("{what} {name}"),
                policy("one", if admits { allow } else { deny }),
                [0],
            );
        }
    }
}

fn sets() {
    let gcra = built(Gcra::new(Rate::new(1_000_000_000, HOUR)));
    let all = |count: usize| {
        PolicyTree::All(
            (0..count)
                .map(|n| policy(&format!("member {n}"), gcra))
                .collect(),
        )
    };
    decide("all 1", policy("one", gcra), [0]);
    decide("all 3 on one key", all(3), [0; 3]);
    decide("all 3 on three keys", all(3), [0, 1, 2]);
    decide("all 10 on one key", all(10), [0; 10]);
}

/// What it costs to keep a share warm: one decision of three policies, and of one.
fn notes() {
    let gcra = built(Gcra::new(Rate::new(1_000_000_000, HOUR)));
    for count in [1, 3] {
        let set = PolicySet::new(PolicyTree::All(
            (0..count)
                .map(|n| policy(&format!("member {n}"), gcra))
                .collect(),
        ));
        let set = set.expect("the set is valid");
        let backend = MemoryBackend::new();
        let prepared = backend.prepare(set.clone()).expect("the backend has room");
        let share = LocalShare::new(&MemoryBackend::new(), &set, NonZeroU32::MIN)
            .expect("the backend has room");
        let calls = vec![Call::from(key(black_box(0))); count];
        let decision = backend.decide_now(&prepared, &calls);
        time(&format!("note {count}"), || {
            share.note(&decision, black_box(&calls));
        });
    }
}

fn main() {
    algorithms();
    sets();
    notes();
    let clock = SystemClock::new();
    time("clock", || clock.now());
}
