//! Summaries of latencies.

use std::fmt;
use std::time::Duration;

/// Sorted.
#[derive(Clone, Debug)]
pub(crate) struct Figures(Vec<Duration>);

impl Figures {
    pub(crate) fn of(durations: impl Iterator<Item = Duration>) -> Self {
        let mut sorted: Vec<Duration> = durations.collect();
        sorted.sort_unstable();
        Self(sorted)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The duration that `percent` of a hundred latencies do not exceed; zero if there are none.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let place = (self.0.len() * percent).div_ceil(100).max(1) - 1;
        self.0.get(place).copied().unwrap_or_default()
    }

    pub(crate) fn p99(&self) -> Duration {
        self.percentile(99)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |duration: Duration| {
            format!(
                "{}.{:02}",
                duration.as_millis(),
                duration.as_micros() % 1000 / 10
            )
        };
        let [p50, p99, most] = [50, 99, 100].map(|percent| millis(self.percentile(percent)));
        write!(f, "{:>5} × p50 {p50} p99 {p99} max {most} ms", self.count())
    }
}
