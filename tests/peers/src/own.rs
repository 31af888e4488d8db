//! Compares throttle with itself: the cost of a second limit, and of other algorithms.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{
    Algorithm, CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, Key, LeakyBucket,
    LeakyMeter, Policy, PolicyTree, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

use crate::peers::Throttle;
use crate::report;
use crate::stage::{Contender, compete};

const STEPS: usize = 40_000;

pub fn run() {
    algorithms();
    sets();
}

fn built(algorithm: impl IntoAlgorithm) -> Algorithm {
    algorithm.into_algorithm().expect("the algorithm is valid")
}

fn policy(name: &str, algorithm: Algorithm) -> PolicyTree {
    Policy::new(name, algorithm)
        .expect("the policy is valid")
        .into()
}

/// Each algorithm once as a limit that admits everything, and once as one that refuses everything
/// but the first request.
fn each() -> Vec<(&'static str, Algorithm, Algorithm)> {
    let rate = |count| Rate::new(count, Duration::from_secs(3_600));
    let (many, one) = (rate(1_000_000_000), rate(1));
    vec![
        ("gcra", built(Gcra::new(many)), built(Gcra::new(one))),
        (
            "gcra, 7 per second",
            built(Gcra::new(Rate::per_second(7)).burst(1_000_000_000)),
            built(Gcra::new(one)),
        ),
        (
            "token bucket",
            built(TokenBucket::new(many)),
            built(TokenBucket::new(one)),
        ),
        (
            "leaky meter",
            built(LeakyMeter::new(many)),
            built(LeakyMeter::new(one)),
        ),
        (
            "interval bucket",
            built(IntervalBucket::new(1_000_000_000).refill(1_000, Duration::from_secs(3_600))),
            built(IntervalBucket::new(1).refill(1, Duration::from_secs(3_600))),
        ),
        (
            "fixed window",
            built(FixedWindow::new(many)),
            built(FixedWindow::new(one)),
        ),
        (
            "calendar quota, day",
            built(CalendarQuota::daily(1_000_000_000)),
            built(CalendarQuota::daily(1)),
        ),
        (
            "calendar quota, month",
            built(CalendarQuota::monthly(1_000_000_000)),
            built(CalendarQuota::monthly(1)),
        ),
        (
            "sliding window, 10 buckets",
            built(SlidingWindow::new(rate(10_000_000))),
            built(SlidingWindow::new(one)),
        ),
        (
            "leaky bucket",
            built(
                LeakyBucket::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(1_000_000)),
            ),
            built(LeakyBucket::new(one).max_wait(Duration::ZERO)),
        ),
        (
            "sliding log, some 100 instants",
            built(SlidingLog::new(Rate::new(
                1_000_000,
                Duration::from_micros(100),
            ))),
            built(SlidingLog::new(rate(100))),
        ),
    ]
}

fn algorithms() {
    let columns = [
        "algorithm, hot key",
        "allow, ns",
        "÷ gcra",
        "deny, ns",
        "÷ gcra",
    ];
    report::title(
        "Each algorithm beside GCRA (1 thread; less is better)",
        &columns,
    );
    let each = each();
    let (allow, deny): (Vec<_>, Vec<_>) = each
        .iter()
        .map(|(_, allow, deny)| (limiter(*allow), limiter(*deny)))
        .unzip();
    let (allow, deny) = (compete(&allow, 1), compete(&deny, 1));
    for (n, (name, ..)) in each.iter().enumerate() {
        let median = |rounds: &[Vec<f64>]| format!("{:.1}", report::median(&rounds[n]));
        let ratio = |rounds: &[Vec<f64>]| report::ratio(&rounds[n], &rounds[0]);
        report::row(&[
            (*name).to_string(),
            median(&allow),
            ratio(&allow),
            median(&deny),
            ratio(&deny),
        ]);
    }
}

fn limiter(algorithm: Algorithm) -> Contender<'static> {
    same_key(Throttle::with(policy("one", algorithm), 1_000), 1)
}

fn key(n: u32) -> Key {
    Key::from(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n)))
}

/// One hot key for every policy of the set.
fn same_key(throttle: Throttle, policies: usize) -> Contender<'static> {
    Box::new(move |_, _| {
        let calls = vec![Call::from(key(black_box(0))); policies];
        for _ in 0..STEPS {
            black_box(throttle.ask(black_box(&calls)));
        }
        STEPS
    })
}

fn different_keys(throttle: Throttle, policies: u32) -> Contender<'static> {
    Box::new(move |_, _| {
        let calls: Vec<Call> = (0..policies)
            .map(|n| Call::from(key(black_box(n))))
            .collect();
        for _ in 0..STEPS {
            black_box(throttle.ask(black_box(&calls)));
        }
        STEPS
    })
}

fn set(algorithm: Algorithm, policies: usize) -> Throttle {
    let members = (0..policies)
        .map(|n| policy(&format!("member {n}"), algorithm))
        .collect();
    Throttle::with(PolicyTree::All(members), 1_000_000)
}

fn sets() {
    let columns = [
        "limits in one `all`, hot",
        "allow, ns",
        "÷ one limit",
        "deny, ns",
        "÷ one \
        limit",
    ];
    report::title(
        "Sets beside one limit (GCRA, 1 thread; less is better)",
        &columns,
    );
    let rate = |count| Rate::new(count, Duration::from_secs(3_600));
    let (many, one) = (
        built(Gcra::new(rate(1_000_000_000))),
        built(Gcra::new(rate(1))),
    );
    let contenders = |algorithm: Algorithm| {
        [
            same_key(Throttle::with(policy("one", algorithm), 1_000_000), 1),
            same_key(set(algorithm, 3), 3),
            different_keys(set(algorithm, 3), 3),
            same_key(set(algorithm, 10), 10),
        ]
    };
    let (allow, deny) = (compete(&contenders(many), 1), compete(&contenders(one), 1));
    for (n, name) in ["1", "3 on one key", "3 on three keys", "10 on one key"]
        .iter()
        .enumerate()
    {
        let median = |rounds: &[Vec<f64>]| format!("{:.1}", report::median(&rounds[n]));
        let ratio = |rounds: &[Vec<f64>]| report::ratio(&rounds[n], &rounds[0]);
        report::row(&[
            (*name).to_string(),
            median(&allow),
            ratio(&allow),
            median(&deny),
            ratio(&deny),
        ]);
    }
}
