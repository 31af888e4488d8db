//! Counts and prints the outcomes of the calls.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::PoisonError;
use std::time::Duration;

use reqwest::StatusCode;
use throttle_tower::shape::{Bound, ShapeError, ShapeStats};

use crate::upstream::{Arrivals, most_in_any};

#[derive(Default)]
pub struct Summary {
    /// How often each outcome occurred.
    outcomes: BTreeMap<String, u64>,
    /// Calls that failed.
    pub errors: u64,
}

impl Summary {
    pub fn note(&mut self, answer: Result<StatusCode, ShapeError<reqwest::Error>>) {
        self.errors += u64::from(matches!(&answer, Err(error) if error.queue_full().is_none()));
        let what = match answer {
            Ok(status) => status.to_string(),
            Err(ShapeError::QueueFull(full)) => match full.bound {
                Bound::MaxWait => format!(
                    "refused: its turn is more than {:?} away (max wait)",
                    full.allowed
                ),
                Bound::Deadline => format!(
                    "refused: its turn is more than {:?} away (its timeout)",
                    full.allowed
                ),
                _ => format!("refused: {full}"),
            },
            Err(ShapeError::Inner(error)) => {
                let causes = std::iter::successors(error.source(), |cause| (*cause).source());
                causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
            }
            Err(error) => error.into_boxed().to_string(),
        };
        *self.outcomes.entry(what).or_default() += 1;
    }

    pub fn print(&self, stats: &ShapeStats, took: Duration) {
        println!("\n{} calls sent in {:.1} s", stats.sent, took.as_secs_f64());
        for (what, count) in &self.outcomes {
            println!("{count:>7}  {what}");
        }
        if stats.cancelled > 0 {
            println!(
                "{:>7}  dropped while they waited; their turns were given back",
                stats.cancelled
            );
        }
    }
}

/// Prints the upstream's view. Returns whether it saw at most what it was promised.
pub fn print_arrivals(arrivals: &Arrivals, promised: u64) -> bool {
    println!("\nthe upstream saw           calls   most in any second   promised");
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kept = true;
    for (host, times) in arrivals.iter() {
        let most = most_in_any(Duration::from_secs(1), times);
        kept &= most as u64 <= promised;
        println!(
            "  {host:<22} {:>7}   {most:>18}   {promised:>8}",
            times.len()
        );
    }
    if kept {
        println!("The promise was kept.");
    } else {
        println!(
            "The promise was broken: calls differed in how long they travelled by more than the \
                headroom."
        );
    }
    kept
}
