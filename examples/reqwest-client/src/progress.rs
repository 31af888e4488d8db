//! A bar that shows how far the batch has come.

use indicatif::{ProgressBar, ProgressStyle};
use throttle_tower::shape::ShapeStats;

pub struct Progress(ProgressBar);

impl Progress {
    /// A bar on standard error. Nothing is drawn where standard error is not a terminal.
    pub fn new(total: u64) -> Self {
        let style =
            ProgressStyle::with_template("{bar:30} {pos} of {len} sent at {per_sec:.0}, {msg}");
        Self(ProgressBar::new(total).with_style(style.expect("a valid template")))
    }

    pub fn show(&self, stats: &ShapeStats) {
        let ShapeStats {
            sent,
            waiting,
            refused,
            paused,
            ..
        } = stats;
        self.0.set_message(format!(
            "{waiting} waiting, {refused} refused, hosts paused: {paused}"
        ));
        self.0.set_position(*sent);
    }

    /// Leaves the bar as it is and moves to the next line.
    pub fn end(&self) {
        self.0.abandon();
    }
}
