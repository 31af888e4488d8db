//! Turns an upstream's response into pauses: `Retry-After`, `RateLimit` and its relatives.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::{Backend, Key, Rate};
use tokio::time::Instant;

use super::schedule::Schedule;
use super::upstream_head::UpstreamHead;
use crate::headers::read_upstream::{self, Allowance};
use crate::jitter;
use crate::time::{micros, time_for, wall_micros};

/// How far an upstream is obeyed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObeyUpstream {
    /// No pause is longer, whatever an upstream asks for.
    pub(super) longest: Duration,
    /// Pauses are lengthened by up to so many percent.
    pub(super) jitter: u8,
}

impl Default for ObeyUpstream {
    fn default() -> Self {
        Self { longest: Duration::from_secs(60), jitter: 0 }
    }
}

impl ObeyUpstream {
    /// Pauses or slows down a key as a response asks.
    fn apply<B: Backend>(self, schedule: &Schedule<B>, key: &Key, status: StatusCode, headers: &HeaderMap) {
        let now = Instant::now();
        let allowance = read_upstream::allowance(headers, wall_micros);
        let used_up = allowance.filter(|allowance| allowance.remaining == 0).map(|allowance| allowance.within);
        let refused = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        let retry_after = if refused { read_upstream::retry_after(headers, wall_micros()) } else { None };
        if let Some(pause) = retry_after.max(used_up) {
            schedule.paused_keys.pause(key, now, now + self.lengthen(pause.min(self.longest)));
        }
        if let Some(Allowance { remaining: remaining @ 1.., within }) = allowance {
            let spacing = time_for(Rate::new(remaining, within), 1).min(self.longest);
            // Has an effect only if the pace would use it up too early.
            schedule.paused_keys.slow(key, now, spacing, now + within.min(self.longest));
        }
    }

    fn lengthen(self, pause: Duration) -> Duration {
        if self.jitter == 0 {
            return pause;
        }
        // A hasher with keys of its own is random enough for this.
        let random = RandomState::new().hash_one(());
        Duration::from_micros(jitter::lengthen(micros(pause), self.jitter, random))
    }
}

/// Reads the response to one call, and applies it to the key of that call.
pub(super) struct ResponseReader<B: Backend, H> {
    pub(super) schedule: Arc<Schedule<B>>,
    pub(super) key: Key,
    pub(super) obey: ObeyUpstream,
    pub(super) head: H,
}

impl<B: Backend, H> ResponseReader<B, H> {
    pub(super) fn read<Res>(&self, response: &Res)
    where
        H: UpstreamHead<Res>,
    {
        if let Some((status, headers)) = self.head.head(response) {
            self.obey.apply(&self.schedule, &self.key, status, headers);
        }
    }
}
