//! Places for the decisions of a set that wait for a call or are under way.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use throttle_core::{Policy, PolicyName, PolicySet};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::link::Link;
use crate::link::call_error::CallError;
use crate::link::in_flight_limit::InFlightLimit;

/// The places of a set. Its parts for requests in other tiers share them, and so do sets that stand beside it.
pub(crate) struct Places {
    /// Places for decisions that are not batched, or batched by slot, or about own numbers.
    pub(crate) waiting: Semaphore,
    /// Work under way of decisions that are not batched, or batched by slot.
    pub(crate) room: InFlightLimit,
}

impl Places {
    fn new(link: &Link, queue: usize) -> Arc<Self> {
        Arc::new(Self { waiting: Semaphore::new(queue), room: link.room_of_set() })
    }

    /// # Errors
    ///
    /// If all places are taken.
    pub(crate) fn take(&self) -> Result<SemaphorePermit<'_>, CallError> {
        self.waiting.try_acquire().map_err(|_| CallError::Saturated)
    }
}

/// The places that sets beside others share, by the names of their policies. There may be a thousand such sets, one for
/// each customer with numbers of its own.
#[derive(Default)]
pub(crate) struct SharedPlaces(Mutex<HashMap<Box<[PolicyName]>, Weak<Places>>>);

impl SharedPlaces {
    /// Places for so many waiting decisions.
    pub(crate) fn of(&self, link: &Link, queue: usize, set: &PolicySet) -> Arc<Places> {
        let names = set.policies().iter().map(|policy| policy.policy_name().clone()).collect();
        let mut places = self.0.lock();
        match places.get(&names).and_then(Weak::upgrade) {
            Some(known) if is_beside(set) => known,
            // A second set of these names has places of its own.
            Some(_) => Places::new(link, queue),
            None => {
                places.retain(|_, places| places.strong_count() > 0);
                let new = Places::new(link, queue);
                places.insert(names, Arc::downgrade(&new));
                new
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// Whether a set stands beside others of its names.
pub(crate) fn is_beside(set: &PolicySet) -> bool {
    set.policies().iter().any(Policy::is_beside_existing)
}
