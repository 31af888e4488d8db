//! The limits of a layer with numbers of some customer's own in place of a plan's tiers.
//!
//! Such limits are the layer's own in all but the numbers: they stand beside them on the same backend, share their
//! permits and queues, and charge the same budgets. They are made when the first request needs them, and it costs nothing
//! to forget them: what a key has used is where it was.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use throttle_core::{Algorithm, Backend, ConfigError, Policy, PolicySet};

use super::announced::Announced;
use super::build::make_share;
use super::shared::Shared;
use crate::limit::{Applied, Keying};
use crate::lock::lock;
use crate::log;

/// Most combinations of numbers that a layer keeps.
const MOST_SETS: usize = 1 << 10;

/// Numbers of a request's own, by the places of their limits.
pub(crate) type OwnNumbers = SmallVec<[(usize, Arc<Algorithm>); 1]>;

pub(crate) struct OwnSets<B: Backend> {
    sets: Mutex<Sets<B>>,
    /// Whether it was logged that the backend refused numbers.
    has_refused: AtomicBool,
}

/// A table of fixed size. Where there is no room, it forgets a set that was not used since it was last passed over.
struct Sets<B: Backend> {
    /// What the layer decided by when these were made, if its parameters were replaced.
    in_force: Option<Arc<PolicySet>>,
    places: HashMap<Addresses, usize>,
    slots: Vec<Slot<B>>,
    hand: usize,
}

/// Each plan has all numbers once, so they are told apart by where they are.
type Addresses = SmallVec<[(usize, usize); 1]>;

struct Slot<B: Backend> {
    addresses: Addresses,
    /// Keeps the addresses.
    _numbers: OwnNumbers,
    made: Made<B>,
    used: bool,
}

/// The limits, or why the backend does not enforce them.
type Made<B> = Result<Arc<Shared<B>>, Arc<ConfigError>>;

impl<B: Backend> Default for OwnSets<B> {
    fn default() -> Self {
        Self { sets: Mutex::default(), has_refused: AtomicBool::new(false) }
    }
}

impl<B: Backend> Default for Sets<B> {
    fn default() -> Self {
        Self { in_force: None, places: HashMap::new(), slots: Vec::new(), hand: 0 }
    }
}

impl<B: Backend> Sets<B> {
    /// The set of these numbers, if it was made with what is in force.
    fn find(&mut self, in_force: Option<&Arc<PolicySet>>, addresses: &Addresses) -> Option<Made<B>> {
        if !is_same(self.in_force.as_ref(), in_force) {
            *self = Self { in_force: in_force.cloned(), ..Self::default() };
        }
        let slot = &mut self.slots[*self.places.get(addresses)?];
        slot.used = true;
        Some(slot.made.clone())
    }

    fn insert(&mut self, slot: Slot<B>, most: usize) {
        let addresses = slot.addresses.clone();
        let place = if self.slots.len() < most {
            self.slots.push(slot);
            self.slots.len() - 1
        } else {
            let place = self.pass_over();
            let forgotten = std::mem::replace(&mut self.slots[place], slot);
            self.places.remove(&forgotten.addresses);
            place
        };
        self.places.insert(addresses, place);
    }

    /// The next place that was not used since it was last passed over.
    fn pass_over(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[self.hand].used) {
                return self.hand;
            }
        }
    }
}

fn is_same(then: Option<&Arc<PolicySet>>, now: Option<&Arc<PolicySet>>) -> bool {
    match (then, now) {
        (Some(then), Some(now)) => Arc::ptr_eq(then, now),
        (then, now) => then.is_none() && now.is_none(),
    }
}

impl<B: Backend> Shared<B> {
    /// The same limits with these numbers. Numbers that the backend does not enforce are removed, each with a call of
    /// `leave_out`, which receives the place of their limit and the tier of unknown identities there.
    pub(super) fn with_own<'a>(
        self: &'a Arc<Self>,
        numbers: &mut OwnNumbers,
        mut leave_out: impl FnMut(usize, u8),
    ) -> Cow<'a, Arc<Self>> {
        while !numbers.is_empty() {
            let error = match self.made_with(numbers) {
                Ok(own) => return Cow::Owned(own),
                Err(error) => error,
            };
            self.log_refused(&error);
            let policies = B::set(&self.prepared).policies();
            let is_refused = |place: usize| policies.get(place).map(Policy::name) == error.policy();
            // An error that names none of them is about all.
            let is_one = numbers.iter().any(|(place, _)| is_refused(*place));
            numbers.retain(|(place, _)| {
                let stays = is_one && !is_refused(*place);
                if !stays && let Some(Keying::Tiered(lookup)) = self.applied.get(*place).map(|limit| &limit.keying) {
                    leave_out(*place, lookup.unknown_tier());
                }
                stays
            });
        }
        Cow::Borrowed(self)
    }

    fn made_with(&self, numbers: &OwnNumbers) -> Made<B> {
        let in_force = self.backend.in_force(&self.prepared);
        let addresses: Addresses =
            numbers.iter().map(|(place, numbers)| (*place, Arc::as_ptr(numbers).addr())).collect();
        if let Some(made) = lock(&self.own_sets.sets).find(in_force.as_ref(), &addresses) {
            return made;
        }
        // Without the lock: other requests with own numbers go on meanwhile.
        let base = in_force.as_deref().unwrap_or_else(|| B::set(&self.prepared));
        let made = self.beside(base, numbers).map(Arc::new).map_err(Arc::new);
        let mut sets = lock(&self.own_sets.sets);
        // Another request may have made it, too.
        if let Some(made) = sets.find(in_force.as_ref(), &addresses) {
            return made;
        }
        let slot = Slot { addresses, _numbers: numbers.clone(), made: made.clone(), used: true };
        sets.insert(slot, most(&self.applied));
        made
    }

    fn beside(&self, base: &PolicySet, numbers: &OwnNumbers) -> Result<Self, ConfigError> {
        let set = base.clone().with_own(numbers.iter().map(|(place, numbers)| (*place, **numbers)))?;
        let prepared = Arc::new(self.backend.prepare(set)?);
        let announced = Announced::new(B::set(&prepared).policies(), self.announced.options.clone());
        let mut own = Self { prepared, announced: Arc::new(announced), share: None, ..self.clone() };
        if let Some(share) = &self.share {
            own.options.local_store = Some(share.store().clone());
        }
        make_share(&mut own)?;
        Ok(own)
    }

    fn log_refused(&self, error: &ConfigError) {
        if !self.own_sets.has_refused.swap(true, Ordering::Relaxed) {
            log::warn(&format_args!(
                "a lookup returned numbers that the backend refuses: {error}. The tier of unknown identities applies. \
                 Further ones are not logged"
            ));
        }
    }
}

/// As many as there can be combinations of the numbers that each limit may have, or none.
fn most(applied: &[Applied]) -> usize {
    let of_limit = |limit: &Applied| if let Keying::Tiered(lookup) = &limit.keying { lookup.max_own() } else { 0 };
    let combinations = applied.iter().map(of_limit).fold(1_usize, |all, own| all.saturating_mul(own.saturating_add(1)));
    (combinations - 1).clamp(1, MOST_SETS)
}

#[cfg(test)]
mod tests;
