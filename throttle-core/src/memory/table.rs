//! The slots of one shard: an open-addressing table of keys and their states, which may be read
//! while it changes.

use std::ops::Deref;
use std::sync::atomic::Ordering;

use super::segments::{SEGMENT, Segments};
use super::slot::{Content, Label, Occupant, Slot};
use super::sync::AtomicUsize;
use super::version::{Change, SeenVersion, Version};
use crate::algorithm::Words;

/// A table with linear probing whose keys stand in the order of their hashes (Amble and Knuth,
/// "Ordered hash tables", 1974): a search for a key that is not there ends where the key would
/// stand, and not at the end of the run. Keys that do not fit before the last home stand behind it,
/// so the order has no seam.
///
/// When seven eighths are used, stale keys are forgotten, and it grows if they were few: by an
/// eighth, or a sixteenth if it is wide, in whole segments.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    version: Version,
    /// Homes: slots in which the search for a key may begin.
    width: AtomicUsize,
    segments: Segments,
    /// Slots in use.
    len: AtomicUsize,
    /// No slot at this index or behind it is in use.
    end: AtomicUsize,
}

/// A table of as many slots grows by smaller parts, so that more of it is used.
const WIDE: usize = 1_024;

/// A key that was found without a lock, and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownKey<'a> {
    table: &'a Table,
    slot: &'a Slot,
    /// The version at which it was read; `None` if this thread keeps others from changing the
    /// table.
    seen: Option<SeenVersion>,
    /// The number of the parameters that wrote it.
    pub(super) writer: u8,
    pub(super) words: Words,
}

/// Why a key was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// There is no such key.
    Missing,
    /// Other threads change the table, or dispute it.
    Disturbed,
}

impl Table {
    /// A table for usually as many keys.
    pub(super) fn new(usual: usize) -> Self {
        // A third more: keys spread unevenly, and some slots stay free.
        let segments = Segments::new((usual / 3).saturating_mul(4));
        let [width, len, end] = [0; 3].map(AtomicUsize::new);
        Self {
            version: Version::default(),
            width,
            segments,
            len,
            end,
        }
    }

    /// Reads the state of a key.
    #[inline(always)]
    pub(super) fn read(&self, label: Label) -> Result<KnownKey<'_>, Unread> {
        let seen = self.version.seen().ok_or(Unread::Disturbed)?;
        let known = self.read_slot(label, Some(seen));
        if !self.version.is_still(seen) {
            return Err(Unread::Disturbed);
        }
        known.ok_or(Unread::Missing)
    }

    #[inline(always)]
    fn read_slot(&self, label: Label, seen: Option<SeenVersion>) -> Option<KnownKey<'_>> {
        let slot = self.find_held(label)?;
        let (writer, words) = slot.state();
        Some(KnownKey {
            table: self,
            slot,
            seen,
            writer,
            words,
        })
    }

    /// Waits for the changes of other threads, and keeps them from making any.
    #[inline]
    pub(super) fn change(&self) -> ChangingTable<'_> {
        ChangingTable {
            change: self.version.wait_to_begin(),
            table: self,
        }
    }

    /// Keeps other threads from making changes, unless one is making some.
    pub(super) fn try_change(&self) -> Option<ChangingTable<'_>> {
        Some(ChangingTable {
            change: self.version.try_to_begin()?,
            table: self,
        })
    }

    /// Finds a key in a table that this thread keeps others from changing.
    #[inline(always)]
    pub(super) fn find_held(&self, label: Label) -> Option<&Slot> {
        self.find_slot(label).map(|(_, slot)| slot)
    }

    #[inline]
    pub(super) fn find(&self, label: Label) -> Option<usize> {
        self.find_slot(label).map(|(index, _)| index)
    }

    #[inline(always)]
    fn find_slot(&self, label: Label) -> Option<(usize, &Slot)> {
        let mut index = label.home(self.width());
        // While the table changes, a reader may miss the end of a run. It stops behind the last
        // segment then.
        loop {
            let slot = self.segments.get(index)?;
            match slot.occupant(label) {
                Occupant::Same => return Some((index, slot)),
                Occupant::Before => index += 1,
                Occupant::BehindOrNone => return None,
            }
        }
    }

    /// What the slot at an index holds, if it is used.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<Content> {
        Some(self.segments.get(index)?.content()).filter(|content| !content.is_empty())
    }

    /// What the slot at an index holds, if it is used, while other threads change states.
    pub(super) fn get_now(&self, index: usize) -> Option<Content> {
        let read = |seen| Some(self.get(index)).filter(|_| self.version.is_still(seen));
        self.version
            .seen()
            .and_then(read)
            .unwrap_or_else(|| self.change().get(index))
    }

    #[cfg(test)]
    pub(super) fn seen(&self) -> Option<SeenVersion> {
        self.version.seen()
    }

    /// Homes, used or not.
    #[inline]
    pub(super) fn width(&self) -> usize {
        self.width.load(Ordering::Relaxed)
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The index behind the last slot that may be in use.
    pub(super) fn end(&self) -> usize {
        self.end.load(Ordering::Relaxed)
    }
}

impl KnownKey<'_> {
    /// Replaces the state, and the number of the parameters that wrote it. Returns `false`, and
    /// does nothing, if the table was changed since it was read.
    #[inline(always)]
    pub(super) fn replace(&self, writer: u8, words: Words) -> bool {
        let change = self.seen.map(|seen| self.table.version.begin(seen));
        let is_begun = !matches!(change, Some(None));
        if is_begun {
            self.slot.set(writer, words);
        }
        is_begun
    }
}

