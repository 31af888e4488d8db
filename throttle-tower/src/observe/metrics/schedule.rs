//! The time by which the reports of a layer are due.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::time::micros;

/// How long after a request its counts reach the recorder, if its runtime runs: this and as much again for a request
/// that was being counted during a report.
pub(super) const DELAY: Duration = Duration::from_millis(100);

/// When the counts of a layer are reported.
pub(super) struct Schedule {
    started: Instant,
    /// A runtime was found without timers.
    lacks_timers: AtomicBool,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), lacks_timers: AtomicBool::new(false) }
    }

    /// In µs.
    pub(super) fn now(&self) -> u64 {
        micros(self.started.elapsed())
    }

    /// `None` if the runtime has no timers. `tokio` says so by a panic alone, so it is asked once.
    pub(super) fn timer(&self) -> Option<Sleep> {
        if self.lacks_timers.load(Ordering::Relaxed) {
            return None;
        }
        let timer = catch_unwind(|| sleep(DELAY)).ok();
        self.lacks_timers.store(timer.is_none(), Ordering::Relaxed);
        timer
    }
}
