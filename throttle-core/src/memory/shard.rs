//! A part of the store behind one lock.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::policies::Policies;
use super::table::{Label, Slot, Table};
use crate::algorithm::{Repr, Words};
use crate::time::Timestamp;

/// The keys and states of one shard.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) table: Table,
    /// States larger than two words, and which of their places are free.
    large: Option<Box<LargeStates>>,
    /// Where the sweep continues.
    pub(super) cursor: usize,
    /// The latest instant at which a forgotten state had become fresh. For a clock before it, a key without a slot may
    /// have been forgotten rather than never used.
    pub(super) horizon: Timestamp,
    overflow_buckets: u32,
}

#[derive(Debug, Default)]
struct LargeStates {
    states: Vec<Repr>,
    free: Vec<u32>,
}

/// What all shards of a store share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) policies: Policies,
    /// Keys in all shards, overflow buckets not counted.
    pub(super) keys: OwnCacheLine<AtomicUsize>,
    pub(super) max_keys: usize,
}

/// A value on cache lines of its own, so that writing it does not slow down threads that read its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct OwnCacheLine<T>(pub(super) T);

impl Shared {
    /// Reserves room for one key; `false` if the store is full.
    pub(super) fn reserve(&self) -> bool {
        let reserved = self.keys.0.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !reserved {
            self.release();
        }
        reserved
    }

    pub(super) fn release(&self) {
        self.keys.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self { table: Table::default(), large: None, cursor: 0, horizon: Timestamp::MIN, overflow_buckets: 0 }
    }
}

impl Shard {
    #[inline]
    pub(super) fn find(&self, label: Label) -> Option<usize> {
        self.table.find(label)
    }

    /// Finds a key whose state the same parameters wrote.
    #[inline]
    pub(super) fn find_known(&mut self, label: Label, generation: u8) -> Option<usize> {
        let index = self.table.find(label)?;
        (self.table.at(index).generation() == generation).then_some(index)
    }

    /// Finds a key again that was at `index`; sweeping and growing move slots.
    pub(super) fn find_again(&self, label: Label, index: usize) -> Option<usize> {
        let unmoved = self.table.get(index).is_some_and(|slot| slot.label() == label);
        if unmoved { Some(index) } else { self.find(label) }
    }

    /// The large state that a slot's words refer to.
    #[inline]
    pub(super) fn large_state(&mut self, words: Words) -> Option<&mut Repr> {
        self.large.as_mut()?.states.get_mut(words.amount as usize)
    }

    /// Moves the state out of a used slot that an algorithm with small or large states wrote.
    /// [`put_state`](Self::put_state) moves one in again.
    pub(super) fn take_state(&mut self, index: usize, small: bool) -> Repr {
        let words = self.table.at(index).words();
        if small {
            return Repr::Words(words);
        }
        self.large_state(words).map_or(Repr::EMPTY, |state| std::mem::replace(state, Repr::EMPTY))
    }

    /// Puts a state into a used slot, in the place of one that was small or large.
    pub(super) fn put_state(&mut self, index: usize, was_small: bool, generation: u8, repr: Repr) {
        self.free_large(index, was_small);
        let words = self.words_of(repr);
        self.table.at(index).set(generation, words);
    }

    pub(super) fn insert(&mut self, label: Label, generation: u8, repr: Repr) {
        if label.is_overflow() {
            self.overflow_buckets += 1;
        }
        let words = self.words_of(repr);
        self.table.insert(Slot::new(label, generation, words));
    }

    pub(super) fn remove(&mut self, index: usize, small: bool, shared: &Shared) {
        let Some(label) = self.table.get(index).map(Slot::label) else { return };
        self.free_large(index, small);
        self.table.remove(index);
        if label.is_overflow() {
            self.overflow_buckets -= 1;
        } else {
            shared.release();
        }
    }

    /// The overflow bucket of a policy's tier, if there is one.
    pub(super) fn overflow_bucket(&self, policy: u16, tier: u8) -> Option<usize> {
        if self.overflow_buckets == 0 { None } else { self.find(Label::overflow(policy, tier)) }
    }

    /// The instant that counts for a key without a slot.
    #[inline]
    pub(super) fn earliest(&self, now: Timestamp) -> Timestamp {
        now.max(self.horizon)
    }

    /// Forgets one key, whatever its state.
    pub(super) fn forget(&mut self, label: Label, shared: &Shared) {
        if let Some(index) = self.find(label) {
            self.remove_any(index, shared);
        }
    }

    /// Forgets every key of the policies that `of` selects.
    pub(super) fn clear(&mut self, shared: &Shared, of: impl Fn(u16) -> bool) {
        let mut index = 0;
        while index < self.table.width() {
            // Closing the gap may move another slot here, so the index stays after a removal.
            match self.table.get(index).map(Slot::version) {
                Some(version) if of(version.policy) => self.remove_any(index, shared),
                _ => index += 1,
            }
        }
    }

    fn remove_any(&mut self, index: usize, shared: &Shared) {
        let algorithm = self.table.get(index).and_then(|slot| shared.policies.algorithm(slot.version()));
        self.remove(index, algorithm.is_none_or(|algorithm| algorithm.is_small()), shared);
    }

    /// A state as the two words of a slot.
    fn words_of(&mut self, repr: Repr) -> Words {
        if let Repr::Words(words) = repr {
            return words;
        }
        let large = self.large.get_or_insert_default();
        let place = match large.free.pop() {
            Some(place) => {
                large.states[place as usize] = repr;
                place
            }
            None => {
                large.states.push(repr);
                (large.states.len() - 1) as u32
            }
        };
        Words { instant: 0, amount: u64::from(place) }
    }

    /// Frees the place of a slot's large state.
    fn free_large(&mut self, index: usize, small: bool) {
        if small {
            return;
        }
        if let (Some(slot), Some(large)) = (self.table.get(index), &mut self.large) {
            let place = slot.words().amount as u32;
            large.states[place as usize] = Repr::EMPTY;
            large.free.push(place);
        }
    }
}
