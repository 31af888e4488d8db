//! The slots of one shard: an open-addressing table of keys and their states.

use super::key_hash::KeyHash;
use super::policies::Version;
use crate::algorithm::Words;

/// What a slot is found by: a hashed key and a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    number: u128,
    tag: u64,
}

const DIGESTED: u64 = 1 << 10;

impl Label {
    #[inline]
    pub(super) fn new(key: KeyHash, policy: u16) -> Self {
        let flag = if key.digested { DIGESTED } else { 0 };
        // Adding one keeps every tag above zero, which marks an empty slot.
        Self { number: key.number, tag: flag | (u64::from(policy) + 1) }
    }

    /// The overflow bucket, which new keys of a tier share when the store is full. Digests are random, so none is such
    /// a small number.
    pub(super) fn overflow(policy: u16, tier: u8) -> Self {
        Self::new(KeyHash { number: u128::from(tier), digested: true }, policy)
    }

    pub(super) fn is_overflow(self) -> bool {
        self.number <= u128::from(u8::MAX) && self.tag & DIGESTED != 0
    }

    pub(super) fn policy(self) -> u16 {
        (self.tag & (DIGESTED - 1)) as u16 - 1
    }
}

/// One key of one policy: 32 bytes, the state beside the key.
///
/// `instant` holds the generation of the parameters in its top 8 bits (with a flag, [`CLIPPED`], for states that tell
/// less than was used) and the state's instant in the rest. `amount` holds the label's tag in its top 11 bits and the
/// state's amount, which is below 2^53, in the rest. For a state larger than two words the amount is its place among
/// the shard's large states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    number: u128,
    instant: u64,
    amount: u64,
}

/// A flag in a slot's generation: the used units had to be cut to a smaller capacity.
pub(super) const CLIPPED: u8 = 1 << 7;

const INSTANT_BITS: u32 = 56;
const AMOUNT_BITS: u32 = 53;

impl Slot {
    const EMPTY: Self = Self { number: 0, instant: 0, amount: 0 };

    #[inline]
    pub(super) fn new(label: Label, generation: u8, words: Words) -> Self {
        let mut slot = Self { number: label.number, instant: 0, amount: label.tag << AMOUNT_BITS };
        slot.set(generation, words);
        slot
    }

    #[inline]
    pub(super) fn set(&mut self, generation: u8, words: Words) {
        let instant = words.instant.cast_unsigned() << 8 >> 8;
        self.instant = u64::from(generation) << INSTANT_BITS | instant;
        self.amount = (self.amount >> AMOUNT_BITS << AMOUNT_BITS) | words.amount;
    }

    #[inline]
    pub(super) fn words(&self) -> Words {
        Words { instant: self.instant.cast_signed() << 8 >> 8, amount: self.amount << 11 >> 11 }
    }

    /// Replaces the state; the parameters that wrote it stay.
    #[inline]
    pub(super) fn set_words(&mut self, words: Words) {
        self.set(self.generation(), words);
    }

    /// The generation, with the flag.
    #[inline]
    pub(super) fn generation(&self) -> u8 {
        (self.instant >> INSTANT_BITS) as u8
    }

    #[inline]
    pub(super) fn label(&self) -> Label {
        Label { number: self.number, tag: self.amount >> AMOUNT_BITS }
    }

    pub(super) fn version(&self) -> Version {
        Version { policy: self.label().policy(), generation: self.generation() & !CLIPPED }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.amount >> AMOUNT_BITS == 0
    }
}

/// A table with linear probing that grows by an eighth, so that at any size four fifths of it are used.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    len: usize,
}

impl Table {
    #[inline]
    pub(super) fn find(&self, label: Label) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut index = self.home(label.number);
        loop {
            let slot = self.slots.get(index)?;
            if slot.label() == label {
                return Some(index);
            }
            if slot.is_empty() {
                return None;
            }
            index = self.after(index);
        }
    }

    /// Adds a slot whose label is not there yet.
    pub(super) fn insert(&mut self, slot: Slot) -> usize {
        if (self.len + 1) * 8 > self.slots.len() * 7 {
            self.grow();
        }
        self.len += 1;
        self.place(slot)
    }

    /// Removes a slot and closes the gap, so that the table needs no tombstones.
    pub(super) fn remove(&mut self, index: usize) {
        let mut gap = index;
        let mut next = self.after(gap);
        while !self.slots[next].is_empty() {
            let home = self.home(self.slots[next].number);
            // A slot may move back into the gap unless its home lies between the gap and the slot.
            let reachable = if gap < next { home <= gap || home > next } else { home <= gap && home > next };
            if reachable {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap] = Slot::EMPTY;
        self.len -= 1;
    }

    /// The slot at an index, if the index is in the table and the slot is used.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index).filter(|slot| !slot.is_empty())
    }

    /// The slot at an index that [`find`](Self::find) returned.
    #[inline]
    pub(super) fn at(&mut self, index: usize) -> &mut Slot {
        &mut self.slots[index]
    }

    /// Slots, used or not.
    pub(super) fn width(&self) -> usize {
        self.slots.len()
    }

    fn grow(&mut self) {
        let width = self.slots.len() + (self.slots.len() / 8).max(8);
        let old = std::mem::replace(&mut self.slots, vec![Slot::EMPTY; width]);
        for slot in old.into_iter().filter(|slot| !slot.is_empty()) {
            self.place(slot);
        }
    }

    fn place(&mut self, slot: Slot) -> usize {
        let mut index = self.home(slot.number);
        while !self.slots[index].is_empty() {
            index = self.after(index);
        }
        self.slots[index] = slot;
        index
    }

    /// The low half of the number scaled to the table's width. The high half has chosen the shard.
    #[inline]
    fn home(&self, number: u128) -> usize {
        ((u128::from(number as u64) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        if index + 1 < self.slots.len() { index + 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn label(n: u64) -> Label {
        // A few homes only, so that runs are long and wrap around.
        let number = u128::from(n) << 70 | u128::from(n % 5) << 62 | u128::from(n);
        Label::new(KeyHash { number, digested: false }, 7)
    }

    /// A key, whether to insert or remove it, and the state to insert.
    fn steps() -> impl Strategy<Value = Vec<(u64, bool, i64, u64)>> {
        let state = (-(1_i64 << 54)..1 << 54, 0..1_u64 << 53);
        let step =
            (0..40_u64, any::<bool>(), state).prop_map(|(n, insert, (instant, amount))| (n, insert, instant, amount));
        proptest::collection::vec(step, 1..300)
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in steps()) {
            let (mut table, mut map) = (Table::default(), HashMap::new());
            for (n, insert, instant, amount) in steps {
                let found = table.find(label(n));
                prop_assert_eq!(found.map(|i| table.get(i).unwrap().words()), map.get(&n).copied());
                match found {
                    Some(index) if !insert => {
                        table.remove(index);
                        map.remove(&n);
                    }
                    None if insert => {
                        let words = Words { instant, amount };
                        let index = table.insert(Slot::new(label(n), 3, words));
                        prop_assert_eq!(table.get(index).unwrap().label(), label(n));
                        prop_assert_eq!(table.get(index).unwrap().generation(), 3);
                        map.insert(n, words);
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_slot_takes_32_bytes_and_the_table_is_never_less_than_two_thirds_full_when_large() {
        assert_eq!(size_of::<Slot>(), 32);
        let mut table = Table::default();
        for n in 0..10_000 {
            table.insert(Slot::new(label(n), 0, Words { instant: 0, amount: 0 }));
            assert!(n < 100 || table.width() * 2 < (n as usize + 1) * 3, "{} slots for {n}", table.width());
        }
    }
}
