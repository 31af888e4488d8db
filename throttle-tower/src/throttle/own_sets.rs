//! The limits of a layer with numbers of some customer's own in place of a plan's tiers.
//!
//! Such limits are the layer's own in all but the numbers: they stand beside them on the same backend, share their
//! permits and queues, and charge the same budgets. They are made when the first request needs them, and it costs
//! nothing to forget them: what a key has used is where it was.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use smallvec::SmallVec;
use throttle_core::{Algorithm, Backend, BackendError, BackendErrorKind, ConfigError, PolicySet};

use super::announced::Announced;
use super::build::make_share;
use super::shared::Shared;
use crate::lock::lock;
use crate::log::Seldom;

/// Most sets of numbers that a layer keeps.
const MOST_SETS: usize = 1 << 10;
/// Most sets that are looked at to forget one.
const MOST_PASSED_OVER: usize = 8;

/// Numbers of a request's own, by the places of their limits.
pub(crate) type OwnNumbers = SmallVec<[(usize, Arc<Algorithm>); 1]>;

pub(crate) struct OwnSets<B: Backend> {
    sets: Mutex<Sets<B>>,
    /// What was logged of numbers that the backend refused.
    refused: Seldom,
}

/// A table of fixed size. Where there is no room, it forgets a set that was not used since it was last passed over.
struct Sets<B: Backend> {
    /// What the layer decided by when these were made, if its parameters were replaced.
    in_force: Option<Arc<PolicySet>>,
    places: HashMap<Numbers, usize>,
    slots: Vec<Slot<B>>,
    hand: usize,
}

type Numbers = SmallVec<[(usize, Algorithm); 1]>;

struct Slot<B: Backend> {
    numbers: Numbers,
    made: Making<B>,
    used: bool,
}

/// Made by one of the requests that need it, while the others wait: it takes no longer than they would themselves.
type Making<B> = Arc<OnceLock<Made<B>>>;

/// The limits, or why the backend does not enforce them.
type Made<B> = Result<Arc<Shared<B>>, Arc<ConfigError>>;

/// Sets that are to be dropped without the lock.
type Forgotten<B> = Vec<Slot<B>>;

impl<B: Backend> Default for OwnSets<B> {
    fn default() -> Self {
        Self { sets: Mutex::default(), refused: Seldom::default() }
    }
}

impl<B: Backend> Default for Sets<B> {
    fn default() -> Self {
        Self { in_force: None, places: HashMap::new(), slots: Vec::new(), hand: 0 }
    }
}

impl<B: Backend> OwnSets<B> {
    /// The set of these numbers beside what is in force, which is made already or to be made by the caller.
    fn of(&self, in_force: Option<&Arc<PolicySet>>, numbers: Numbers) -> Making<B> {
        let (making, forgotten) = lock(&self.sets).find_or_insert(in_force, numbers);
        drop(forgotten);
        making
    }
}

impl<B: Backend> Sets<B> {
    fn find_or_insert(&mut self, in_force: Option<&Arc<PolicySet>>, numbers: Numbers) -> (Making<B>, Forgotten<B>) {
        let mut forgotten = Vec::new();
        if !is_same(self.in_force.as_ref(), in_force) {
            forgotten = std::mem::replace(self, Self { in_force: in_force.cloned(), ..Self::default() }).slots;
        }
        if let Some(place) = self.places.get(&numbers) {
            let slot = &mut self.slots[*place];
            slot.used = true;
            return (Arc::clone(&slot.made), forgotten);
        }
        let making = Making::default();
        let slot = Slot { numbers: numbers.clone(), made: Arc::clone(&making), used: true };
        let place = if self.slots.len() < MOST_SETS {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let place = self.pass_over();
            self.places.remove(&self.slots[place].numbers);
            forgotten.push(std::mem::replace(&mut self.slots[place], slot));
            place
        };
        self.places.insert(numbers, place);
        (making, forgotten)
    }

    /// One of the next places, if possible one that was not used since it was last passed over.
    fn pass_over(&mut self) -> usize {
        for _ in 0..MOST_PASSED_OVER {
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[self.hand].used) {
                break;
            }
        }
        self.hand
    }
}

fn is_same(then: Option<&Arc<PolicySet>>, now: Option<&Arc<PolicySet>>) -> bool {
    match (then, now) {
        (Some(then), Some(now)) => Arc::ptr_eq(then, now),
        (then, now) => then.is_none() && now.is_none(),
    }
}

impl<B: Backend> Shared<B> {
    /// The same limits with these numbers.
    ///
    /// # Errors
    ///
    /// If the backend does not enforce them. The request was not charged.
    pub(super) fn with_own(&self, numbers: &OwnNumbers) -> Result<Arc<Self>, BackendError> {
        let in_force = self.backend.in_force(&self.prepared);
        let by_value = numbers.iter().map(|(place, numbers)| (*place, **numbers)).collect();
        let making = self.own_sets.of(in_force.as_ref(), by_value);
        let made = making.get_or_init(|| self.made_with(in_force.as_deref(), numbers).map(Arc::new).map_err(Arc::new));
        made.clone().map_err(|error| {
            self.own_sets.refused.warn(&format_args!(
                "a lookup returned numbers that the backend refuses: {error}. Their requests are refused"
            ));
            refused(error)
        })
    }

    /// The same limits with these numbers, for a look: nothing is kept of them.
    ///
    /// # Errors
    ///
    /// As [`with_own`](Self::with_own).
    #[cfg(feature = "rules")]
    pub(super) fn peeking_with_own(&self, numbers: &OwnNumbers) -> Result<Arc<Self>, BackendError> {
        let in_force = self.backend.in_force(&self.prepared);
        self.made_with(in_force.as_deref(), numbers).map(Arc::new).map_err(refused)
    }

    fn made_with(&self, in_force: Option<&PolicySet>, numbers: &OwnNumbers) -> Result<Self, ConfigError> {
        let base = in_force.unwrap_or_else(|| B::set(&self.prepared)).clone();
        let set = base.with_own(numbers.iter().map(|(place, numbers)| (*place, **numbers)))?;
        let prepared = Arc::new(self.backend.prepare(set)?);
        let announced = Announced::new(B::set(&prepared).policies(), self.announced.options.clone());
        let mut own = Self { prepared, announced: Arc::new(announced), share: None, ..self.clone() };
        if let Some(share) = &self.share {
            own.options.local_store = Some(share.store().clone());
        }
        make_share(&mut own)?;
        Ok(own)
    }
}

fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BackendError {
    BackendError::new(BackendErrorKind::Protocol).uncharged().with_source(error)
}

#[cfg(test)]
mod tests;
