//! Prints what the upstream sees, and whether it keeps within the promise.

use std::time::{Duration, Instant};

use crate::settings::Settings;
use crate::upstream::Arrivals;

/// The period of the rate.
const PERIOD: Duration = Duration::from_secs(1);
/// How long the processes may differ in noticing that Redis is gone or back. Meanwhile some use
/// Redis and some their share.
const SETTLE: Duration = Duration::from_secs(1);

pub struct View {
    arrivals: Arrivals,
    promised: u64,
    workers: usize,
    began: Instant,
    away: Option<Instant>,
    back: Option<Instant>,
}

impl View {
    pub fn new(arrivals: Arrivals, settings: &Settings) -> Self {
        let (promised, workers) = (settings.rate, settings.workers as usize);
        Self {
            arrivals,
            promised,
            workers,
            began: Instant::now(),
            away: None,
            back: None,
        }
    }

    pub fn end_of(&self, second: u64) -> Instant {
        self.began + Duration::from_secs(second)
    }

    pub fn print_head(&self) {
        let Self {
            promised, workers, ..
        } = self;
        println!(
            "{workers} processes, as fast as they may, {promised} calls a second together; Ctrl-C \
                ends it\n"
        );
        let names: String = (1..=*workers)
            .map(|worker| format!("  worker {worker}"))
            .collect();
        println!("second{names}   together   most in any second   promised");
    }

    pub fn print_second(&self, second: u64) {
        let (from, to) = (self.end_of(second - 1), self.end_of(second));
        let counts = self.arrivals.by_worker(from, to, self.workers);
        let together: usize = counts.iter().sum();
        let counts: String = counts.iter().map(|count| format!("{count:>10}")).collect();
        let most = self.arrivals.most_in_any(PERIOD, self.began, to);
        println!(
            "{second:>6}{counts} {together:>10} {most:>20} {:>10}",
            self.promised
        );
    }

    pub fn redis_went_away(&mut self, at: Instant) {
        self.away = Some(at);
        println!("       Redis is killed: each process continues with its share");
    }

    pub fn redis_came_back(&mut self, at: Instant) {
        self.back = Some(at);
        println!("       Redis is started again");
    }

    /// Returns whether the upstream saw at most what was promised while Redis was up.
    pub fn print_verdict(&self, end: Instant) -> bool {
        let most = |from, to| self.arrivals.most_in_any(PERIOD, from, to);
        let Self {
            promised, began, ..
        } = *self;
        println!("\nmost in any second, of {promised} promised");
        let before = most(began, self.away.unwrap_or(end));
        println!("{before:>6}  while Redis was up");
        let mut up = before;
        if let Some(away) = self.away {
            let until = self.back.unwrap_or(end);
            println!(
                "{:>6}  while it went away",
                most(away - PERIOD, (away + SETTLE + PERIOD).min(until))
            );
            println!("{:>6}  while it was away", most(away + SETTLE, until));
        }
        if let Some(back) = self.back {
            let after = most(back + SETTLE, end);
            println!(
                "{:>6}  while it came back",
                most(back - PERIOD, (back + SETTLE + PERIOD).min(end))
            );
            println!("{after:>6}  while it was up again");
            up = up.max(after);
        }
        let kept = up as u64 <= promised;
        println!(
            "While Redis was up, the promise was {}.",
            if kept { "kept" } else { "broken" }
        );
        kept
    }
}
