//! One key of one policy in a locked shard: finds its states or makes room for one, and stores the outcome.

use super::policies::InForce;
use super::shard::{LockedShard, Shared};
use super::slot::Label;
use crate::algorithm::{Carry, Cell};
use crate::backend::ReceiptItem;
use crate::policy::Policy;
use crate::time::Timestamp;

/// Where a key's state came from, and where [`store`](Self::store) puts it.
pub(super) struct Entry<'a> {
    in_force: &'a InForce,
    label: Label,
    place: Place,
}

enum Place {
    /// The key has a slot, last seen at this index, whose state is small or not.
    Slot { index: usize, small: bool },
    /// The key has no slot. Room for one may be reserved.
    New { reserved: bool },
}

impl<'a> Entry<'a> {
    /// Finds the state of a key, or makes room for a new one if the request would charge it. When the store is full,
    /// the key shares its policy's overflow bucket. Slots of `kept` labels are not swept to make room.
    pub(super) fn locate(
        in_force: &'a InForce,
        label: Label,
        (cost, now): (u64, Timestamp),
        shard: &mut LockedShard<'_>,
        kept: &[Label],
        shared: &'a Shared,
    ) -> (Self, Cell<'a>) {
        if let Some(index) = shard.find(label) {
            return Self::load(in_force, label, index, now, shard, shared);
        }
        let policy = in_force.version.policy;
        let bucket = Label::overflow(policy, in_force.tier);
        // An overflow bucket is not counted, so it needs no room.
        let reserved = cost > 0 && !label.is_overflow() && shard.make_room(now, kept, shared);
        if let Some(index) = shard.overflow_bucket(policy, in_force.tier) {
            let (bucket, mut cell) = Self::load(in_force, bucket, index, now, shard, shared);
            if !reserved {
                Self::read_other_buckets(&mut cell, in_force, now, shard, shared);
                return (bucket, cell);
            }
            // There is room again. The key may have used units of the shared buckets, and those stay used.
            let mut own = cell.clone().unshared();
            bucket.store(cell, false, shard, shared);
            Self::add_other_buckets(&mut own, in_force, now, shard, shared);
            return (Self { in_force, label, place: Place::New { reserved } }, own.until_charged());
        }
        let mut cell = Self::unbegun(in_force, now, shard);
        if reserved {
            Self::add_other_buckets(&mut cell, in_force, now, shard, shared);
        } else {
            Self::read_other_buckets(&mut cell, in_force, now, shard, shared);
        }
        let cell = cell.or_fresh();
        let (label, cell) = if cost > 0 && !reserved { (bucket, cell) } else { (label, cell.until_charged()) };
        (Self { in_force, label, place: Place::New { reserved } }, cell)
    }

    /// Adds the states of the policy's other overflow buckets to those of a key that gets a slot.
    fn add_other_buckets(
        cell: &mut Cell<'a>,
        in_force: &'a InForce,
        now: Timestamp,
        shard: &mut LockedShard<'_>,
        shared: &'a Shared,
    ) {
        Self::each_other_bucket(in_force, now, shard, shared, |bucket| cell.add_kin_of(bucket));
    }

    /// Reads the states of the policy's other overflow buckets, for parameters that begin in the bucket of own numbers.
    /// A tier's bucket was begun with the first charge of any, so it has counted all that it should.
    fn read_other_buckets(
        cell: &mut Cell<'a>,
        in_force: &'a InForce,
        now: Timestamp,
        shard: &mut LockedShard<'_>,
        shared: &'a Shared,
    ) {
        if in_force.is_own() {
            Self::each_other_bucket(in_force, now, shard, shared, |bucket| cell.read_states_of(bucket));
        }
    }

    fn each_other_bucket(
        in_force: &'a InForce,
        now: Timestamp,
        shard: &mut LockedShard<'_>,
        shared: &'a Shared,
        mut read: impl FnMut(&Cell<'a>),
    ) {
        if shard.rest.overflow_buckets() == 0 {
            return;
        }
        for (bucket, other) in Self::other_buckets(in_force, shared) {
            let label = Label::overflow(other.version.policy, bucket);
            if let Some(index) = shard.find(label) {
                let (entry, states) = Self::load(other, label, index, now, shard, shared);
                read(&states);
                entry.store(states, false, shard, shared);
            }
        }
    }

    pub(super) fn label(&self) -> Label {
        self.label
    }

    /// Whether the key shares an overflow bucket.
    pub(super) fn is_overflow(&self) -> bool {
        self.label.is_overflow()
    }

    /// Stores the cell after a decision that charged it `cost` units, or 0.
    #[inline]
    pub(super) fn finish(
        self,
        cell: Cell<'_>,
        (cost, now): (u64, Timestamp),
        shard: &mut LockedShard<'_>,
        shared: &Shared,
    ) {
        if cost > 0 && self.is_overflow() {
            self.charge_other_tiers((cost, now), shard, shared);
        }
        let insert = cost > 0 || cell.has_begun();
        self.store(cell, insert, shard, shared);
    }

    /// Settles a charge of the key. Where nothing of the charge is left, the key may owe more, which counts like a
    /// charge that is made now.
    pub(super) fn settle(
        in_force: &'a InForce,
        label: Label,
        (item, now): (&ReceiptItem, Timestamp),
        shard: &mut LockedShard<'_>,
        shared: &'a Shared,
    ) {
        let is_over = in_force.algorithm.is_over(now, item.taken.mark);
        let more = if is_over { 0 } else { item.actual.saturating_sub(item.taken.cost) };
        let (entry, mut cell) = match shard.find(label) {
            Some(index) => {
                let (entry, mut cell) = Self::load(in_force, label, index, now, shard, shared);
                if label.is_overflow() {
                    Self::read_other_buckets(&mut cell, in_force, now, shard, shared);
                }
                (entry, cell)
            }
            None if more > 0 => Self::locate(in_force, label, (more, now), shard, &[], shared),
            None => return,
        };
        // A key with a slot has all that it counts there, and its carry rule says what the settlement changes of that.
        let is_known = matches!(entry.place, Place::Slot { .. }) && !entry.is_overflow();
        if !is_known && in_force.is_own() && more > 0 && !cell.has_own() {
            // Their state begins with what the policy's other buckets count.
            cell.debit_any(more);
        } else {
            cell.settle(item.taken, item.actual);
        }
        entry.finish(cell, (if is_known { 0 } else { more }, now), shard, shared);
    }

    /// The cell of a key without a slot.
    fn fresh(in_force: &'a InForce, now: Timestamp, shard: &LockedShard<'_>) -> Cell<'a> {
        Cell::fresh(in_force.writer(), shard.earliest(now)).behind(now)
    }

