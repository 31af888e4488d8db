use super::registry::{InForce, Registered};
use super::shard::{Shard, Shared};
use super::table::{CLIPPED, Label};
use crate::algorithm::{Algorithm, Carried, Carry, NEVER, Repr, Standing, Taken, settled_elsewhere};
use crate::backend::ReceiptItem;
use crate::time::Timestamp;

/// Slots looked at for each new key. One key in, up to four stale ones out: the stale never pile up.
pub(super) const SWEEP: usize = 4;
/// Slots looked at when the store is full.
pub(super) const SWEEP_WHEN_FULL: usize = 32;

/// The parameters that a policy has in one request.
#[derive(Clone, Copy)]
pub(super) struct Role<'a> {
    pub(super) registered: Registered,
    pub(super) algorithm: &'a Algorithm,
    /// How what other parameters wrote is carried over, where the policy has tiers.
    pub(super) carry: Option<Carry>,
    pub(super) tier: u8,
}

impl<'a> Role<'a> {
    /// Of a policy without tiers.
    #[inline]
    pub(super) const fn plain(registered: Registered, algorithm: &'a Algorithm) -> Self {
        Self { registered, algorithm, carry: None, tier: 0 }
    }

    pub(super) fn of(in_force: &'a InForce) -> Self {
        let InForce { registered, algorithm, carry, tier } = in_force;
        Self { registered: *registered, algorithm, carry: *carry, tier: *tier }
    }
}

/// One policy's part in one request, on a locked shard.
pub(super) struct Member<'a> {
    algorithm: &'a Algorithm,
    registered: Registered,
    carry: Option<Carry>,
    tier: u8,
    label: Label,
    cost: u64,
    now: Timestamp,
    /// The instant that counts: later than `now` where something that was forgotten may have been this key.
    at: Timestamp,
    place: Place,
}

enum Place {
    Unasked,
    /// Last seen at this index.
    Slot(usize),
    /// The same, as another tier or its former limits have left it, and the parameters that did.
    Foreign(usize, Box<Algorithm>),
    /// Not in the table: what it starts with, and whether that was clipped.
    Nowhere {
        start: Repr,
        clipped: bool,
        reserved: bool,
    },
}

impl<'a> Member<'a> {
    #[inline]
    pub(super) fn new(role: Role<'a>, label: Label, cost: u64, now: Timestamp) -> Self {
        let Role { registered, algorithm, carry, tier } = role;
        Self { algorithm, registered, carry, tier, label, cost, now, at: now, place: Place::Unasked }
    }

    pub(super) fn tier(&self) -> u8 {
        self.tier
    }

