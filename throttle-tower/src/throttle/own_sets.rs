//! The limits of a layer with numbers of some customer's own in place of a plan's tiers.
//!
//! Such limits are the layer's own in all but the numbers: they stand beside them on the same backend, share their
//! permits and queues, and charge the same budgets. They are made when the first request needs them, and it costs
//! nothing to forget them: what a key has used is where it was.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use smallvec::SmallVec;
use throttle_core::{Algorithm, ConfigError, PolicySet};

use crate::lock::lock;
use crate::log::Seldom;

/// Most sets of numbers that a layer keeps.
const MOST_SETS: usize = 1 << 10;
/// Most sets that are looked at to forget one.
const MOST_PASSED_OVER: usize = 8;

/// Numbers of a request's own, by the places of their limits.
pub(crate) type OwnNumbers = SmallVec<[(usize, Arc<Algorithm>); 1]>;

pub(crate) struct OwnSets<T> {
    sets: Mutex<Sets<T>>,
    /// What was logged of numbers that the backend refused.
    pub(super) refused: Seldom,
}

/// A table of fixed size. Where there is no room, it forgets a set that was not used since it was last passed over.
struct Sets<T> {
    /// What the layer decided by when these were made, if its parameters were replaced.
    in_force: Option<Arc<PolicySet>>,
    places: HashMap<Numbers, usize>,
    slots: Vec<Slot<T>>,
    hand: usize,
}

pub(super) type Numbers = SmallVec<[(usize, Algorithm); 1]>;

struct Slot<T> {
    numbers: Numbers,
    made: Making<T>,
    used: bool,
}

/// Made by one of the requests that need it, while the others wait: it takes no longer than they would themselves.
pub(super) type Making<T> = Arc<OnceLock<Made<T>>>;

/// The limits, or why the backend does not enforce them.
pub(super) type Made<T> = Result<Arc<T>, Arc<ConfigError>>;

/// Sets that are to be dropped without the lock.
type Forgotten<T> = Vec<Slot<T>>;

impl<T> Default for OwnSets<T> {
    fn default() -> Self {
        Self { sets: Mutex::default(), refused: Seldom::default() }
    }
}

impl<T> Default for Sets<T> {
    fn default() -> Self {
        Self { in_force: None, places: HashMap::new(), slots: Vec::new(), hand: 0 }
    }
}

impl<T> OwnSets<T> {
    /// The set of these numbers beside what is in force, which is made already or to be made by the caller.
    pub(super) fn of(&self, in_force: Option<&Arc<PolicySet>>, numbers: Numbers) -> Making<T> {
        let (making, forgotten) = lock(&self.sets).find_or_insert(in_force, numbers);
        drop(forgotten);
        making
    }
}

impl<T> Sets<T> {
    fn find_or_insert(&mut self, in_force: Option<&Arc<PolicySet>>, numbers: Numbers) -> (Making<T>, Forgotten<T>) {
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

#[cfg(test)]
mod tests;
