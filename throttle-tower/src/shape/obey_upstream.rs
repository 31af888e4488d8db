//! How far an upstream is obeyed: what it says becomes a pause of the key.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::Key;
use tokio::time::Instant;

use super::error::Pause;
use super::pauses::{Pauses, Reply, Terms};
use super::report::report_resets;
use super::schedule::Schedule;
use crate::headers::read_upstream;
use crate::jitter;
use crate::time::{micros, time_for};

/// How far an upstream is obeyed.
#[derive(Clone)]
pub(super) struct ObeyUpstream {
    /// No pause is longer, whatever an upstream asks for.
    pub(super) longest: Duration,
    /// Pauses are lengthened by up to so many percent.
    pub(super) jitter: u8,
    /// Whether the pace halves after a refusal.
    pub(super) slows: bool,
    /// Which further responses refuse.
    pub(super) refusal_if: Option<Arc<RefusalIf>>,
}

type RefusalIf = dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync;

impl Default for ObeyUpstream {
    fn default() -> Self {
        Self {
            longest: Duration::from_secs(3_600),
            jitter: 0,
            slows: false,
            refusal_if: None,
        }
    }
}

impl ObeyUpstream {
    /// Applies the response to a call of a key that left at that instant.
    pub(super) fn apply(
        &self,
        schedule: &Arc<Schedule>,
        key: &Key,
        left: Instant,
        (status, headers): (StatusCode, &HeaderMap),
    ) {
        let now = Instant::now();
        let is_refused = self
            .refusal_if
            .as_ref()
            .is_some_and(|refusal_if| refusal_if(status, headers));
        let (refuses, wait) = read_upstream::refusal(status, headers, is_refused);
        let stated = read_upstream::stated(headers);
        let reply = Reply {
            left,
            now,
            status,
            refuses,
            wait,
            allowance: stated.allowance,
            used_up: stated.used_up,
        };
        let terms = Terms {
            interval: time_for(schedule.paces.requests, 1),
            longest: self.longest,
            slows: self.slows,
        };
        let begins = Pauses::concern(&reply, terms.interval);
        let change = schedule.change(key, begins, |queue, now| {
            let known = queue.pauses.resets();
            let pause = queue.pauses.hear(&reply, terms);
            if pause.is_none() {
                queue.go_on(now);
            }
            let resets = queue.pauses.resets();
            (pause, (resets != known).then_some(resets))
        });
        if refuses {
            schedule.counters.heard_refusal(&reply);
        }
        let (pause, learned) = change.unwrap_or_default();
        if let Some(resets) = learned {
            report_resets(resets);
        }
        if let Some((wait, cause)) = pause {
            let until = now + self.lengthen(wait);
            schedule.pause(key, now, Pause { until, cause });
        }
    }

    fn lengthen(&self, pause: Duration) -> Duration {
        if self.jitter == 0 {
            return pause;
        }
        let longer = jitter::lengthen(micros(pause), self.jitter, jitter::random());
        Duration::from_micros(longer)
    }
}
