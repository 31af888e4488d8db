//! The time of one decision, including building the key and reading the decision.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use crate::peers::{Governor, GovernorInformed, GovernorRetry, Limit, Peer, Throttle};
use crate::report;
use crate::stage::{Contender, Random, TURNS, compete};

pub const MILLION: usize = 1_000_000;
/// Enough for some milliseconds, so that two threads overlap.
const PER_TURN: usize = 200_000;
const THREADS: [usize; 2] = [1, 2];

/// The clients that requests come from.
#[derive(Clone, Copy)]
pub enum Keys {
    Hot,
    Uniform(u32),
    /// Of `count` clients, the n-th most frequent sends one nth of the requests of the first.
    Zipf(u32),
}

impl Keys {
    fn count(self) -> u32 {
        match self {
            Self::Hot => 1,
            Self::Uniform(count) | Self::Zipf(count) => count,
        }
    }

    /// One thread's requests.
    fn sequence(self, thread: usize) -> Vec<u32> {
        let mut random = Random(thread as u64 + 1);
        (0..TURNS * PER_TURN)
            .map(|_| match self {
                Self::Hot => 0,
                Self::Uniform(count) => random.below(count),
                // Inverting the continuous distribution function of 1/x on 1..=count is close
                // enough to Zipf's law with an exponent of one. The rank is scrambled so that
                // frequent keys are not neighbours.
                Self::Zipf(count) => {
                    let rank = f64::from(count).powf(random.unit()) as u32;
                    ((u64::from(rank) * 7_368_787) % u64::from(count)) as u32
                }
            })
            .collect()
    }
}

fn address(n: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n))
}

fn contender<'a>(peer: &'a impl Peer, sequences: &'a [Vec<u32>]) -> Contender<'a> {
    Box::new(|thread, turn| {
        let sequence = sequences[thread]
            .chunks(PER_TURN)
            .nth(turn)
            .unwrap_or_default();
        for n in sequence {
            black_box(peer.decide(address(black_box(*n))));
        }
        sequence.len()
    })
}

/// Prints a row for each number of threads: the times of all three, and the ratios of the two
/// others to throttle.
pub fn compare(
    name: &str,
    keys: Keys,
    throttle: &impl Peer,
    first: &impl Peer,
    second: &impl Peer,
) {
    // Every key exists before the first round, and is exhausted if the limit refuses.
    for n in 0..keys.count() {
        throttle.decide(address(n));
        first.decide(address(n));
        second.decide(address(n));
    }
    let sequences = THREADS.map(|thread| keys.sequence(thread));
    for threads in THREADS {
        let contenders = [
            contender(throttle, &sequences),
            contender(first, &sequences),
            contender(second, &sequences),
        ];
        let rounds = compete(&contenders, threads);
        let nanos = |contender: usize| format!("{:.1}", report::median(&rounds[contender]));
        let ratios = [
            report::ratio(&rounds[1], &rounds[0]),
            report::ratio(&rounds[2], &rounds[0]),
        ];
        let cells = [
            name.to_string(),
            threads.to_string(),
            nanos(0),
            nanos(1),
            nanos(2),
        ];
        report::row(&[&cells[..], &ratios[..]].concat());
    }
}

pub fn run() {
    let columns = [
        "decision",
        "threads",
        "throttle, ns",
        "governor with state, ns",
        "governor, ns",
        "with state ÷ throttle",
        "governor ÷ throttle",
    ];
    report::title(
        "One decision (GCRA, IPv4 key, DashMap store; medians per thread; more than 1 is in our \
            favour)",
        &columns,
    );
    for (name, keys, limit) in [
        ("hot key, allow", Keys::Hot, Limit::NEVER_REFUSES),
        ("hot key, deny", Keys::Hot, Limit::REFUSES),
        (
            "10 k keys, allow",
            Keys::Uniform(10_000),
            Limit::NEVER_REFUSES,
        ),
        (
            "1 M keys uniform, allow, all live",
            Keys::Uniform(1_000_000),
            Limit::STAYS_LIVE,
        ),
        (
            "1 M keys uniform, deny",
            Keys::Uniform(1_000_000),
            Limit::REFUSES,
        ),
        (
            "1 M keys uniform, 10/s burst 20",
            Keys::Uniform(1_000_000),
            Limit::REALISTIC,
        ),
        (
            "1 M keys uniform, allow, stale after 1 ms",
            Keys::Uniform(1_000_000),
            Limit::NEVER_REFUSES,
        ),
        (
            "1 M keys Zipf, allow, all live",
            Keys::Zipf(1_000_000),
            Limit::STAYS_LIVE,
        ),
    ] {
        let throttle = Throttle::new(limit, MILLION);
        let (informed, plain) = (GovernorInformed::new(limit), Governor::new(limit));
        compare(name, keys, &throttle, &informed, &plain);
    }
    refusals();
}

/// A refusal with its wait, and a refusal beside an admission.
fn refusals() {
    let columns = ["refusal, hot key", "threads", "ns", "÷ throttle refusing"];
    report::title("Refusing, with the wait as a duration", &columns);
    let (refusing, admitting) = (
        Throttle::new(Limit::REFUSES, MILLION),
        Throttle::new(Limit::NEVER_REFUSES, MILLION),
    );
    let retry = GovernorRetry(GovernorInformed::new(Limit::REFUSES));
    refusing.decide(address(0));
    retry.decide(address(0));
    let sequences = THREADS.map(|thread| Keys::Hot.sequence(thread));
    for threads in THREADS {
        let contenders = [
            contender(&refusing, &sequences),
            contender(&admitting, &sequences),
            contender(&retry, &sequences),
        ];
        let rounds = compete(&contenders, threads);
        for (name, nanos) in [
            "throttle, refusing",
            "throttle, admitting",
            "governor, refusing",
        ]
        .iter()
        .zip(&rounds)
        {
            let median = format!("{:.1}", report::median(nanos));
            report::row(&[
                (*name).to_string(),
                threads.to_string(),
                median,
                report::ratio(nanos, &rounds[0]),
            ]);
        }
    }
}
