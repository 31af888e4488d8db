//! Turns an upstream's response into pauses and a slower pace.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key, Rate};
use tokio::time::Instant;

use super::pauses::Steps;
use super::queue::Queue;
use super::schedule::Schedule;
use super::units::ShapeUsage;
use super::upstream_head::UpstreamHead;
use crate::headers::read_upstream::{self, Allowance, Stated};
use crate::jitter;
use crate::time::{micros, time_for, wall_micros};

/// A longer announcement counts as one of a day: a key that no call uses any more is not remembered
/// for longer.
const LONGEST_ANNOUNCEMENT: Duration = Duration::from_secs(86_400);

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
        Self {
            longest: Duration::from_secs(60),
            jitter: 0,
        }
    }
}

/// A response to a call of a key.
pub(super) struct Response<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    /// When the call left, and when its response was there.
    pub(super) left: Instant,
    pub(super) now: Instant,
}

impl ObeyUpstream {
    /// Pauses or slows down a key as a response asks.
    pub(super) fn apply<B: Backend>(
        self,
        schedule: &Arc<Schedule<B>>,
        key: &Key,
        response: &Response<'_>,
    ) {
        let Response {
            status,
            headers,
            left,
            now,
        } = *response;
        let Stated {
            allowance,
            used_up: without_end,
        } = read_upstream::stated(headers, wall_micros);
        let used_up = allowance
            .filter(|allowance| allowance.remaining == 0)
            .map(|allowance| allowance.within);
        if read_upstream::is_refusal(status, headers) {
            match read_upstream::wait(headers, wall_micros())
                .max(used_up)
                .or(without_end)
            {
                Some(wait) => self.pause(schedule, key, response, wait),
                None => {
                    let length = |doubled: Duration| self.lengthen(doubled.min(self.longest));
                    let first = time_for(schedule.paces.requests, 1);
                    let refused =
                        |queue: &mut Queue, _| queue.pauses.refused([left, now], first, length);
                    if let Some(until) = schedule.change(key, true, refused) {
                        schedule.pause(key, now, until);
                    }
                }
            }
        } else {
            if !status.is_server_error() {
                schedule.change(key, false, |queue, _| queue.pauses.succeeded(left));
            }
            if let Some(wait) = used_up.max(without_end) {
                self.pause(schedule, key, response, wait);
            }
        }
        if let Some(Allowance {
            remaining: remaining @ 1..,
            within,
        }) = allowance
        {
            let spacing = time_for(Rate::new(remaining, within), 1).min(self.longest);
            // Has an effect only if the pace would use it up too early.
            schedule.slow(key, spacing, now + within.min(self.longest));
        }
    }

    /// For as long as was announced. A longer wait than the longest pause is kept in steps: after
    /// each step one call leaves, to see whether the upstream still refuses.
    fn pause<B: Backend>(
        self,
        schedule: &Arc<Schedule<B>>,
        key: &Key,
        response: &Response<'_>,
        announced: Duration,
    ) {
        let now = response.now;
        schedule.pause(key, now, now + self.lengthen(announced.min(self.longest)));
        let steps = (announced > self.longest && !self.longest.is_zero()).then(|| {
            let until = now + self.lengthen(announced.min(LONGEST_ANNOUNCEMENT));
            Steps {
                announced_at: now,
                until,
                length: self.longest,
            }
        });
        schedule.change(key, steps.is_some(), |queue, _| {
            queue.pauses.announce(response.left, steps);
        });
    }

    fn lengthen(self, pause: Duration) -> Duration {
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

/// Reads the response to one call, and applies it to the key of that call.
pub(super) struct ResponseReader<B: Backend, H> {
    pub(super) schedule: Arc<Schedule<B>>,
    pub(super) key: Key,
    pub(super) obey: ObeyUpstream,
    pub(super) head: H,
    /// When the call left.
    pub(super) left: Instant,
    /// Of a call of several units.
    pub(super) usage: Option<ShapeUsage>,
}

impl<B: Backend, H> ResponseReader<B, H> {
    /// The call leaves, with what it was charged if that can be settled.
    pub(super) fn left(&mut self, receipt: Option<Box<Receipt>>) {
        self.left = Instant::now();
        if let Some(usage) = &self.usage {
            usage.left(receipt);
        }
    }

    pub(super) fn read<Res>(&self, response: &mut Res)
    where
        H: UpstreamHead<Res>,
    {
        if let Some((status, headers)) = self.head.head(response) {
            let response = Response {
                status,
                headers,
                left: self.left,
                now: Instant::now(),
            };
            self.obey.apply(&self.schedule, &self.key, &response);
        }
        if let Some(usage) = &self.usage {
            self.head.settle(response, usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::RETRY_AFTER;
    use throttle_core::LeakyBucket;

    use super::super::shaper::Shaper;
    use super::*;

    /// For how many keys a pause goes on, so many seconds after one call was refused for
    /// `announced` seconds.
    fn active_after(obey: ObeyUpstream, announced: u32) -> impl Fn(u32) -> usize {
        let shaper = Shaper::builder(LeakyBucket::new(Rate::per_second(10)))
            .build()
            .unwrap();
        let (key, now) = (Key::from("key"), Instant::now());
        let headers = HeaderMap::from_iter([(RETRY_AFTER, announced.into())]);
        let response = Response {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers: &headers,
            left: now,
            now,
        };
        obey.apply(&shaper.schedule, &key, &response);
        move |seconds| {
            shaper
                .schedule
                .queues
                .paused(now + seconds * Duration::from_secs(1))
        }
    }

    /// It goes on although no call leaves. A wait of more than a day counts as one of a day.
    #[tokio::test(start_paused = true)]
    async fn shape_long_wait_is_kept_until_its_end() {
        for (announced, kept) in [
            (61, 61),
            (120, 120),
            (86_400, 86_400),
            (86_401, 86_400),
            (9_000_000, 86_400),
        ] {
            let active = active_after(ObeyUpstream::default(), announced);
            assert_eq!([kept - 1, kept].map(active), [1, 0], "{announced}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn shape_wait_is_not_kept_where_the_longest_pause_is_none() {
        let active = active_after(
            ObeyUpstream {
                longest: Duration::ZERO,
                jitter: 0,
            },
            120,
        );
        assert_eq!(active(0), 0);
    }
}
