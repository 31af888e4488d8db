use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::{Backend, Key, Rate};
use tokio::time::Instant;

use super::pace::Pace;
use super::pauses::spread;
use crate::headers::reading::{self, Allowance};
use crate::time::wall_micros;

/// How far an upstream is obeyed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Obey {
    /// No pause is longer, whatever an upstream asks for.
    pub(crate) longest: Duration,
    /// Pauses are lengthened by up to so many percent.
    pub(crate) jitter: u8,
}

impl Default for Obey {
    fn default() -> Self {
        Self { longest: Duration::from_secs(60), jitter: 0 }
    }
}

impl Obey {
    /// Makes of a response what it means for the calls that follow.
    pub(crate) fn learn<B: Backend>(self, pace: &Pace<B>, key: &Key, status: StatusCode, headers: &HeaderMap) {
        let now = Instant::now();
        let allowance = reading::allowance(headers, wall_micros);
        let used_up = allowance.filter(|allowance| allowance.remaining == 0).map(|allowance| allowance.within);
        let refused = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let retry_after = if refused { reading::retry_after(headers, wall_micros()) } else { None };
        if let Some(pause) = retry_after.max(used_up) {
            pace.pauses.pause(key, now, now + self.lengthen(pause.min(self.longest)));
        }
        if let Some(Allowance { remaining: remaining @ 1.., within }) = allowance {
            let spacing = spread(Rate::new(remaining, within), 1).min(self.longest);
            // Counts only where it would be used up too early.
            pace.pauses.slow(key, now, spacing, now + within.min(self.longest));
        }
    }

    fn lengthen(self, pause: Duration) -> Duration {
        if self.jitter == 0 {
            return pause;
        }
        // A hasher with keys of its own is as random as this needs to be.
        let share = u128::from(RandomState::new().hash_one(()));
        let most = pause.as_nanos() * u128::from(self.jitter.min(100)) / 100;
        let extra = (most * (share >> 32)) >> 32;
        pause.saturating_add(Duration::from_nanos(u64::try_from(extra).unwrap_or(u64::MAX)))
    }
}
