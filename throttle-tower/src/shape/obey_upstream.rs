//! Reads what an upstream says in its responses, and applies it to the key of the call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key};
use tokio::time::Instant;

use super::error::Paused;
use super::pauses::{Pauses, Reply, Terms};
use super::schedule::Schedule;
use super::units::ShapeUsage;
use super::upstream_head::UpstreamHead;
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
    pub(super) refused_if: Option<Arc<RefusedIf>>,
}

pub(super) type RefusedIf = dyn Fn(StatusCode, &HeaderMap) -> bool + Send + Sync;

impl Default for ObeyUpstream {
    fn default() -> Self {
        Self {
            longest: Duration::from_secs(3_600),
            jitter: 0,
            slows: false,
            refused_if: None,
        }
    }
}

impl ObeyUpstream {
    /// Applies the response to a call of a key that left at that instant.
    pub(super) fn apply<B: Backend>(
        &self,
        schedule: &Arc<Schedule<B>>,
        key: &Key,
        left: Instant,
        (status, headers): (StatusCode, &HeaderMap),
    ) {
        let now = Instant::now();
        let is_refused = self
            .refused_if
            .as_ref()
            .is_some_and(|refused_if| refused_if(status, headers));
        let (refuses, wait) = read_upstream::refusal(status, headers, is_refused);
        let stated = read_upstream::stated(headers, || read_upstream::clock(headers));
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
        let heard = schedule.change(key, begins, |queue, now| {
            let known = queue.pauses.resets();
            let pause = queue.pauses.hear(&reply, terms).map(|(pause, by)| Paused {
                until: now + self.lengthen(pause),
                by,
            });
            let is_new = pause.is_some_and(|pause| queue.pause(pause, now));
            queue.go_on(now);
            let resets = queue.pauses.resets();
            (
                pause,
                is_new,
                Some(resets).filter(|resets| *resets != known),
            )
        });
        if refuses {
            schedule.counters.heard_refusal(&reply);
        }
        if let Some((pause, is_new, learned)) = heard {
            if let Some(resets) = learned {
                schedule.report_resets(resets);
            }
            if let Some(pause) = pause {
                schedule.share_pause(key, now, pause.until);
                if is_new {
                    schedule.report_pause(pause, now);
                }
            }
        }
    }

    fn lengthen(&self, pause: Duration) -> Duration {
        if self.jitter == 0 {
            return pause;
        }
        Duration::from_micros(jitter::lengthen(
            micros(pause),
            self.jitter,
            jitter::random(),
        ))
    }
}

impl fmt::Debug for ObeyUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObeyUpstream")
            .field("longest", &self.longest)
            .finish_non_exhaustive()
    }
}

/// Reads the response to one call, and applies it to the key of that call. If the call fails or is
/// dropped, its place among those under way is given back.
pub(super) struct ResponseReader<B: Backend, H> {
    pub(super) schedule: Arc<Schedule<B>>,
    pub(super) key: Key,
    pub(super) obey: ObeyUpstream,
    pub(super) head: H,
    /// When the call left, while it is under way.
    pub(super) left: Option<Instant>,
    /// Of a call of several units.
    pub(super) usage: Option<ShapeUsage>,
}

impl<B: Backend, H> ResponseReader<B, H> {
    /// The call leaves, with what it was charged if that can be settled.
    pub(super) fn left(&mut self, receipt: Option<Box<Receipt>>) {
        self.left = Some(Instant::now());
        if let Some(usage) = &self.usage {
            usage.left(receipt);
        }
    }

    pub(super) fn read<Res>(mut self, response: &mut Res)
    where
        H: UpstreamHead<Res>,
    {
        if let Some(head) = self.head.head(response)
            && let Some(left) = self.left.take()
        {
            self.obey.apply(&self.schedule, &self.key, left, head);
        }
        if let Some(usage) = &self.usage {
            self.head.settle(response, usage);
        }
    }
}

impl<B: Backend, H> Drop for ResponseReader<B, H> {
    fn drop(&mut self) {
        if let Some(left) = self.left {
            self.schedule.change(&self.key, false, |queue, now| {
                queue.pauses.give_back(left);
                queue.go_on(now);
            });
        }
    }
}
