//! One key of one policy in a locked shard: finds its state or makes room for one, and stores the
//! outcome.

use std::borrow::Cow;

use super::policies::CallParameters;
use super::shard::{LockedShard, SharedStore, StateWriter};
use super::slot::Label;
use crate::algorithm::Cell;
use crate::backend::ReceiptItem;
use crate::time::Timestamp;

/// A key's state, where it came from, and where [`store`](Self::store) puts it.
pub(super) struct Entry<'a> {
    pub(super) cell: Cell<'a>,
    parameters: CallParameters<'a>,
    label: Label,
    /// The index at which the key's slot was last seen, and which parameters wrote its state.
    slot: Option<(usize, StateWriter)>,
    /// Whether room for a new slot is reserved.
    has_room: bool,
}

impl<'a> Entry<'a> {
    /// Finds the state of a key, or makes room for a new one if the request would charge it. When
    /// the store is full, the key shares the overflow bucket of its parameters. Slots of `kept`
    /// keys are not swept to make room.
    pub(super) fn locate(
        parameters: CallParameters<'a>,
        label: Label,
        (cost, now): (u64, Timestamp),
        shard: &mut LockedShard<'_>,
        kept: &[u128],
        shared: &'a SharedStore,
    ) -> Self {
        if let Some(index) = shard.find(label) {
            return Self::load(parameters, label, index, now, shard, shared);
        }
        let bucket = Label::overflow(parameters);
        // An overflow bucket is not counted, so it needs no room.
        let has_room = cost > 0 && !label.is_overflow() && shard.make_room(now, kept, shared);
        let new = |label, cell| Self {
            cell,
            parameters,
            label,
            slot: None,
            has_room,
        };
        if let Some(index) = shard.find_bucket(bucket) {
            let of_bucket = Self::load(parameters, bucket, index, now, shard, shared);
            if !has_room {
                return of_bucket;
            }
            // There is room again. The key may have used units of the shared bucket, and those stay
            // used.
            let cell = of_bucket.cell.clone();
            of_bucket.store(false, shard, shared);
            return new(label, cell.until_charged());
        }
        let cell = Cell::fresh(parameters.algorithm, shard.earliest(now)).behind(now);
        if cost > 0 && !has_room {
            new(bucket, cell)
        } else {
            new(label, cell.until_charged())
        }
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
        parameters: CallParameters<'a>,
        label: Label,
        (item, now): (&ReceiptItem, Timestamp),
        shard: &mut LockedShard<'_>,
        shared: &'a SharedStore,
    ) {
        let is_over = parameters.algorithm.is_over(now, item.taken.mark);
        let more = if is_over {
            0
        } else {
            item.actual.saturating_sub(item.taken.cost)
        };
        if more == 0 && shard.find(label).is_none() {
            return;
        }
        let mut entry = Self::locate(parameters, label, (more, now), shard, &[], shared);
        entry.cell.settle(item.taken, item.actual);
        // What other parameters count in a shared bucket stays there.
        let insert = entry.cell.is_own();
        entry.store(insert, shard, shared);
    }

    /// Moves the state out of the slot at an index.
    fn load(
        parameters: CallParameters<'a>,
        label: Label,
        index: usize,
        now: Timestamp,
        shard: &mut LockedShard<'_>,
        shared: &'a SharedStore,
    ) -> Self {
        let content = shard
            .table
            .get(index)
            .expect("a slot that was found is used");
        let numbered = content.algorithm(&shared.policies);
        let (repr, unnumbered) = shard.rest.take(&content, numbered);
        let written = StateWriter {
            writer: content.writer(),
            unnumbered,
        };
        let writer = match (numbered, &written.unnumbered) {
            (Some(_), _) if written.writer == parameters.writer => None,
            (Some(numbered), _) => Some(Cow::Borrowed(numbered)),
            (None, unnumbered) => unnumbered.clone().map(Cow::Owned),
        };
        // A key that was forgotten may share an overflow bucket.
        let at = if label.is_overflow() {
            shard.earliest(now)
        } else {
            now
        };
        Self {
            cell: Cell::new(parameters.algorithm, writer, repr, at).behind(now),
            parameters,
            label,
            slot: Some((index, written)),
            has_room: false,
        }
    }

    /// Puts the state back into the key's slot. A key without a slot gets one if `insert` is set.
    pub(super) fn store(self, insert: bool, shard: &mut LockedShard<'_>, shared: &SharedStore) {
        let (index, former) = self.slot.unzip();
        if former.is_none() && !insert {
            if self.has_room {
                shared.release(1);
            }
            return;
        }
        let before = former.as_ref().and_then(|former| former.unnumbered.clone());
        let written = match (self.cell.writer_beneath(before), former) {
            (Some(writer), _) => StateWriter::beside(writer),
            (None, Some(former)) if !self.cell.is_own() => former,
            (None, _) => StateWriter::by(self.parameters),
        };
        let repr = self.cell.into_repr();
        match index {
            None => shard.insert(self.label, repr, written),
            Some(index) => {
                if let Some(index) = shard.find_again(self.label, index) {
                    shard.put_state(index, repr, written);
                }
            }
        }
    }
}
