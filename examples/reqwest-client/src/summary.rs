//! What came of it.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::PoisonError;
use std::time::Duration;

use reqwest::StatusCode;
use throttle_tower::shape::{Bound, ShapeError, ShapeStats};

use crate::upstream::{Arrivals, most_in_any};

#[derive(Default)]
pub struct Summary {
    /// How often what came of a call.
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
                Bound::MaxWait => format!("refused: longer than {:?} to its turn (MAX_WAIT)", full.allowed),
                Bound::Deadline => format!("refused: longer than {:?} to its turn (its timeout)", full.allowed),
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
        println!("\n{} calls left in {:.1} s", stats.sent, took.as_secs_f64());
        for (what, count) in &self.outcomes {
            println!("{count:>7}  {what}");
        }
        if stats.cancelled > 0 {
            println!("{:>7}  dropped while they waited; their slots went back", stats.cancelled);
        }
    }
}

/// The upstream's view. Whether it saw no more than it was promised.
pub fn print_arrivals(arrivals: &Arrivals, promised: u64) -> bool {
    println!("\nthe upstream saw           calls   most in any second   promised");
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kept = true;
    for (host, times) in arrivals.iter() {
        let most = most_in_any(Duration::from_secs(1), times);
        kept &= most as u64 <= promised;
        println!("  {host:<22} {:>7}   {most:>18}   {promised:>8}", times.len());
    }
    if kept {
        println!("The promise was kept.");
    } else {
        println!("The promise was broken: the delays of calls lay further apart than HEADROOM.");
    }
    kept
}
