use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Cost, Key};

use super::pace::Ask;

/// What a layer wants to know of a request.
pub(crate) struct How<Req> {
    pub(crate) key: Option<Arc<KeyOf<Req>>>,
    pub(crate) cost: Option<Arc<CostOf<Req>>>,
    pub(crate) deadline: Option<Arc<DeadlineOf<Req>>>,
}

type KeyOf<Req> = dyn Fn(&Req) -> Key + Send + Sync;
type CostOf<Req> = dyn Fn(&Req) -> u64 + Send + Sync;
type DeadlineOf<Req> = dyn Fn(&Req) -> Option<Duration> + Send + Sync;

impl<Req> How<Req> {
    /// What the request asks; `None` if it asks nothing.
    #[inline]
    pub(crate) fn ask(&self, request: &Req) -> Option<Ask> {
        let cost = match &self.cost {
            Some(cost) => Cost::new(cost(request)).ok()?,
            None => Cost::ONE,
        };
        let key = self.key.as_ref().map_or(Key::CONSTANT, |key| key(request));
        let within = self.deadline.as_ref().and_then(|deadline| deadline(request));
        Some(Ask { key, cost, within, holds: false })
    }
}

impl<Req> Default for How<Req> {
    fn default() -> Self {
        Self { key: None, cost: None, deadline: None }
    }
}

impl<Req> Clone for How<Req> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), cost: self.cost.clone(), deadline: self.deadline.clone() }
    }
}
