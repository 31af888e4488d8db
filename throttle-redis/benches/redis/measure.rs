//! Medians, and what processes have used.

use std::env;
use std::fs;
use std::time::{Duration, Instant};

use throttle_test_servers::Server;

pub(crate) fn rounds() -> usize {
    env::var("ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(5)
}

/// One measurement of something done `count` times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    /// µs of processor a piece.
    pub(crate) client: f64,
    pub(crate) server: f64,
    /// µs.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Runs `work`, which returns how often it did it and how long each took in µs, if it knows.
pub(crate) fn sample(server: &Server, work: impl FnOnce() -> (u64, Vec<f64>)) -> Sample {
    sample_of(|| server.cpu_time(), work)
}

/// The same, with the processor time of the servers as `cpu_time` returns it.
pub(crate) fn sample_of(
    cpu_time: impl Fn() -> Duration,
    work: impl FnOnce() -> (u64, Vec<f64>),
) -> Sample {
    let (client, there, start) = (own_cpu(), cpu_time(), Instant::now());
    let (count, mut each) = work();
    let elapsed = start.elapsed().as_secs_f64();
    let (client, there) = (own_cpu() - client, cpu_time() - there);
    each.sort_by(f64::total_cmp);
    let at = |share: f64| {
        each.get((each.len() as f64 * share) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    };
    let a_piece = |spent: Duration| spent.as_secs_f64() * 1e6 / count as f64;
    Sample {
        per_second: count as f64 / elapsed,
        client: a_piece(client),
        server: a_piece(there),
        p50: at(0.5),
        p99: at(0.99),
    }
}

/// Processor time of this process, in the kernel and out of it. The kernel counts in hundredths of
/// a second.
fn own_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |place: usize| {
        after_name
            .split_whitespace()
            .nth(place)
            .and_then(|t| t.parse::<u64>().ok())
    };
    Duration::from_millis(10 * (ticks(11).unwrap_or(0) + ticks(12).unwrap_or(0)))
}

/// The median of a figure over samples, with the least and the most.
pub(crate) fn median(samples: &[Sample], figure: impl Fn(&Sample) -> f64) -> (f64, f64, f64) {
    let mut figures: Vec<f64> = samples.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    (
        figures[figures.len() / 2],
        figures[0],
        figures[figures.len() - 1],
    )
}

pub(crate) fn thousands((median, least, most): (f64, f64, f64)) -> String {
    format!(
        "{:.1} k ({:.1}–{:.1})",
        median / 1e3,
        least / 1e3,
        most / 1e3
    )
}
