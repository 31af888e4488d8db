//! One key of one policy in a locked shard: finds its state or makes room for one, and stores the
//! outcome.

use std::borrow::Cow;

use super::policies::Parameters;
use super::shard::{LockedShard, Shared, Written};
use super::slot::Label;
use crate::algorithm::Cell;
use crate::backend::ReceiptItem;
use crate::time::Timestamp;

/// Where a key's state came from, and where [`store`](Self::store) puts it.
pub(super) struct Entry<'a> {
    parameters: &'a Parameters,
    label: Label,
    place: Place,
}

enum Place {
    /// The key has a slot, last seen at this index, with a state of these parameters.
    Slot { index: usize, written: Written },
    /// The key has no slot. Room for one may be reserved.
    New { reserved: bool },
}

impl<'a> Entry<'a> {
    /// Finds the state of a key, or makes room for a new one if the request would charge it. When
    /// the store is full, the key shares the overflow bucket of its parameters. Slots of `kept`
    /// labels are not swept to make room.
    pub(super) fn locate(
        parameters: &'a Parameters,
        label: Label,
        (cost, now): (u64, Timestamp),
        shard: &mut LockedShard<'_>,
        kept: &[Label],
        shared: &'a Shared,
    ) -> (Self, Cell<'a>) {
        if let Some(index) = shard.find(label) {
            return Self::load(parameters, label, index, now, shard, shared);
        }
        let bucket = Label::overflow(parameters);
        // An overflow bucket is not counted, so it needs no room.
        let reserved = cost > 0 && !label.is_overflow() && shard.make_room(now, kept, shared);
        let place = Place::New { reserved };
        if let Some(index) = shard.find_bucket(bucket) {
            let (entry, cell) = Self::load(parameters, bucket, index, now, shard, shared);
            if !reserved {
                return (entry, cell);
            }
            // There is room again. The key may have used units of the shared bucket, and those stay
            // used.
            entry.store(cell.clone(), false, shard, shared);
            return (
                Self {
                    parameters,
                    label,
                    place,
                },
                cell.until_charged(),
            );
        }
        let cell = Cell::fresh(&parameters.algorithm, shard.earliest(now)).behind(now);
        let (label, cell) = if cost > 0 && !reserved {
            (bucket, cell)
        } else {
            (label, cell.until_charged())
        };
        (
            Self {
                parameters,
                label,
                place,
            },
            cell,
        )
    }

    pub(super) fn label(&self) -> Label {
        self.label
    }

    /// Whether the key shares an overflow bucket.
    pub(super) fn is_overflow(&self) -> bool {
        self.label.is_overflow()
    }

    /// Settles a charge of the key. Where nothing of the charge is left, the key may owe more,
    /// which counts like a charge that is made now.
    pub(super) fn settle(
        parameters: &'a Parameters,
        label: Label,
        (item, now): (&ReceiptItem, Timestamp),
        shard: &mut LockedShard<'_>,
        shared: &'a Shared,
    ) {
        let is_over = parameters.algorithm.is_over(now, item.taken.mark);
        let more = if is_over {
            0
        } else {
            item.actual.saturating_sub(item.taken.cost)
        };
        let (entry, mut cell) = match shard.find(label) {
            Some(index) => Self::load(parameters, label, index, now, shard, shared),
            None if more > 0 => Self::locate(parameters, label, (more, now), shard, &[], shared),
            None => return,
        };
        cell.settle(item.taken, item.actual);
        // What other parameters count in a shared bucket stays there.
        let insert = cell.is_own();
        entry.store(cell, insert, shard, shared);
    }

    /// Moves the state out of the slot at an index.
    fn load(
        parameters: &'a Parameters,
        label: Label,
        index: usize,
        now: Timestamp,
        shard: &mut LockedShard<'_>,
        shared: &'a Shared,
    ) -> (Self, Cell<'a>) {
        let content = shard
            .table
            .get(index)
            .expect("a slot that was found is used");
        let (repr, written) = shard.take_state(&content, &shared.policies);
        let numbered = || content.algorithm(&shared.policies).map(Cow::Borrowed);
        let writer = written.unnumbered.clone().map(Cow::Owned).or_else(numbered);
        // A key that was forgotten may share an overflow bucket.
        let at = if label.is_overflow() {
            shard.earliest(now)
        } else {
            now
        };
        let cell = Cell::new(&parameters.algorithm, writer, repr, at).behind(now);
        (
            Self {
                parameters,
                label,
                place: Place::Slot { index, written },
            },
            cell,
        )
    }

    /// Puts the state back into the key's slot. A key without a slot gets one if `insert` is set.
    pub(super) fn store(
        self,
        cell: Cell<'_>,
        insert: bool,
        shard: &mut LockedShard<'_>,
        shared: &Shared,
    ) {
        let Self {
            parameters,
            label,
            place,
        } = self;
        let written_by = |former: Option<Written>| {
            let before = former.as_ref().and_then(|former| former.unnumbered.clone());
            match (cell.writer_beneath(before), former) {
                (Some(writer), _) => Written::beside(writer),
                (None, Some(former)) if !cell.is_own() => former,
                (None, _) => Written::by(parameters),
            }
        };
        match place {
            Place::Slot { index, written } => {
                let written = written_by(Some(written));
                if let Some(index) = shard.find_again(label, index) {
                    shard.put_state(index, cell.into_repr(), written);
                }
            }
            Place::New { .. } if insert => {
                let written = written_by(None);
                shard.insert(label, cell.into_repr(), written);
            }
            Place::New { reserved: true } => shared.release(1),
            Place::New { .. } => {}
        }
    }
}
