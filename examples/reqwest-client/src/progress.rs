//! One line about how it goes, redrawn in place on a terminal.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use throttle_tower::shape::ShapeStats;

pub struct Progress {
    is_terminal: bool,
    /// What had been sent by when, over the last second.
    sent: VecDeque<(Instant, u64)>,
    lines: u32,
}

impl Progress {
    pub fn new() -> Self {
        Self { is_terminal: stderr().is_terminal(), sent: VecDeque::from([(Instant::now(), 0)]), lines: 0 }
    }

    /// To be called every tenth of a second.
    pub fn show(&mut self, stats: &ShapeStats, total: u64) {
        let now = Instant::now();
        self.sent.push_back((now, stats.sent));
        while self.sent.len() > 11 {
            self.sent.pop_front();
        }
        self.lines += 1;
        // A log is not flooded: one line a second.
        if !self.is_terminal && !self.lines.is_multiple_of(10) {
            return;
        }
        let (start, end) = if self.is_terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        let ShapeStats { sent, waiting, refused, paused, .. } = stats;
        let pace = self.pace(now);
        let line = format!(
            "{sent} of {total} sent at {pace}/s, {waiting} waiting, {refused} refused, keys held back: {paused}"
        );
        // Whether anybody reads it is not this program's concern.
        let _ = write!(stderr(), "{start}{line}{end}").and_then(|()| stderr().flush());
    }

    /// Leaves the line as it is, and what follows below it.
    pub fn end(&self) {
        if self.is_terminal && self.lines > 0 {
            let _ = writeln!(stderr());
        }
    }

    /// Calls a second over the last second.
    fn pace(&self, now: Instant) -> u128 {
        let (Some((since, first)), Some((_, last))) = (self.sent.front(), self.sent.back()) else { return 0 };
        let micros = (now - *since).max(Duration::from_millis(1)).as_micros();
        (u128::from(last - first) * 1_000_000 + micros / 2) / micros
    }
}
