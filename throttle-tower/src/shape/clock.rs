use std::fmt;

use throttle_core::{Clock, Timestamp};
use tokio::time::Instant;

use crate::time::micros;

/// The clock that tokio's timers go by, counted from when it was made.
///
/// It only moves forward and knows nothing of the wall: whoever was told to wait a second leaves a second later, whatever
/// is done to the system's time meanwhile. In a runtime whose time is paused it stands still with the timers.
#[derive(Clone, Copy)]
pub struct TokioClock(Instant);

impl TokioClock {
    /// A clock that starts now, at the epoch.
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

impl fmt::Debug for TokioClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokioClock")
    }
}
