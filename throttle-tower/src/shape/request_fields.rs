use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Cost, Key};

use super::slot_request::SlotRequest;
use super::units::{UnitCosts, Units};

/// Reads the key, the cost and the deadline of a call from its request.
pub(super) struct RequestFields<Req> {
    pub(super) key: Option<Arc<KeyOf<Req>>>,
    pub(super) cost: Option<Arc<CostOf<Req>>>,
    pub(super) deadline: Option<Arc<DeadlineOf<Req>>>,
    /// The estimates of other units, each with its unit's place.
    pub(super) estimates: Vec<(usize, Arc<CostOf<Req>>)>,
}

type KeyOf<Req> = dyn Fn(&Req) -> Key + Send + Sync;
type CostOf<Req> = dyn Fn(&Req) -> u64 + Send + Sync;
type DeadlineOf<Req> = dyn Fn(&Req) -> Option<Duration> + Send + Sync;

impl<Req> RequestFields<Req> {
    /// `None` for a request that costs nothing, which is not delayed.
    #[inline]
    pub(super) fn read(&self, request: &Req) -> Option<SlotRequest> {
        let cost = match &self.cost {
            Some(cost) => Cost::new(cost(request)).ok()?,
            None => Cost::ONE,
        };
        let key = self.key.as_ref().map_or(Key::CONSTANT, |key| key(request));
        let deadline = self.deadline.as_ref().and_then(|deadline| deadline(request));
        Some(SlotRequest { key, cost, deadline, always_slot: false, may_shrink: false })
    }

    /// As [`read`](Self::read), in several units.
    pub(super) fn read_units(&self, request: &Req, units: &Units) -> Option<(Key, UnitCosts, Option<Duration>)> {
        let mut costs = UnitCosts::none(units.count());
        costs.requests = self.cost.as_ref().map_or(1, |cost| cost(request));
        for (place, estimate) in &self.estimates {
            costs.units[*place] = estimate(request);
        }
        if costs.is_zero() {
            return None;
        }
        let key = self.key.as_ref().map_or(Key::CONSTANT, |key| key(request));
        Some((key, costs, self.deadline.as_ref().and_then(|deadline| deadline(request))))
    }
}

impl<Req> Default for RequestFields<Req> {
    fn default() -> Self {
        Self { key: None, cost: None, deadline: None, estimates: Vec::new() }
    }
}

impl<Req> Clone for RequestFields<Req> {
    fn clone(&self) -> Self {
        let Self { key, cost, deadline, estimates } = self;
        Self { key: key.clone(), cost: cost.clone(), deadline: deadline.clone(), estimates: estimates.clone() }
    }
}
