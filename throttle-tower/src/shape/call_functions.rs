use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_core::Key;

use super::demand::{CallClass, Demand};
use super::unit_paces::UnitPaces;
use super::unit_usage::ShapeUsage;

/// A function of the program that reads something from a request.
type Reader<Req, Out> = Arc<dyn Fn(&Req) -> Out + Send + Sync>;

/// The functions of the program that read requests and responses.
pub(super) struct CallFunctions<Req, Res> {
    pub(super) key: Reader<Req, Key>,
    pub(super) cost: Reader<Req, u64>,
    pub(super) deadline: Reader<Req, Option<Duration>>,
    pub(super) class: Reader<Req, CallClass>,
    /// The estimates of other units, each with its unit's index.
    pub(super) estimates: Vec<(usize, Reader<Req, u64>)>,
    /// The head of a response, where the upstream is obeyed.
    pub(super) head: Option<Arc<ResponseHead<Res>>>,
    pub(super) settles: Vec<Arc<Settle<Res>>>,
}

type ResponseHead<Res> = dyn Fn(&Res) -> Option<(StatusCode, &HeaderMap)> + Send + Sync;
type Settle<Res> = dyn Fn(&mut Res, ShapeUsage) + Send + Sync;

impl<Req, Res> CallFunctions<Req, Res> {
    /// Reads what a request needs for its turn. `None` if it costs nothing: then it is not delayed.
    pub(super) fn demand(&self, request: &Req, paces: &UnitPaces) -> Option<Demand> {
        let cost = (self.cost)(request);
        let mut units = paces.no_units();
        for (index, estimate) in &self.estimates {
            if let Some(units) = &mut units {
                units[*index] = estimate(request);
            }
        }
        if cost == 0 && units.iter().flatten().all(|count| *count == 0) {
            return None;
        }
        Some(Demand {
            key: (self.key)(request),
            cost,
            deadline: (self.deadline)(request),
            units,
            class: (self.class)(request),
        })
    }

    pub(super) fn reads_responses(&self) -> bool {
        self.head.is_some() || !self.settles.is_empty()
    }
}

impl<Req, Res> Default for CallFunctions<Req, Res> {
    fn default() -> Self {
        Self {
            key: Arc::new(|_| Key::CONSTANT),
            cost: Arc::new(|_| 1),
            deadline: Arc::new(|_| None),
            class: Arc::new(|_| CallClass::default()),
            estimates: Vec::new(),
            head: None,
            settles: Vec::new(),
        }
    }
}

// Not derived: requests and responses need not be `Clone`.
impl<Req, Res> Clone for CallFunctions<Req, Res> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            cost: self.cost.clone(),
            deadline: self.deadline.clone(),
            class: self.class.clone(),
            estimates: self.estimates.clone(),
            head: self.head.clone(),
            settles: self.settles.clone(),
        }
    }
}