    pub(super) fn label(&self) -> Label {
        self.label
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

    /// µs until the cost is admitted. What is `kept` is not swept out to make room.
    #[inline]
    pub(super) fn ask(&mut self, shard: &mut Shard, kept: &[Label], shared: &Shared) -> u64 {
        match shard.find(self.label) {
            Some(index) => self.enter(index, shard, shared),
            None => self.look_elsewhere(shard, kept, shared),
        }
        let wait = |repr: &Repr| self.algorithm.wait(repr, self.at, self.cost);
        let wait = match &self.place {
            Place::Slot(index) => shard.read(*index, self.algorithm.is_small(), wait).unwrap_or(0),
            Place::Foreign(_, old) => self.carried(shard, old, |carried| carried.wait(self.at, self.cost)).unwrap_or(0),
            Place::Nowhere { start, .. } => wait(start),
            Place::Unasked => 0,
        };
        if wait == NEVER { NEVER } else { self.lagging(wait) }
    }

    /// Charges the cost, which [`ask`](Self::ask) admitted.
    #[inline]
    pub(super) fn take(&mut self, shard: &mut Shard, shared: &Shared) -> (u64, Taken) {
        let charged = self.charge(shard);
        if self.is_overflow() && self.carry.is_some() {
            self.charge_other_tiers(shard, shared);
        }
        charged
    }

    /// Charges the cost in the overflow buckets of the policy's other tiers too, as far as something is left there. Each
    /// bucket then counts what all keys without a place of their own have used, at its own tier's pace: no key gets more
    /// than its tier admits, whatever the other keys do, and a change of tier is no way out.
    #[cold]
    fn charge_other_tiers(&self, shard: &mut Shard, shared: &Shared) {
        let policy = self.registered.policy;
        for in_force in shared.registry.tiers(policy).filter(|in_force| in_force.tier != self.tier) {
            let label = Label::overflow(policy, in_force.tier);
            let mut other = Member::new(Role::of(&in_force), label, self.cost, self.now);
            other.ask(shard, &[], shared);
            other.lower_to_what_is_left(shard);
            if other.cost > 0 {
                other.charge(shard);
            }
            if other.cost < self.cost
                && let Some(index) = other.index(shard)
                && let Some(generation) = shard.generation(index)
            {
                shard.set_generation(index, generation | CLIPPED);
            }
        }
    }

    fn charge(&mut self, shard: &mut Shard) -> (u64, Taken) {
        if matches!(self.place, Place::Foreign(..)) {
            self.move_in(shard);
        }
        if let Some(index) = self.index(shard) {
            self.recover(index, shard);
            let take = |repr: &mut Repr| self.algorithm.take(repr, self.at, self.cost);
            if let Some((delay, taken)) = shard.change(index, self.algorithm.is_small(), take) {
                return (self.delay(delay), taken);
            }
        }
        self.add(shard)
    }

    /// Puts what is carried over in the place of what other parameters wrote.
    #[cold]
    fn move_in(&mut self, shard: &mut Shard) {
        let Place::Foreign(_, old) = &self.place else { return };
        let Some(index) = self.index(shard) else { return };
        if let Some((start, clipped)) = self.carried(shard, old, |carried| carried.start(self.at)) {
            let flag = if clipped { CLIPPED } else { 0 };
            shard.replace(index, old.is_small(), self.registered.generation | flag, start);
        }
        self.place = Place::Slot(index);
    }

    /// How what other parameters wrote is carried over. What shared a bucket stays used under every rule: a key that never
    /// changed its tier may have used it.
    fn rule(&self) -> Option<Carry> {
        self.carry.map(|rule| if self.is_overflow() { Carry::Keep } else { rule })
    }

    /// What other parameters wrote, as these see it.
    fn carried<R>(&self, shard: &Shard, old: &Algorithm, f: impl FnOnce(Carried<'_>) -> R) -> Option<R> {
        let (index, rule) = (self.index(shard)?, self.rule()?);
        let clipped = shard.generation(index)? & CLIPPED != 0;
        shard.read(index, old.is_small(), |repr| f(Carried { new: self.algorithm, old, rule, repr, clipped }))
    }

    /// Charges a key that is not in the table, and adds it.
    #[cold]
    fn add(&mut self, shard: &mut Shard) -> (u64, Taken) {
        let (mut state, clipped) = match std::mem::replace(&mut self.place, Place::Unasked) {
            Place::Nowhere { start, clipped, .. } => (start, clipped),
            // An overflow bucket, which is not counted: it was as good as unused, and another policy's new key has just
            // swept it out.
            _ => {
                self.at = shard.earliest(self.now);
                (self.algorithm.fresh_repr(), false)
            }
        };
        let flag = if self.algorithm.still_clipped(&state, clipped, self.at) { CLIPPED } else { 0 };
        let (delay, taken) = self.algorithm.take(&mut state, self.at, self.cost);
        self.place = Place::Slot(shard.insert(self.label, self.registered.generation | flag, state));
        (self.delay(delay), taken)
    }

    /// Lowers the cost to what is left, and charges that.
    pub(super) fn take_what_is_left(&mut self, shard: &mut Shard, shared: &Shared) {
        self.lower_to_what_is_left(shard);
        if self.cost > 0 {
            self.take(shard, shared);
        }
    }

    fn lower_to_what_is_left(&mut self, shard: &Shard) {
        self.cost = self.cost.min(self.standing(shard).remaining);
    }

    /// Where the key stands.
    #[inline]
    pub(super) fn standing(&self, shard: &Shard) -> Standing {
        let standing = |repr: &Repr| self.algorithm.standing(repr, self.at);
        let Standing { remaining, reset, next } = match &self.place {
            Place::Nowhere { start, .. } => standing(start),
            Place::Foreign(_, old) => {
                let carried = self.carried(shard, old, |carried| carried.standing(self.at));
                carried.unwrap_or_else(|| standing(&self.algorithm.fresh_repr()))
            }
            _ => {
                let found = self.index(shard).and_then(|index| shard.read(index, self.algorithm.is_small(), standing));
                // An overflow bucket that was as good as unused, and another policy's new key has just swept it out.
                found.unwrap_or_else(|| standing(&self.algorithm.fresh_repr()))
            }
        };
        Standing { remaining, reset: self.lagging(reset), next: self.lagging(next) }
    }

    /// Settles a charge. A key that is gone has nothing left of it, but may owe more.
    pub(super) fn settle(&mut self, shard: &mut Shard, shared: &Shared, item: &ReceiptItem) {
        if let Some(index) = shard.find(self.label) {
            self.enter(index, shard, shared);
            if matches!(self.place, Place::Foreign(..)) {
                return self.settle_elsewhere(shard, item);
            }
            let settle = |repr: &mut Repr| self.algorithm.settle(repr, self.at, item.taken, item.actual);
            shard.change(index, self.algorithm.is_small(), settle).unwrap_or_default();
            return;
        }
        let (mut state, at) = (self.algorithm.fresh_repr(), shard.earliest(self.now));
        self.algorithm.settle(&mut state, at, item.taken, item.actual);
        if self.algorithm.standing(&state, at).reset > 0 && (self.is_overflow() || shared.reserve()) {
            shard.insert(self.label, self.registered.generation, state);
        }
    }

    /// Settles a charge that has been carried over to other parameters since, where it is.
    #[cold]
    fn settle_elsewhere(&self, shard: &mut Shard, item: &ReceiptItem) {
        let (Place::Foreign(index, held), Some(rule)) = (&self.place, self.rule()) else { return };
        let used = |repr: &Repr| held.standing(repr, self.at).reset > 0;
        if shard.read(*index, held.is_small(), used) == Some(false) {
            // As good as unused, so whoever used it last means nothing. What comes to nothing leaves it as it is.
            let mut own = self.algorithm.fresh_repr();
            self.algorithm.settle(&mut own, self.at, item.taken, item.actual);
            if self.algorithm.standing(&own, self.at).reset > 0 {
                shard.replace(*index, held.is_small(), self.registered.generation, own);
            }
            return;
        }
        let by = self.algorithm;
        if let Some((taken, actual)) = settled_elsewhere(rule, by, held, self.at, item.taken, item.actual) {
            let settle = |repr: &mut Repr| held.settle(repr, self.at, taken, actual);
            shard.change(*index, held.is_small(), settle).unwrap_or_default();
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
        if self.is_overflow() {
            // Whoever shares it may be a key that was forgotten.
            self.at = shard.earliest(self.now);
        }
        if shard.generation(index).is_some_and(|generation| generation & !CLIPPED != self.registered.generation) {
            match self.carry {
                Some(_) => self.enter_foreign(index, shard, shared),
                None => self.carry_over(index, shard, shared),
            }
        }
    }

    /// Found as another tier has left it: it stays so until it is charged.
    #[cold]
    fn enter_foreign(&mut self, index: usize, shard: &Shard, shared: &Shared) {
        let (policy, Some(written)) = (self.registered.policy, shard.generation(index)) else { return };
        let old = shared.registry.algorithm(Registered { policy, generation: written & !CLIPPED });
        if let Some(old) = old.filter(|old| !old.is_alike(self.algorithm)) {
            self.place = Place::Foreign(index, Box::new(old));
        }
    }

    #[cold]
    fn carry_over(&mut self, index: usize, shard: &mut Shard, shared: &Shared) {
        let policy = self.registered.policy;
        let Some(written) = shard.generation(index) else { return };
        let Some(old) = shared.registry.algorithm(Registered { policy, generation: written & !CLIPPED }) else {
            return;
        };
        let carry = |repr: &Repr| self.algorithm.carry_repr(&old, repr, written & CLIPPED != 0, self.at);
        if let Some((carried, clipped)) = shard.read(index, old.is_small(), carry) {
            let flag = if clipped { CLIPPED } else { 0 };
            shard.replace(index, old.is_small(), self.registered.generation | flag, carried);
        }
    }

    /// A clipped state that is as good as unused tells everything again.
    #[inline]
    fn recover(&self, index: usize, shard: &mut Shard) {
        if shard.generation(index).is_some_and(|generation| generation & CLIPPED != 0) {
            let clipped = |repr: &Repr| self.algorithm.still_clipped(repr, true, self.at);
            if shard.read(index, self.algorithm.is_small(), clipped) == Some(false) {
                shard.set_generation(index, self.registered.generation);
            }
        }
    }

    /// Not found: the key is new, or was forgotten, or shares the overflow bucket.
    #[cold]
    fn look_elsewhere(&mut self, shard: &mut Shard, kept: &[Label], shared: &Shared) {
        // An overflow bucket is not counted, so it needs no room.
        let reserved = self.cost > 0 && !self.is_overflow() && self.make_room(shard, kept, shared);
        self.at = shard.earliest(self.now);
        let (own, overflow) = (self.label, Label::overflow(self.registered.policy, self.tier));
        if let Some(index) = shard.overflow(self.registered.policy, self.tier) {
            self.label = overflow;
            self.enter(index, shard, shared);
            if reserved {
                // There is room again. What the key may have used of the shared bucket stays used.
                let start = match &self.place {
                    Place::Foreign(_, old) => self.carried(shard, old, |carried| carried.start(self.at)),
                    _ => shard.read(index, self.algorithm.is_small(), |repr| {
                        (repr.clone(), shard.generation(index).is_some_and(|generation| generation & CLIPPED != 0))
                    }),
                };
                let (start, clipped) = start.unwrap_or_else(|| (self.algorithm.fresh_repr(), false));
                (self.label, self.place) = (own, Place::Nowhere { start, clipped, reserved });
            }
            return;
        }
        if !reserved && self.cost > 0 {
            self.label = overflow;
        }
        self.place = Place::Nowhere { start: self.algorithm.fresh_repr(), clipped: false, reserved };
    }

    fn make_room(&self, shard: &mut Shard, kept: &[Label], shared: &Shared) -> bool {
        shard.sweep(self.now, SWEEP, kept, shared);
        shared.reserve() || (shard.sweep(self.now, SWEEP_WHEN_FULL, kept, shared) > 0 && shared.reserve())
    }

    #[inline]
    fn index(&self, shard: &Shard) -> Option<usize> {
        match &self.place {
            Place::Slot(index) | Place::Foreign(index, _) if shard.holds(*index, self.label) => Some(*index),
            Place::Slot(_) | Place::Foreign(..) => shard.find(self.label),
            _ => None,
        }
    }

    /// µs by which the clock is behind the instant that counts.
    fn lag(&self) -> u64 {
        self.at.micros_since(self.now).unsigned_abs()
    }

    /// A wait from the instant that counts, told from now.
    fn lagging(&self, micros: u64) -> u64 {
        if micros > 0 { micros + self.lag() } else { 0 }
    }

    /// The same for a delay, of which none is a delay too while the clock is behind.
    fn delay(&self, micros: u64) -> u64 {
        if self.algorithm.delays() { micros + self.lag() } else { micros }
    }
}
