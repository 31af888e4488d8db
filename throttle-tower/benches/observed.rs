//! What observing costs: requests through a layer that reports, beside one that does not.
//!
//!     cargo bench -p tower-throttle --all-features --bench observed                  # time, in rounds
//!     cargo bench -p tower-throttle --all-features --bench observed -- instructions  # counted by valgrind's callgrind
//!     cargo bench -p tower-throttle --all-features --bench observed -- threads       # time, of requests in parallel

#[path = "support/callgrind.rs"]
mod callgrind;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use std::{env, mem, pin, thread};

use http::request::Parts;
use http::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use throttle_tower::extract::{KeyExtractor, from_fn};
use throttle_tower::{
    Constant, Gcra, Key, Metrics, Offenders, Page, Rate, ThrottleLayer, Traces, limit,
};
use tokio::runtime::{self, Handle};
use tower::{Layer, Service};

use callgrind::{CHILD, total};

const REQUESTS: usize = 1_000;
const ROUNDS: usize = 2_000;
const DRAWS: usize = 1 << 14;
const CASES: [&str; 4] = [
    "admitted, one client",
    "admitted, many",
    "refused, one client",
    "refused, many",
];
const OBSERVED: [&str; 5] = [
    "nothing",
    "metrics",
    "events",
    "offenders",
    "the page and offenders",
];

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    PrometheusBuilder::new()
        .install_recorder()
        .expect("the only recorder");
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [CHILD, place, before] => count(
            place.parse().expect("a number"),
            before.parse().expect("a number"),
        ),
        ["instructions"] => instructions(),
        ["threads"] => threads(),
        [] => times(),
        _ => panic!("usage: observed [instructions | threads]"),
    }
}

type App = throttle_tower::Throttle<Answer>;

/// Layers that admit, and layers that refuse; of one client, and of many by Zipf's law; each
/// observed in all ways.
fn services() -> Vec<App> {
    let program = |(rate, burst): (Rate, u64), has_many: bool| {
        let policy = limit("all", Gcra::new(rate).burst(burst));
        let limited = if has_many {
            policy.by(clients())
        } else {
            policy.by(Constant)
        };
        ThrottleLayer::builder(limited)
    };
    let rates = [(Rate::per_second(1 << 20), 1 << 30), (Rate::per_day(1), 1)];
    let cases = rates
        .into_iter()
        .flat_map(|rate| [false, true].map(|has_many| (rate, has_many)));
    let observed = cases.flat_map(|(rate, has_many)| {
        let plain = || program(rate, has_many);
        [
            plain(),
            plain().observe(Metrics::new("bench")),
            plain().observe(Traces::new()),
            plain().observe(Offenders::new()),
            plain().observe(Page::new()),
        ]
    });
    observed
        .map(|program| program.build().expect("a valid limit").layer(Answer))
        .collect()
}

/// What a request of the service at a place is, and the place of the one that nothing observes.
fn name(place: usize) -> (String, usize) {
    let (case, what) = (place / OBSERVED.len(), place % OBSERVED.len());
    (
        format!("{}, {}", CASES[case], OBSERVED[what]),
        case * OBSERVED.len(),
    )
}

/// Keys of one client after the other. The n-th of 100,000 sends a request with a probability of
/// about 1/n.
#[expect(clippy::float_arithmetic, reason = "a probability")]
fn clients() -> impl KeyExtractor {
    let mut random = 1_u64;
    let mut draw = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        100_000_f64.powf((random >> 11) as f64 / (1_u64 << 53) as f64) as u64
    };
    let (draws, next): (Vec<u64>, _) = ((0..DRAWS).map(|_| draw()).collect(), AtomicUsize::new(0));
    from_fn(move |_: &Parts| {
        Some(Key::from(
            draws[next.fetch_add(1, Ordering::Relaxed) % DRAWS],
        ))
    })
}

#[derive(Clone)]
struct Answer;

impl Service<Request<()>> for Answer {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(())))
    }
}

#[inline(never)]
fn counted_requests(service: &mut App, requests: usize) {
    send(service, requests);
}

/// In memory, a request is decided and answered by the first poll.
#[inline(always)]
fn send(service: &mut App, requests: usize) {
    for _ in 0..requests {
        let answer = pin::pin!(service.call(Request::new(())));
        assert!(black_box(answer.poll(&mut Context::from_waker(Waker::noop()))).is_ready());
    }
}

