//! The clock of a layer's reports, and when they are due.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::time::micros;

/// When a report is due after it was begun, and how late it may be before a request makes it.
pub(super) const DELAY: Duration = Duration::from_millis(100);

/// The clock of a layer's reports.
pub(super) struct Schedule {
    started: Instant,
    /// A runtime was found without timers.
    lacks_timers: AtomicBool,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            lacks_timers: AtomicBool::new(false),
        }
    }

    /// In µs.
    pub(super) fn now(&self) -> u64 {
        micros(self.started.elapsed())
    }

    /// `None` if the runtime has no timers. `tokio` says so by a panic alone, so it is asked once.
    pub(super) fn timer(&self, wait: Duration) -> Option<Sleep> {
        if self.lacks_timers.load(Ordering::Relaxed) {
            return None;
        }
        let timer = catch_unwind(|| sleep(wait)).ok();
        self.lacks_timers.store(timer.is_none(), Ordering::Relaxed);
        timer
    }
}
