use std::sync::atomic::Ordering;

use super::registry::Registered;
use super::shard::{Shard, Shared};
use super::table::Label;
use crate::algorithm::{Algorithm, Repr, Standing, Taken};
use crate::charge::ChargeItem;
use crate::decision::NEVER;
use crate::time::Timestamp;

/// Slots looked at for each new key. One key in, up to four stale ones out: the stale never pile up.
const SWEEP: usize = 4;
/// Slots looked at when the store is full.
const SWEEP_WHEN_FULL: usize = 32;

/// One policy's part in one request, on a locked shard.
pub(super) struct Member<'a> {
    algorithm: &'a Algorithm,
    registered: Registered,
    label: Label,
    cost: u64,
    now: Timestamp,
    place: Place,
}

enum Place {
    Unasked,
    /// Last seen at this index.
    Slot(usize),
    /// Not in the table: what it starts with, and the instant that counts for it.
    Nowhere {
        start: Repr,
        at: Timestamp,
        reserved: bool,
    },
}

impl<'a> Member<'a> {
    #[inline]
    pub(super) fn new(
        algorithm: &'a Algorithm,
        registered: Registered,
        label: Label,
        cost: u64,
        now: Timestamp,
    ) -> Self {
        Self { algorithm, registered, label, cost, now, place: Place::Unasked }
    }

    /// Whether the key shares the overflow bucket.
    #[inline]
    pub(super) fn is_overflow(&self) -> bool {
        self.label.is_overflow()
    }

    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// µs until the cost is admitted.
    #[inline]
    pub(super) fn ask(&mut self, shard: &mut Shard, shared: &Shared) -> u64 {
        match shard.find(self.label) {
            Some(index) => self.enter(index, shard, shared),
            None => self.look_elsewhere(shard, shared),
        }
        match &self.place {
            Place::Slot(index) => {
                let wait = |repr: &Repr| self.algorithm.wait(repr, self.now, self.cost);
                shard.read(*index, self.algorithm.is_small(), wait).unwrap_or(0)
            }
            Place::Nowhere { start, at, .. } => match self.algorithm.wait(start, *at, self.cost) {
                wait @ (0 | NEVER) => wait,
                wait => wait + self.lag(*at),
            },
            Place::Unasked => 0,
        }
    }

    /// Charges the cost, which [`ask`](Self::ask) admitted.
    #[inline]
    pub(super) fn take(&mut self, shard: &mut Shard, shared: &Shared) -> (u64, Taken) {
        if let Some(index) = self.index(shard) {
            let take = |repr: &mut Repr| self.algorithm.take(repr, self.now, self.cost);
            if let Some(charged) = shard.change(index, self.algorithm.is_small(), take) {
                return charged;
            }
        }
        self.add(shard, shared)
    }

    /// Charges a key that is not in the table, and adds it.
    #[cold]
    fn add(&mut self, shard: &mut Shard, shared: &Shared) -> (u64, Taken) {
        let (mut state, at) = match std::mem::replace(&mut self.place, Place::Unasked) {
            Place::Nowhere { start, at, .. } => (start, at),
            // It was as good as unused, and another policy's new key has just swept it out. Its place is still counted
            // for: the sweep gave it back.
            _ => {
                shared.keys.0.fetch_add(usize::from(!self.is_overflow()), Ordering::Relaxed);
                (self.algorithm.fresh_repr(), shard.earliest(self.now))
            }
        };
        let (delay, taken) = self.algorithm.take(&mut state, at, self.cost);
        let lag = if self.algorithm.delays() { self.lag(at) } else { 0 };
        self.place = Place::Slot(shard.insert(self.label, self.registered.generation, state));
        (delay + lag, taken)
    }

    /// Where the key stands.
    #[inline]
    pub(super) fn standing(&self, shard: &Shard) -> Standing {
        if let Place::Nowhere { start, at, .. } = &self.place {
            let Standing { remaining, reset, next } = self.algorithm.standing(start, *at);
            let lagging = |micros| if micros > 0 { micros + self.lag(*at) } else { 0 };
            return Standing { remaining, reset: lagging(reset), next: lagging(next) };
        }
        let standing = |repr: &Repr| self.algorithm.standing(repr, self.now);
        let fresh = Standing { remaining: self.algorithm.capacity(), reset: 0, next: 0 };
        let index = self.index(shard);
        index.and_then(|index| shard.read(index, self.algorithm.is_small(), standing)).unwrap_or(fresh)
    }

