//! The time by which the reports of a layer are due.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::time::micros;

/// How long a report that is due may be late before a request makes it.
pub(in crate::observe) const DELAY: Duration = Duration::from_millis(100);

/// When the counts of a layer are reported.
pub(in crate::observe) struct Schedule {
    started: Instant,
    due: fn(u64) -> u64,
    /// A runtime was found without timers.
    lacks_timers: AtomicBool,
}

/// When the second ends that a time in µs is in.
#[cfg(feature = "offenders")]
pub(in crate::observe) fn next_second(now: u64) -> u64 {
    const SECOND: u64 = 1_000_000;
    (now / SECOND + 1) * SECOND
}

impl Schedule {
    /// `due` tells when a report is due that is begun at a time. Both are in µs, and the first is the earlier.
    pub(in crate::observe) fn new(due: fn(u64) -> u64) -> Self {
        Self { started: Instant::now(), due, lacks_timers: AtomicBool::new(false) }
    }

    /// The instant from which the time counts.
    #[cfg(feature = "offenders")]
    pub(in crate::observe) fn started(&self) -> Instant {
        self.started
    }

    /// In µs.
    pub(in crate::observe) fn now(&self) -> u64 {
        micros(self.started.elapsed())
    }

    /// When a report is due that is begun now.
    pub(super) fn due(&self, now: u64) -> u64 {
        (self.due)(now)
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