/// Until all clients have sent a request.
#[inline(never)]
fn warm_up(service: &mut App) {
    send(service, DRAWS);
}

/// Each service is timed beside the one that nothing observes, in rounds so short that what else
/// the machine does hits both alike.
#[expect(
    clippy::print_stdout,
    clippy::float_arithmetic,
    reason = "a benchmark reports"
)]
fn times() {
    // As in a server: counts are reported by a task.
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let mut services = services();
    services.iter_mut().for_each(warm_up);
    println!("| request | ns | more than without |\n|---|---|---|");
    for place in 0..services.len() {
        let (name, plain) = name(place);
        let (mut own, mut more) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // The second of a pair may find the processor's caches filled otherwise than the first.
            let [mut one, mut other] = [place, plain];
            if round % 2 == 1 {
                mem::swap(&mut one, &mut other);
            }
            let [mut observed, mut without] = [one, other].map(|place| time(&mut services[place]));
            if round % 2 == 1 {
                mem::swap(&mut observed, &mut without);
            }
            own.push(observed);
            more.push(observed - without);
        }
        println!("| {name} | {} | {} |", middle(own), middle(more));
    }
}

/// Threads that send requests in parallel. More than the machine has cores show little more: they
/// take turns.
const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Rounds of all threads. Each has [`REQUESTS`] requests of a thread, ten times over: the threads
/// start within microseconds of each other.
const PARALLEL_ROUNDS: usize = 100;

/// Metrics alone: a counter is memory that all threads write.
#[expect(clippy::print_stdout, reason = "a benchmark reports")]
fn threads() {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let mut services = services();
    services.iter_mut().for_each(warm_up);
    println!("| request | threads | ns without | ns with metrics |\n|---|---|---|---|");
    for case in 0..CASES.len() {
        let pair = [0, 1].map(|observed| services[case * OBSERVED.len() + observed].clone());
        for count in THREADS {
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..PARALLEL_ROUNDS {
                for one in [round % 2, 1 - round % 2] {
                    times[one].push(parallel(runtime.handle(), &pair[one], count));
                }
            }
            let [without, with] = times.map(middle);
            println!("| {} | {count} | {without} | {with} |", CASES[case]);
        }
    }
}

/// The time of a request, where so many threads send requests through clones of a service.
#[expect(clippy::float_arithmetic, reason = "a benchmark reports")]
fn parallel(runtime: &Handle, service: &App, threads: usize) -> f64 {
    let start = Barrier::new(threads);
    let of_thread = || {
        let _entered = runtime.enter();
        let mut service = service.clone();
        start.wait();
        (0..10).map(|_| time(&mut service)).sum::<f64>() / 10.0
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(of_thread)).collect();
        let times = all.into_iter().map(|thread| thread.join().expect("a time"));
        times.sum::<f64>() / threads as f64
    })
}

#[expect(clippy::float_arithmetic, reason = "a benchmark reports")]
fn time(service: &mut App) -> f64 {
    let before = Instant::now();
    counted_requests(service, REQUESTS);
    before.elapsed().as_nanos() as f64 / REQUESTS as f64
}

/// The median, and between what the half of all numbers around it lies.
fn middle(mut numbers: Vec<f64>) -> String {
    numbers.sort_by(f64::total_cmp);
    let [first, median, third] = [1, 2, 3].map(|quarter| numbers[numbers.len() * quarter / 4]);
    format!("{median:.1} ({first:.1} to {third:.1})")
}

#[expect(clippy::print_stdout, reason = "a benchmark reports")]
fn instructions() {
    println!("| request | instructions | more than without |\n|---|---|---|");
    let each = |place: usize| total(place, DRAWS) / COUNTED as u64;
    let counts: Vec<u64> = (0..CASES.len() * OBSERVED.len()).map(each).collect();
    for (place, own) in counts.iter().enumerate() {
        let (name, plain) = name(place);
        println!("| {name} | {own} | {} |", own.saturating_sub(counts[plain]));
    }
}

/// Sends the requests that callgrind counts, after so many that it does not count. The clock stands
/// still: callgrind makes a request take fifty times as long, so more of them would have a turn to
/// read the clock than in a busy server.
fn count(place: usize, before: usize) {
    let runtime = runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let mut service = services().swap_remove(place);
    (0..before / DRAWS).for_each(|_| warm_up(&mut service));
    counted_requests(&mut service, COUNTED);
}

/// Requests that callgrind counts.
const COUNTED: usize = 20_000;
