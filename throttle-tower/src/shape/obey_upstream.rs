//! Reads what an upstream says in its responses, and applies it to the key of the call.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::Key;
use throttle_core::backend::Receipt;
use tokio::time::Instant;

use super::demand::Demand;
use super::error::Pause;
use super::layer::ShapeLayer;
use super::pauses::{Pauses, Reply, Terms};
use super::schedule::Schedule;
use super::units::ShapeUsage;
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
            schedule.report_resets(resets);
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
        Duration::from_micros(jitter::lengthen(
            micros(pause),
            self.jitter,
            jitter::random(),
        ))
    }
}

/// Reads the response to one call, and applies it to the key of that call. If the call fails or is
/// dropped, it is under way no more.
pub(super) struct ResponseReader<Req, Res> {
    layer: ShapeLayer<Req, Res>,
    key: Key,
    /// When the call left, while it is under way.
    left: Option<Instant>,
    /// Of a call of several units.
    usage: Option<ShapeUsage>,
}

impl<Req, Res> ResponseReader<Req, Res> {
    /// `None` if no function of the layer reads responses.
    pub(super) fn new(layer: &ShapeLayer<Req, Res>, demand: &Demand) -> Option<Box<Self>> {
        let schedule = &layer.shaper.schedule;
        layer.functions.reads_responses().then(|| {
            Box::new(Self {
                layer: layer.clone(),
                key: demand.key.clone(),
                left: None,
                usage: (demand.units.is_some()).then(|| ShapeUsage::new(schedule, demand)),
            })
        })
    }

    /// The call leaves, with what it was charged if that can be settled.
    pub(super) fn left(&mut self, receipt: Option<Box<Receipt>>) {
        self.left = Some(Instant::now());
        if let Some(usage) = &self.usage {
            usage.left(receipt);
        }
    }

    pub(super) fn read(mut self, response: &mut Res) {
        let ShapeLayer { shaper, functions } = &self.layer;
        let head = functions.head.as_ref().and_then(|head| head(response));
        if let Some((status, headers)) = head
            && let Some(left) = self.left.take()
        {
            shaper.obey(self.key.clone(), left, status, headers);
        }
        for settle in &functions.settles {
            if let Some(usage) = &self.usage {
                settle(response, usage.clone());
            }
        }
    }
}

impl<Req, Res> Drop for ResponseReader<Req, Res> {
    fn drop(&mut self) {
        if let Some(left) = self.left {
            let schedule = &self.layer.shaper.schedule;
            schedule.change(&self.key, false, |queue, now| {
                queue.pauses.give_back(left);
                queue.go_on(now);
            });
        }
    }
}
