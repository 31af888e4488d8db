use throttle_core::{Clock, Timestamp};
use tokio::time::Instant;

use crate::time::micros;

/// The clock of tokio's timers, counted from its creation.
///
/// It only moves forward and does not depend on the system's time: a call that is delayed by a
/// second leaves a second later, even if the system's time is changed meanwhile. In a runtime whose
/// time is paused it stands still with the timers.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::TokioClock;
/// use throttle_tower::throttle_core::Clock;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let clock = TokioClock::new();
/// tokio::time::advance(Duration::from_secs(1)).await;
/// assert_eq!(clock.now().as_micros(), 1_000_000);
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock(Instant);

impl TokioClock {
    /// A clock that reads zero now.
    #[must_use]
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::EPOCH.after_micros(micros(self.0.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shape_each_clock_reads_zero_at_first() {
        for clock in [TokioClock::new, TokioClock::default] {
            let clock = clock();
            assert_eq!(clock.now(), Timestamp::EPOCH);
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(clock.now().as_micros(), 1_000_000);
        }
    }
}
