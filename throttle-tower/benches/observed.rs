//! What observing costs: requests through a layer that reports, beside one that does not.
//!
//!     cargo bench -p throttle-tower --all-features --bench observed                  # time, in rounds
//!     cargo bench -p throttle-tower --all-features --bench observed -- instructions  # counted by valgrind's callgrind

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::hint::black_box;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Instant;
use std::{env, pin};

use http::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
use tokio::runtime;
use tower::{Layer, Service};

const REQUESTS: usize = 200_000;
const ROUNDS: usize = 15;
const CHILD: &str = "--count";
const OBSERVED: [&str; 5] = ["nothing", "metrics", "events", "offenders", "the page and offenders"];

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    PrometheusBuilder::new().install_recorder().expect("the only recorder");
    // As in a server: counts are reported by a task.
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [CHILD, place, requests] => {
            let mut service = services().swap_remove(place.parse().expect("a number"));
            warm_up(&mut service);
            counted_requests(&mut service, requests.parse().expect("a number"));
        }
        ["instructions"] => instructions(),
        [] => times(),
        _ => panic!("usage: observed [instructions]"),
    }
}

type App = throttle_tower::Throttle<Answer>;

/// Layers that admit, and then layers that refuse, each observed in all ways.
fn services() -> Vec<App> {
    let layer = |rate, burst| {
        let policy = limit("all", Gcra::new(rate).burst(burst)).by(Constant);
        ThrottleLayer::new(policy).expect("a valid limit")
    };
    let limits = [(Rate::per_second(1 << 20), 1 << 30), (Rate::per_day(1), 1)];
    let observed = limits.into_iter().flat_map(|(rate, burst)| {
        let plain = || layer(rate, burst);
        [plain(), plain().metrics("bench"), plain().traced(), plain().track_offenders(), plain().dashboard::<()>().0]
    });
    observed.map(|layer| layer.layer(Answer)).collect()
}

/// What a request of the service at a place is, and the place of the one that nothing observes.
fn name(place: usize) -> (String, usize) {
    let what = if place < OBSERVED.len() { "admitted" } else { "refused" };
    (format!("{what}, {}", OBSERVED[place % OBSERVED.len()]), place / OBSERVED.len() * OBSERVED.len())
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

/// In memory, a request is decided and answered by the first poll.
#[inline(never)]
fn counted_requests(service: &mut App, requests: usize) {
    for _ in 0..requests {
        let answer = pin::pin!(service.call(Request::new(())));
        assert!(black_box(answer.poll(&mut Context::from_waker(Waker::noop()))).is_ready());
    }
}

fn warm_up(service: &mut App) {
    counted_requests(service, 1_000);
}

#[expect(clippy::print_stdout, clippy::float_arithmetic, reason = "a benchmark reports")]
fn times() {
    let mut services = services();
    services.iter_mut().for_each(warm_up);
    let mut times = vec![Vec::new(); services.len()];
    for _ in 0..ROUNDS {
        for (service, times) in services.iter_mut().zip(&mut times) {
            let before = Instant::now();
            counted_requests(service, REQUESTS);
            times.push(before.elapsed().as_nanos() as f64 / REQUESTS as f64);
        }
    }
    println!("| request | ns, median (least to most) | more than without |\n|---|---|---|");
    for (place, of_one) in times.iter().enumerate() {
        let (name, plain) = name(place);
        let mut more: Vec<f64> = of_one.iter().zip(&times[plain]).map(|(own, plain)| own - plain).collect();
        let mut own = of_one.clone();
        own.sort_by(f64::total_cmp);
        more.sort_by(f64::total_cmp);
        let (last, middle) = (ROUNDS - 1, ROUNDS / 2);
        println!(
            "| {name} | {:.1} ({:.1} to {:.1}) | {:.1} ({:.1} to {:.1}) |",
            own[middle], own[0], own[last], more[middle], more[0], more[last]
        );
    }
}

#[expect(clippy::print_stdout, reason = "a benchmark reports")]
fn instructions() {
    println!("| request | instructions | more than without |\n|---|---|---|");
    let count = |place: usize| (total(place, 3_000) - total(place, 1_000)) / 2_000;
    let counts: Vec<u64> = (0..2 * OBSERVED.len()).map(count).collect();
    for (place, own) in counts.iter().enumerate() {
        let (name, plain) = name(place);
        println!("| {name} | {own} | {} |", own - counts[plain]);
    }
}

/// The instructions of this program's requests, in a process of its own.
fn total(place: usize, requests: usize) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_requests*"])
        .arg(env::current_exe().expect("a running program has a path"))
        .args([CHILD, &place.to_string(), &requests.to_string()])
        .output()
        .expect("valgrind is installed: apt-get install valgrind");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split_once("Collected :")).map(|(_, number)| number.trim());
    collected.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("callgrind counted nothing: {text}"))
}