    /// Settles a charge. A key that is gone has nothing left of it, but may owe more.
    pub(super) fn settle(&mut self, shard: &mut Shard, shared: &Shared, item: &ChargeItem) {
        if let Some(index) = shard.find(self.label) {
            self.enter(index, shard, shared);
            let settle = |repr: &mut Repr| self.algorithm.settle(repr, self.now, item.taken, item.actual);
            shard.change(index, self.algorithm.is_small(), settle).unwrap_or_default();
            return;
        }
        let (mut state, at) = (self.algorithm.fresh_repr(), shard.earliest(self.now));
        self.algorithm.settle(&mut state, at, item.taken, item.actual);
        if self.algorithm.repr_fresh_at(&state) > at && (self.is_overflow() || shared.reserve()) {
            shard.insert(self.label, self.registered.generation, state);
        }
    }

    /// Gives back what was reserved and not used.
    #[inline]
    pub(super) fn finish(&self, shared: &Shared) {
        if let Place::Nowhere { reserved: true, .. } = self.place {
            shared.release();
        }
    }

    /// Found at `index`. If other parameters wrote it, what was used under them stays used.
    #[inline]
    fn enter(&mut self, index: usize, shard: &mut Shard, shared: &Shared) {
        self.place = Place::Slot(index);
        if shard.generation(index) != Some(self.registered.generation) {
            self.carry_over(index, shard, shared);
        }
    }

    #[cold]
    fn carry_over(&mut self, index: usize, shard: &mut Shard, shared: &Shared) {
        let policy = self.registered.policy;
        let old =
            shard.generation(index).and_then(|generation| shared.registry.algorithm(Registered { policy, generation }));
        let Some(old) = old else { return };
        let carried = shard.read(index, old.is_small(), |repr| self.algorithm.carry_repr(&old, repr, self.now));
        if let Some(carried) = carried {
            shard.replace(index, old.is_small(), self.registered.generation, carried);
        }
    }

    /// Not found: the key is new, or was forgotten, or shares the overflow bucket.
    #[cold]
    fn look_elsewhere(&mut self, shard: &mut Shard, shared: &Shared) {
        let reserved = self.cost > 0 && self.make_room(shard, shared);
        if let Some(index) = shard.overflow(self.registered.policy) {
            let own = self.label;
            self.label = Label::overflow(self.registered.policy);
            self.enter(index, shard, shared);
            if !reserved {
                return;
            }
            // There is room again. What the key may have used of the shared bucket stays used.
            let start = shard
                .read(index, self.algorithm.is_small(), Repr::clone)
                .unwrap_or_else(|| self.algorithm.fresh_repr());
            self.label = own;
            self.place = Place::Nowhere { start, at: shard.earliest(self.now), reserved };
            return;
        }
        if !reserved && self.cost > 0 {
            self.label = Label::overflow(self.registered.policy);
        }
        self.place = Place::Nowhere { start: self.algorithm.fresh_repr(), at: shard.earliest(self.now), reserved };
    }

    fn make_room(&self, shard: &mut Shard, shared: &Shared) -> bool {
        shard.sweep(self.now, SWEEP, shared);
        shared.reserve() || (shard.sweep(self.now, SWEEP_WHEN_FULL, shared) > 0 && shared.reserve())
    }

    #[inline]
    fn index(&self, shard: &Shard) -> Option<usize> {
        match self.place {
            Place::Slot(index) if shard.holds(index, self.label) => Some(index),
            Place::Slot(_) => shard.find(self.label),
            _ => None,
        }
    }

    /// µs by which the clock is behind the instant that counts.
    fn lag(&self, at: Timestamp) -> u64 {
        at.micros_since(self.now).max(0).unsigned_abs()
    }
}
