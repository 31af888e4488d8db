//! The time of one decision in memory: each algorithm, sets of one, three and ten limits, what a share is charged for a
//! decision made elsewhere, and the clock by itself.
//!
//! For working on throttle; how it stands beside other crates is measured by `tests/peers`.
//!
//! Run with `cargo bench -p tower-throttle-core --bench decide`.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime};
use throttle_core::backend::Call;
use throttle_core::{
    Algorithm, Backend, CalendarQuota, Clock, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, Key, LeakyBucket,
    LeakyMeter, LocalShare, MemoryBackend, Policy, PolicySet, PolicyTree, Rate, SlidingLog, SlidingWindow, SystemClock,
    TokenBucket,
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
        ("token_bucket", built(TokenBucket::new(many)), built(TokenBucket::new(one))),
        ("leaky_meter", built(LeakyMeter::new(many)), built(LeakyMeter::new(one))),
        (
            "interval_bucket",
            built(IntervalBucket::new(many.count()).refill(1_000, HOUR)),
            built(IntervalBucket::new(1).refill(1, HOUR)),
        ),
        ("fixed_window", built(FixedWindow::new(many)), built(FixedWindow::new(one))),
        ("sliding_window", built(SlidingWindow::new(Rate::new(10_000_000, HOUR))), built(SlidingWindow::new(one))),
        // A window of 100 µs, so that the log holds some hundred instants.
        (
            "sliding_log",
            built(SlidingLog::new(Rate::new(1_000_000, Duration::from_micros(100)))),
            built(SlidingLog::new(one)),
        ),
        ("calendar_quota", built(CalendarQuota::monthly(many.count())), built(CalendarQuota::monthly(1))),
        (
            "leaky_bucket",
            built(LeakyBucket::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(1_000_000))),
            built(LeakyBucket::new(one).max_wait(Duration::ZERO)),
        ),
    ]
}

fn key(n: u32) -> Key {
    Key::from(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)))
}

/// Decides again and again about the same calls, the key of each built anew.
fn decide<const N: usize>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, rule: PolicyTree, keys: [u32; N]) {
    let backend = MemoryBackend::new();
    let set = backend.prepare(PolicySet::new(rule).expect("the set is valid")).expect("the backend has room");
    let ask = || backend.decide_now(&set, &keys.map(|n| Call::from(key(black_box(n)))));
    // The single unit of those that refuse is gone before the first measurement.
    let _ = ask();
    group.bench_function(name, |bencher| bencher.iter(ask));
}

fn policy(name: &str, algorithm: Algorithm) -> PolicyTree {
    Policy::new(name, algorithm).expect("the policy is valid").into()
}

fn algorithms(criterion: &mut Criterion) {
    for (what, admits) in [("allow", true), ("deny", false)] {
        let mut group = criterion.benchmark_group(what);
        for (name, allow, deny) in each() {
            decide(&mut group, name, policy("one", if admits { allow } else { deny }), [0]);
        }
        group.finish();
    }
}

fn sets(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all");
    let gcra = built(Gcra::new(Rate::new(1_000_000_000, HOUR)));
    let all = |count: usize| PolicyTree::All((0..count).map(|n| policy(&format!("member {n}"), gcra)).collect());
    decide(&mut group, "1", policy("one", gcra), [0]);
    decide(&mut group, "3 on one key", all(3), [0; 3]);
    decide(&mut group, "3 on three keys", all(3), [0, 1, 2]);
    decide(&mut group, "10 on one key", all(10), [0; 10]);
    group.finish();
}

/// What it costs to keep a share warm: one decision of three policies, and of one.
fn notes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("note");
    let gcra = built(Gcra::new(Rate::new(1_000_000_000, HOUR)));
    for count in [1, 3] {
        let set = PolicySet::new(PolicyTree::All((0..count).map(|n| policy(&format!("member {n}"), gcra)).collect()));
        let set = set.expect("the set is valid");
        let backend = MemoryBackend::new();
        let prepared = backend.prepare(set.clone()).expect("the backend has room");
        let share = LocalShare::new(&MemoryBackend::new(), &set, NonZeroU32::MIN).expect("the backend has room");
        let calls = vec![Call::from(key(black_box(0))); count];
        let decision = backend.decide_now(&prepared, &calls);
        group.bench_function(count.to_string(), |bencher| bencher.iter(|| share.note(&decision, black_box(&calls))));
    }
    group.finish();
}

fn clock(criterion: &mut Criterion) {
    let clock = SystemClock::new();
    criterion.bench_function("clock", |bencher| bencher.iter(|| clock.now()));
}

criterion_group!(benches, algorithms, sets, notes, clock);
criterion_main!(benches);
