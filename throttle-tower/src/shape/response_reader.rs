//! Reads what an upstream says in its responses, and applies it to the key of the call.

use throttle_core::Key;
use throttle_core::backend::Receipt;
use tokio::time::Instant;

use super::demand::Demand;
use super::layer::ShapeLayer;
use super::unit_usage::ShapeUsage;

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