    /// The cell of a key without a slot, which adds or reads what the buckets count.
    fn unbegun(in_force: &'a InForce, now: Timestamp, shard: &LockedShard<'_>) -> Cell<'a> {
        match in_force.is_own() {
            true => Cell::unbegun(in_force.writer(), shard.earliest(now)).behind(now),
            // A tier's bucket that is not there counts nothing.
            false => Self::fresh(in_force, now, shard),
        }
    }

    /// Moves the states out of the slot at an index.
    fn load(
        in_force: &'a InForce,
        label: Label,
        index: usize,
        now: Timestamp,
        shard: &mut LockedShard<'_>,
        shared: &'a Shared,
    ) -> (Self, Cell<'a>) {
        let content = shard.table.get(index).expect("a slot that was found is used");
        let (by, written) = (&in_force.algorithm, content.version());
        let is_own_writer = written == in_force.version && in_force.own.is_none();
        let writer = if is_own_writer { by } else { shared.policies.algorithm(written).unwrap_or(by) };
        // A key that was forgotten may share an overflow bucket.
        let at = if label.is_overflow() { shard.earliest(now) } else { now };
        // Units of a shared bucket stay used under every rule: a key that never changed its tier may have used them.
        let rule = in_force.carry.filter(|_| !label.is_overflow()).unwrap_or(Carry::Keep);
        let cell = Cell::of(in_force.writer(), rule, shard.take_states(content, writer, shared), at).behind(now);
        let cell = if label == Label::overflow(label.policy(), Policy::OWN) { cell.shared() } else { cell };
        (Self { in_force, label, place: Place::Slot { index, small: writer.is_small() } }, cell)
    }

    /// Puts the states back into the key's slot. A key without a slot gets one if `insert` is set.
    fn store(self, cell: Cell<'_>, insert: bool, shard: &mut LockedShard<'_>, shared: &Shared) {
        match self.place {
            Place::Slot { index, small } => {
                if let Some(index) = shard.find_again(self.label, index) {
                    shard.put_states(index, small, cell.into_states(), shared);
                }
            }
            Place::New { .. } if insert => shard.insert(self.label, cell.into_states(), shared),
            Place::New { reserved: true } => shared.release(1),
            Place::New { .. } => {}
        }
    }

    /// Charges the overflow buckets of the policy's other tiers, if it has any, as far as units remain there. So each
    /// bucket counts what all keys without a slot have used, at its own tier's pace: no key gets more than its tier
    /// admits, whatever the other keys do, and a change of tier does not evade the bucket.
    #[cold]
    fn charge_other_tiers(&self, (cost, now): (u64, Timestamp), shard: &mut LockedShard<'_>, shared: &Shared) {
        let policy = self.in_force.version.policy;
        for (bucket, in_force) in Self::other_buckets(self.in_force, shared) {
            let label = Label::overflow(policy, bucket);
            if bucket == Policy::OWN {
                // Numbers that have no state there begin with what the tiers' buckets count.
                if let Some(index) = shard.find(label) {
                    let (other, mut cell) = Entry::load(in_force, label, index, now, shard, shared);
                    cell.debit_all(cost);
                    other.store(cell, false, shard, shared);
                }
                continue;
            }
            let (other, mut cell) = Entry::locate(in_force, label, (cost, now), shard, &[], shared);
            cell.debit(cost);
            other.store(cell, true, shard, shared);
        }
    }

    /// The policy's other overflow buckets, each with the parameters to read it by: those of its tiers, and the one for
    /// parameters without a number, which any can read.
    fn other_buckets<'b>(
        in_force: &'b InForce,
        shared: &'b Shared,
    ) -> impl Iterator<Item = (u8, &'b InForce)> + use<'b> {
        let versions = shared.policies.get(in_force.version.policy);
        let tiers = versions.map_or(&[][..], |policy| policy.tiers());
        let has_own = versions.is_some_and(|policy| policy.has_own());
        let own = in_force.tier;
        let tiers = tiers.iter().map(|tier| (tier.tier, tier)).chain(has_own.then_some((Policy::OWN, in_force)));
        tiers.filter(move |(bucket, _)| *bucket != own)
    }
}
