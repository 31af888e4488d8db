//! Whether a shaper keeps its promise, as the upstream sees it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::pacers::{self, CommonPace, Pacer, Upstream};
use crate::report;

const PACE: CommonPace = CommonPace::per_second(100);
const EVEN: CommonPace = CommonPace {
    count: 1,
    period: Duration::from_millis(10),
};
const CALLERS: [usize; 3] = [1, 8, 64];
const ROUNDS: usize = 5;
const BUSY: Duration = Duration::from_millis(2_500);

type Make = fn(&Upstream) -> Pacer;

const CONTENDERS: [(&str, Make); 10] = [
    (
        "throttle, `ShapeLayer`: `Pace::new(Rate::per_second(100))`",
        |upstream| pacers::shape_layer(PACE, upstream),
    ),
    (
        "throttle, `ShapeLayer`: the same, `.headroom(100 ms)`",
        |upstream| pacers::shape_layer_with_headroom(PACE, Duration::from_millis(100), upstream),
    ),
    ("throttle, `Shaper`: the same", |upstream| {
        pacers::bare_shaper(PACE, upstream)
    }),
    ("tower: `.buffer(64).rate_limit(100, 1 s)`", |upstream| {
        pacers::rate_limit(PACE, upstream, 64)
    }),
    ("tower: `.buffer(64).rate_limit(1, 10 ms)`", |upstream| {
        pacers::rate_limit(EVEN, upstream, 64)
    }),
    (
        "leaky-bucket: refill 100 each 1 s, initial 100",
        |upstream| pacers::leaky_bucket(PACE, None, upstream),
    ),
    ("leaky-bucket: the same, max 100", |upstream| {
        pacers::leaky_bucket(PACE, Some(100), upstream)
    }),
    ("leaky-bucket: refill 1 each 10 ms, max 1", |upstream| {
        pacers::leaky_bucket(EVEN, Some(1), upstream)
    }),
    ("governor: `Quota::per_second(100)`", |upstream| {
        pacers::governor(PACE, None, upstream)
    }),
    ("governor: the same, `.allow_burst(1)`", |upstream| {
        pacers::governor(PACE, Some(1), upstream)
    }),
];

/// What the upstream saw in one round.
#[derive(Clone, Copy)]
struct Seen {
    /// The most departures within any one period.
    most: usize,
    /// Departures a second, from the end of the first busy second to the end of the busy time.
    steady: f64,
}

pub fn run() {
    let columns = [
        "100 a second",
        "from 1 caller: promised / most seen",
        "from 8",
        "from 64",
        "steady, a \
            second, from 64",
    ];
    report::title(
        "The promise: most calls within any one second, as the upstream sees them (most of all \
            rounds; median)",
        &columns,
    );
    let runtime = pacers::runtime();
    // All contenders at once in each round: they are idle most of the time, and share the same
    // machine.
    let rounds: Vec<Vec<Seen>> = (0..ROUNDS)
        .map(|_| {
            runtime.block_on(async {
                let all = CONTENDERS
                    .iter()
                    .flat_map(|(_, make)| CALLERS.map(|callers| (make, callers)));
                let running: Vec<_> = all
                    .map(|(make, callers)| tokio::spawn(round(*make, callers)))
                    .collect();
                let mut seen = Vec::new();
                for running in running {
                    seen.push(running.await.expect("no call panics"));
                }
                seen
            })
        })
        .collect();
    for (n, (name, _)) in CONTENDERS.iter().enumerate() {
        let column = |callers: usize| {
            rounds
                .iter()
                .map(move |round| round[n * CALLERS.len() + callers])
        };
        let mut cells = vec![(*name).to_owned()];
        for callers in 0..CALLERS.len() {
            let most: Vec<f64> = column(callers).map(|seen| seen.most as f64).collect();
            let worst = most.iter().copied().fold(0.0, f64::max);
            cells.push(format!(
                "{} / **{worst:.0}** ({:.0})",
                PACE.count,
                report::median(&most)
            ));
        }
        cells.push(report::spread(
            &column(2).map(|seen| seen.steady).collect::<Vec<_>>(),
            1,
        ));
        report::row(&cells);
    }
}

/// One call, a pause, many calls, a longer pause, many calls.
async fn round(make: Make, callers: usize) -> Seen {
    let upstream = Upstream::default();
    let pacer = make(&upstream);
    pacer().await;
    sleep(Duration::from_millis(950)).await;
    let start = Instant::now();
    busy(&pacer, callers).await;
    sleep(Duration::from_millis(2_200)).await;
    busy(&pacer, callers).await;
    let seen = upstream.take();
    let steady = (start + Duration::from_secs(1))..(start + BUSY);
    let steady_count = seen.iter().filter(|at| steady.contains(at)).count();
    Seen {
        most: most_within(&seen, PACE.period),
        steady: steady_count as f64 / (BUSY - PACE.period).as_secs_f64(),
    }
}

async fn busy(pacer: &Pacer, callers: usize) {
    let until = Instant::now() + BUSY;
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let pacer = pacer.clone();
            tokio::spawn(async move {
                while Instant::now() < until {
                    pacer().await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no call panics");
    }
}

/// The most of these instants within any half-open period.
fn most_within(sorted: &[Instant], period: Duration) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (last, at) in sorted.iter().enumerate() {
        while *at - sorted[first] >= period {
            first += 1;
        }
        most = most.max(last - first + 1);
    }
    most
}
