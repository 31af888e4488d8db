//! Loads: tasks in a closed loop, and redis-benchmark.

use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throttle_test_servers::Server;
use tokio::runtime::Runtime;

/// How long a load runs.
pub(crate) const RUN: Duration = Duration::from_millis(1_500);
/// Keys that a load is spread over.
pub(crate) const KEYS: u64 = 100_000;

/// Lets `tasks` tasks repeat a step on one thread until the time is over.
pub(crate) fn closed_loop<F, S>(runtime: &Runtime, tasks: usize, step: S) -> (u64, Vec<f64>)
where
    S: Fn(u64) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let step = Arc::new(step);
    runtime.block_on(async move {
        let until = Instant::now() + RUN;
        let tasks: Vec<_> = (0..tasks as u64)
            .map(|task| {
                let step = Arc::clone(&step);
                tokio::spawn(async move {
                    let (mut random, mut each) =
                        (task.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, Vec::new());
                    loop {
                        let start = Instant::now();
                        if start >= until {
                            return each;
                        }
                        // xorshift64
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        step(random % KEYS).await;
                        each.push(start.elapsed().as_secs_f64() * 1e6);
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.expect("a task"));
        }
        (all.len() as u64, all)
    })
}

/// Decisions a second that redis-benchmark reaches with a script, and its p50 and p99 in µs.
pub(crate) fn benchmark(
    server: &Server,
    script: &str,
    keys: &[&str],
    clients: usize,
    pipeline: usize,
    count: usize,
) -> Vec<f64> {
    let sha: String = server.query(&["SCRIPT", "LOAD", script]);
    let (clients, pipeline, count) = (clients.to_string(), pipeline.to_string(), count.to_string());
    let options = ["-c", &clients, "-P", &pipeline, "-n", &count];
    let keyed = keys.len().to_string();
    let command = [&["EVALSHA", &sha, &keyed], keys].concat();
    redis_benchmark(server.port(), &options, &command)
}

/// Runs redis-benchmark with a command. Returns commands a second, p50 and p99 in µs.
pub(crate) fn redis_benchmark(port: u16, options: &[&str], command: &[&str]) -> Vec<f64> {
    let (port, range) = (port.to_string(), KEYS.to_string());
    let output = Command::new("taskset")
        .args([
            "-c",
            "1",
            "redis-benchmark",
            "-p",
            &port,
            "-r",
            &range,
            "--csv",
        ])
        .args(options)
        .args(command)
        .output()
        .expect("redis-benchmark, and taskset");
    let text = String::from_utf8_lossy(&output.stdout);
    // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
    let line = text.lines().last().unwrap_or_default();
    let figures: Vec<f64> = line
        .rsplitn(8, ',')
        .filter_map(|word| word.trim_matches('"').parse().ok())
        .collect();
    assert!(
        figures.len() >= 7,
        "redis-benchmark said: {text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    // From the end: max, p99, p95, p50, min, avg, rps.
    vec![figures[6], figures[3] * 1e3, figures[1] * 1e3]
}
