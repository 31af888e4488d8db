use std::sync::Arc;
use std::time::Duration;

use throttle_core::Key;

use super::units::UnitPaces;
use super::wanted::{Class, ClassOf, Wanted};

/// Reads the key, the cost and the deadline of a call from its request.
pub(super) struct RequestFields<Req> {
    pub(super) key: Option<Arc<KeyOf<Req>>>,
    pub(super) cost: Option<Arc<CostOf<Req>>>,
    pub(super) deadline: Option<Arc<DeadlineOf<Req>>>,
    /// The estimates of other units, each with its unit's place.
    pub(super) estimates: Vec<(usize, Arc<CostOf<Req>>)>,
    pub(super) class: Option<Arc<ClassOf<Req>>>,
}

type KeyOf<Req> = dyn Fn(&Req) -> Key + Send + Sync;
type CostOf<Req> = dyn Fn(&Req) -> u64 + Send + Sync;
type DeadlineOf<Req> = dyn Fn(&Req) -> Option<Duration> + Send + Sync;

impl<Req> RequestFields<Req> {
    /// `None` for a request that costs nothing, which is not delayed.
    #[inline]
    pub(super) fn read(&self, request: &Req, paces: &UnitPaces) -> Option<Wanted> {
        let cost = self.cost.as_ref().map_or(1, |cost| cost(request));
        let units = if paces.has_units() {
            self.read_units(request, paces)
        } else {
            None
        };
        if cost == 0 && units.iter().flatten().all(|count| *count == 0) {
            return None;
        }
        let key = self.key.as_ref().map_or(Key::CONSTANT, |key| key(request));
        let deadline = self
            .deadline
            .as_ref()
            .and_then(|deadline| deadline(request));
        Some(Wanted {
            key,
            cost,
            deadline,
            units,
        })
    }

    /// The class of a request that does not leave at once.
    pub(super) fn class(&self, request: &Req) -> Class {
        self.class
            .as_ref()
            .map_or(Class::default(), |class| class(request))
    }

    #[inline(never)]
    fn read_units(&self, request: &Req, paces: &UnitPaces) -> Option<Box<[u64]>> {
        let mut units = paces.no_units()?;
        for (place, estimate) in &self.estimates {
            units[*place] = estimate(request);
        }
        Some(units)
    }
}

impl<Req> Default for RequestFields<Req> {
    fn default() -> Self {
        Self {
            key: None,
            cost: None,
            deadline: None,
            estimates: Vec::new(),
            class: None,
        }
    }
}

impl<Req> Clone for RequestFields<Req> {
    fn clone(&self) -> Self {
        let Self {
            key,
            cost,
            deadline,
            estimates,
            class,
        } = self;
        let (key, cost, deadline) = (key.clone(), cost.clone(), deadline.clone());
        Self {
            key,
            cost,
            deadline,
            estimates: estimates.clone(),
            class: class.clone(),
        }
    }
}
