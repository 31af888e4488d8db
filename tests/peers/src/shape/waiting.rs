//! The cost of waiting callers. Each figure comes from a process of its own.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::pacers::{self, Calling, CommonPace, Pacer, Upstream};
use crate::memory::measure;
use crate::{alloc, report};

/// No turn comes during the measurement.
const PACE: CommonPace = CommonPace {
    count: 1,
    period: Duration::from_secs(20),
};
const MANY: usize = 100_000;
const MILLION: usize = 1_000_000;
const ROUNDS: usize = 3;

pub fn run() {
    let columns = [
        "100,000 callers that wait",
        "futures, bytes each",
        "of which outside of it",
        "tasks, bytes each",
    ];
    report::title(
        "Memory of waiting callers (by a counting allocator)",
        &columns,
    );
    for (title, name) in [
        ("throttle, `ShapeLayer`", "layer"),
        ("throttle, `schedule`", "shaper"),
        ("tower, `RateLimit` in a `Buffer`", "tower"),
        ("leaky-bucket, `acquire_owned`", "leaky"),
        ("governor, `until_ready`", "governor"),
        ("governor, `until_key_ready`", "governor keyed"),
    ] {
        let (futures, tasks) = (
            measure("futures", name, ROUNDS),
            measure("tasks", name, ROUNDS),
        );
        let cells = [&futures[0], &futures[1], &tasks[0]]
            .map(|rounds| format!("{:.0}", report::median(rounds)));
        report::row(&[&[title.to_owned()][..], &cells[..]].concat());
    }

    let columns = [
        "a million callers that wait",
        "to queue, s",
        "bytes each",
        "to drop, last first, s",
        "to drop, first first, s",
    ];
    report::title(
        "A million that wait (futures; medians of rounds, least–most)",
        &columns,
    );
    for (title, name) in [
        ("throttle, `ShapeLayer`", "layer"),
        ("throttle, `schedule`", "shaper"),
    ] {
        let (last, first) = (
            measure("million", name, ROUNDS),
            measure("million first", name, ROUNDS),
        );
        let cells = [(&last[0], 2), (&last[1], 0), (&last[2], 2), (&first[2], 2)];
        let cells = cells.map(|(rounds, digits)| report::spread(rounds, digits));
        report::row(&[&[title.to_owned()][..], &cells[..]].concat());
    }
}

/// Measures one thing in this process.
pub fn child(what: &str, name: &str) -> Vec<f64> {
    let runtime = pacers::runtime();
    let _inside = runtime.enter();
    let upstream = Upstream::default();
    let pacer = match name {
        "layer" => pacers::shape_layer(PACE, &upstream),
        "shaper" => pacers::bare_shaper(PACE, &upstream),
        "tower" => pacers::rate_limit(PACE, &upstream, MILLION),
        "leaky" => pacers::leaky_bucket(PACE, None, &upstream),
        "governor" => pacers::governor(PACE, None, &upstream),
        _ => pacers::governor_keyed(PACE, 1, &upstream),
    };
    // Calls that leave at once, and what is allocated for the first call.
    runtime.block_on(pacer());
    match what {
        "tasks" => vec![tasks(&runtime, &pacer)],
        "futures" => {
            let (_, bytes, outside) = queue(&pacer, MANY);
            vec![bytes, outside]
        }
        _ => million(&pacer, what == "million first"),
    }
}

/// Makes `count` calls wait. Returns them, and the bytes of each with the boxed future and without
/// it.
fn queue(pacer: &Pacer, count: usize) -> (Vec<Calling>, f64, f64) {
    let mut waiting: Vec<Calling> = Vec::with_capacity(count);
    alloc::count();
    let before = alloc::held();
    let mut context = Context::from_waker(Waker::noop());
    let mut own = 0;
    for _ in 0..count {
        let mut calling = pacer();
        own += size_of_val(&*calling);
        assert!(
            calling.as_mut().poll(&mut context) == Poll::Pending,
            "it has to wait"
        );
        waiting.push(calling);
    }
    let bytes = alloc::held().wrapping_sub(before) as f64 / count as f64;
    (waiting, bytes, bytes - own as f64 / count as f64)
}

/// Bytes of each waiting task. The tasks get time to start.
fn tasks(runtime: &tokio::runtime::Runtime, pacer: &Pacer) -> f64 {
    let mut waiting = Vec::with_capacity(MANY);
    alloc::count();
    let before = alloc::held();
    waiting.extend((0..MANY).map(|_| runtime.spawn(pacer())));
    std::thread::sleep(Duration::from_secs(2));
    let bytes = alloc::held().wrapping_sub(before) as f64 / MANY as f64;
    // The program does not wait for them to end.
    std::mem::forget(waiting);
    bytes
}

/// Seconds to make a million calls wait, bytes of each, seconds to drop them.
fn million(pacer: &Pacer, first_first: bool) -> Vec<f64> {
    let start = Instant::now();
    let (mut waiting, bytes, _) = queue(pacer, MILLION);
    let queued = start.elapsed();
    if !first_first {
        waiting.reverse();
    }
    let start = Instant::now();
    drop(waiting);
    vec![queued.as_secs_f64(), bytes, start.elapsed().as_secs_f64()]
}
