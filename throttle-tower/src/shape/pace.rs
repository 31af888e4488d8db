use std::time::Duration;

use throttle_core::Rate;

/// How often calls leave, and how long a call may wait for its turn.
///
/// Calls leave one emission interval apart: at ten a second, a tenth of a second. An idle pace
/// accumulates no burst.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::shape::Shaper;
/// use throttle_tower::{Pace, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shaper = Shaper::new(Pace::new(Rate::per_minute(1)).max_wait(Duration::from_secs(90)))?;
/// let before = tokio::time::Instant::now();
/// shaper.schedule("key", 1).await?;
/// shaper.schedule("key", 1).await?;
/// assert!(before.elapsed() >= Duration::from_secs(60));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub(super) rate: Rate,
    pub(super) max_wait: Duration,
}

impl Pace {
    /// Calls leave at this rate. The longest wait is 30 seconds.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            max_wait: Duration::from_secs(30),
        }
    }

    /// Sets how long a call may wait until its last unit is due. A call that would wait longer is
    /// refused. Zero queues nothing: a call leaves immediately or is refused. Defaults to 30
    /// seconds.
    ///
    /// A rate below two a minute needs a longer wait. At such a rate, a call right after another
    /// one would have to wait for more than 30 seconds, so the default refuses it.
    #[must_use]
    pub const fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = wait;
        self
    }
}