/// A table that no other thread changes.
#[derive(Debug)]
pub(super) struct ChangingTable<'a> {
    table: &'a Table,
    change: Change<'a>,
}

impl Deref for ChangingTable<'_> {
    type Target = Table;

    fn deref(&self) -> &Table {
        self.table
    }
}

impl<'a> ChangingTable<'a> {
    /// Makes other threads begin their changes before they read, for some decisions.
    pub(super) fn begin_dispute(&mut self) {
        self.change.begin_dispute();
    }

    /// Reads the state of a key. It may be replaced as long as this table is held.
    pub(super) fn read_locked(&self, label: Label) -> Option<KnownKey<'a>> {
        self.table.read_slot(label, None)
    }

    /// Whether there is no room for one more key.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        (self.len() + 1) * 8 > self.width() * 7
    }

    /// Adds a label that is not there yet.
    #[inline]
    pub(super) fn insert(&mut self, content: Content) {
        if self.is_full() {
            self.rebuild(|_| true);
        }
        self.len.store(self.len() + 1, Ordering::Relaxed);
        self.shift_in(content);
    }

    /// Removes a slot and closes the gap, so that the table needs no tombstones.
    pub(super) fn remove(&mut self, index: usize) {
        let (width, mut slots) = (self.width(), self.table.segments.walk());
        let mut gap = index;
        loop {
            let next = slots.slot(gap + 1).content();
            // What is not at its home may move towards it.
            if next.is_empty() || next.label().home(width) > gap {
                break;
            }
            slots.slot(gap).put(next);
            gap += 1;
        }
        slots.slot(gap).put(Content::EMPTY);
        self.len.store(self.len() - 1, Ordering::Relaxed);
    }

    /// Replaces the state of a used slot, and the number of the parameters that wrote it.
    pub(super) fn set(&mut self, index: usize, writer: u8, words: Words) {
        self.table.segments.walk().slot(index).set(writer, words);
    }

    /// Puts all keys in place again but those that are not to be kept, in a wider table if with one
    /// more key over half of it is used.
    pub(super) fn rebuild(&mut self, mut keep: impl FnMut(&Content) -> bool) {
        let mut kept = Vec::with_capacity(self.len());
        let (segments, mut slots) = (&self.table.segments, self.table.segments.walk());
        for slots in segments.first(self.end()) {
            kept.extend(
                slots
                    .iter()
                    .filter_map(Slot::take)
                    .filter(|content| keep(content)),
            );
        }
        if (kept.len() + 1) * 2 > self.width() {
            self.widen();
        }
        // They stand in their order already.
        let (width, mut next) = (self.width(), 0);
        for content in &kept {
            let index = content.label().home(width).max(next);
            slots.slot(index).put(*content);
            next = index + 1;
        }
        self.len.store(kept.len(), Ordering::Relaxed);
        self.end.store(next, Ordering::Relaxed);
    }

    fn widen(&mut self) {
        let before = self.width();
        let part = if before < WIDE {
            before / 8
        } else {
            before / 16
        };
        let width = before + (part / SEGMENT).max(1) * SEGMENT;
        self.segments.extend(before, width);
        self.width.store(width, Ordering::Relaxed);
    }

    /// Puts a label where it belongs, and moves those behind it in its run by one.
    fn shift_in(&self, mut content: Content) {
        let (label, mut slots) = (content.label(), self.table.segments.walk());
        let mut index = label.home(self.width());
        while slots.slot(index).occupant(label) == Occupant::Before {
            index += 1;
        }
        while !content.is_empty() {
            let slot = slots.slot(index);
            let next = slot.content();
            slot.put(content);
            (content, index) = (next, index + 1);
        }
        self.end.store(self.end().max(index), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::key_hash::KeyHash;

    fn label(n: u64) -> Label {
        // A few homes only, so that runs are long and reach behind the last one.
        let number = u128::from(n) << 70 | u128::from(n % 5) << 62 | u128::from(n);
        Label::new(
            KeyHash {
                number,
                digested: false,
            },
            7,
        )
    }

    /// A key, whether to insert or remove it, and the state to insert.
    fn steps() -> impl Strategy<Value = Vec<(u64, bool, i64, u64)>> {
        let state = (-(1_i64 << 54)..1 << 54, 0..1_u64 << 53);
        let step = (0..40_u64, any::<bool>(), state)
            .prop_map(|(n, insert, (instant, amount))| (n, insert, instant, amount));
        proptest::collection::vec(step, 1..300)
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in steps()) {
            let (table, mut map) = (Table::new(4), HashMap::new());
            for (n, insert, instant, amount) in steps {
                let mut table = table.change();
                let found = table.find(label(n));
                prop_assert_eq!(found.map(|i| table.get(i).unwrap().words()), map.get(&n).copied());
                match found {
                    Some(index) if !insert => {
                        table.remove(index);
                        map.remove(&n);
                    }
                    None if insert => {
                        let words = Words { instant, amount };
                        table.insert(Content::new(label(n), 3, words));
                        let index = table.find(label(n)).unwrap();
                        prop_assert_eq!(table.get(index).unwrap().label(), label(n));
                        prop_assert_eq!(table.get(index).unwrap().writer(), 3);
                        map.insert(n, words);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_large_table_is_never_less_than_two_thirds_full() {
        let table = Table::new(1_000);
        for n in 0..10_000 {
            table.change().insert(Content::new(
                label(n),
                0,
                Words {
                    instant: 0,
                    amount: 0,
                },
            ));
            assert!(
                n < 500 || table.width() * 2 < (n as usize + 1) * 3,
                "{} slots for {n}",
                table.width()
            );
        }
    }
}
