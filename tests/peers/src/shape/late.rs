//! How late calls leave while others wait all the time.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

use super::pacers::{self, CommonPace, Pacer, Upstream};
use crate::report;

const PACE: CommonPace = CommonPace::per_second(200);
const CALLERS: usize = 16;
const BUSY: Duration = Duration::from_secs(3);
const ROUNDS: usize = 5;

/// One round's figures.
struct Round {
    /// By how much calls left later than one interval after the previous call, in ms, sorted.
    late: Vec<f64>,
    /// Departures as a percentage of the promised ones.
    kept: f64,
}

pub fn run() {
    let columns = [
        "200 a second, 16 callers",
        "p50, ms",
        "p99, ms",
        "most, ms",
        "sooner than that, most, \
            ms",
        "of the pace, %",
    ];
    report::title(
        "How late: each call against one interval after the one before (rounds of 3 s; median, \
            least–most)",
        &columns,
    );
    let runtime = pacers::runtime();
    let upstream = Upstream::default();
    // Each configured to leave evenly: one call in 5 ms.
    let even = CommonPace {
        count: 1,
        period: PACE.interval(),
    };
    let pacers = {
        let _inside = runtime.enter();
        [
            (
                "throttle, `ShapeLayer`",
                pacers::shape_layer(PACE, &upstream),
            ),
            ("throttle, `schedule`", pacers::bare_shaper(PACE, &upstream)),
            (
                "tower, `RateLimit` in a `Buffer`, 1 in 5 ms",
                pacers::rate_limit(even, &upstream, CALLERS),
            ),
            (
                "leaky-bucket, 1 in 5 ms, max 1",
                pacers::leaky_bucket(even, Some(1), &upstream),
            ),
            (
                "governor, burst 1",
                pacers::governor(PACE, Some(1), &upstream),
            ),
            (
                "governor, keyed, burst 1",
                pacers::governor_keyed(PACE, 1, &upstream),
            ),
        ]
    };
    let mut rounds: [Vec<Round>; 6] = Default::default();
    for _ in 0..ROUNDS {
        for ((name, pacer), rounds) in pacers.iter().zip(&mut rounds) {
            // The headroom is part of throttle's pace.
            let interval = if name.starts_with("throttle") {
                own_interval()
            } else {
                PACE.interval()
            };
            rounds.push(round(&runtime, pacer, &upstream, interval));
        }
    }
    for ((name, _), rounds) in pacers.iter().zip(&rounds) {
        let each = |figure: &dyn Fn(&Round) -> f64| {
            report::spread(&rounds.iter().map(figure).collect::<Vec<_>>(), 2)
        };
        let at = |share: f64| {
            each(&move |round: &Round| round.late[(round.late.len() as f64 * share) as usize])
        };
        let cells = [
            at(0.5),
            at(0.99),
            each(&|round| *last(&round.late)),
            each(&|round| (-round.late[0]).max(0.0)),
        ];
        let kept = report::spread(
            &rounds.iter().map(|round| round.kept).collect::<Vec<_>>(),
            1,
        );
        report::row(&[&[(*name).to_owned()][..], &cells[..], &[kept][..]].concat());
    }
}

fn own_interval() -> Duration {
    let rate = pacers::shaper(PACE).rate();
    rate.period().div_f64(rate.count() as f64)
}

fn last(values: &[f64]) -> &f64 {
    values.last().expect("calls have left")
}

fn round(runtime: &Runtime, pacer: &Pacer, upstream: &Upstream, interval: Duration) -> Round {
    runtime.block_on(async {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let pacer = pacer.clone();
                tokio::spawn(async move {
                    loop {
                        pacer().await;
                    }
                })
            })
            .collect();
        // The calls left over from the last round, and those that leave at once, are not measured.
        sleep(Duration::from_millis(100)).await;
        upstream.take();
        let start = Instant::now();
        sleep(BUSY).await;
        let (left, busy) = (upstream.take(), start.elapsed());
        callers.iter().for_each(tokio::task::JoinHandle::abort);
        let millis = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let mut late: Vec<f64> = left
            .windows(2)
            .map(|pair| millis(pair[0], pair[1]) - interval.as_secs_f64() * 1e3)
            .collect();
        late.sort_by(f64::total_cmp);
        let promised = busy.as_secs_f64() / PACE.interval().as_secs_f64();
        Round {
            late,
            kept: 100.0 * left.len() as f64 / promised,
        }
    })
}
