use std::sync::atomic::{AtomicUsize, Ordering};

use super::registry::Registry;
use super::table::{Label, Slot, Table};
use crate::algorithm::{Repr, Stored, Words};
use crate::time::Timestamp;

/// A part of the store behind one lock.
#[derive(Debug)]
pub(super) struct Shard {
    table: Table,
    /// States larger than two words, and which places are free.
    side: Option<Box<Side>>,
    /// Where the sweep goes on.
    cursor: usize,
    /// The latest instant at which a forgotten state had become fresh. For a clock before it, a key that is not here may
    /// have been forgotten rather than never used.
    horizon: Timestamp,
    overflowing: u32,
}

#[derive(Debug, Default)]
struct Side {
    states: Vec<Repr>,
    free: Vec<u32>,
}

/// What the whole store shares.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) registry: Registry,
    /// Keys in all shards, overflow buckets not counted.
    pub(super) keys: Apart<AtomicUsize>,
    pub(super) max_keys: usize,
}

/// On cache lines of its own: whoever writes it would otherwise take from every other thread what stands beside it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Apart<T>(pub(super) T);

impl Shared {
    /// Takes the right to add one key.
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
        Self { table: Table::default(), side: None, cursor: 0, horizon: Timestamp::MIN, overflowing: 0 }
    }
}

impl Shard {
    #[inline]
    pub(super) fn find(&self, label: Label) -> Option<usize> {
        self.table.find(label)
    }

    /// Whether `index` still holds `label`; sweeping and growing move slots.
    #[inline]
    pub(super) fn holds(&self, index: usize, label: Label) -> bool {
        self.table.get(index).is_some_and(|slot| slot.label() == label)
    }

    #[inline]
    pub(super) fn generation(&self, index: usize) -> Option<u8> {
        self.table.get(index).map(Slot::generation)
    }

    /// The state in a used slot that an algorithm with small or large states wrote.
    #[inline]
    pub(super) fn read<R>(&self, index: usize, small: bool, f: impl FnOnce(&Repr) -> R) -> Option<R> {
        let words = self.table.get(index)?.words();
        if small { Some(f(&Repr::Words(words))) } else { self.side.as_ref()?.states.get(words.amount as usize).map(f) }
    }

    #[inline]
    pub(super) fn change<R>(&mut self, index: usize, small: bool, f: impl FnOnce(&mut Repr) -> R) -> Option<R> {
        let slot = self.table.get_mut(index)?;
        let generation = slot.generation();
        let words = slot.words();
        if !small {
            return self.side.as_mut()?.states.get_mut(words.amount as usize).map(f);
        }
        let mut repr = Repr::Words(words);
        let result = f(&mut repr);
        if let Repr::Words(words) = repr {
            slot.set(generation, words);
        }
        Some(result)
    }

    /// Changes the state of a key, if it is here and the same parameters wrote it.
    #[inline]
    pub(super) fn change_known<S: Stored, R>(
        &mut self,
        label: Label,
        generation: u8,
        f: impl FnOnce(&mut S) -> R,
    ) -> Option<R> {
        let index = self.find_known(label, generation)?;
        self.change_at(index, f)
    }

    /// Where a key is, if the same parameters wrote it.
    #[inline]
    pub(super) fn find_known(&self, label: Label, generation: u8) -> Option<usize> {
        self.table.find(label).filter(|index| self.generation(*index) == Some(generation))
    }

    /// Runs `f` on the state in a used slot.
    #[inline]
    pub(super) fn read_at<S: Stored, R>(&self, index: usize, f: impl FnOnce(&S) -> R) -> Option<R> {
        let words = self.table.get(index)?.words();
        match S::from_words(words) {
            Some(state) => Some(f(&state)),
            None => S::read(self.side.as_ref()?.states.get(words.amount as usize)?, f),
        }
    }

    /// Runs `f` on the state in a used slot, and puts back what it leaves.
    #[inline]
    pub(super) fn change_at<S: Stored, R>(&mut self, index: usize, f: impl FnOnce(&mut S) -> R) -> Option<R> {
        let slot = self.table.get_mut(index)?;
        let words = slot.words();
        let Some(mut state) = S::from_words(words) else {
            return S::change(self.side.as_mut()?.states.get_mut(words.amount as usize)?, f);
        };
        let result = f(&mut state);
        slot.set(slot.generation(), state.words().unwrap_or(words));
        Some(result)
    }

    pub(super) fn set_generation(&mut self, index: usize, generation: u8) {
        if let Some(slot) = self.table.get_mut(index) {
            slot.set(generation, slot.words());
        }
    }

    pub(super) fn insert(&mut self, label: Label, generation: u8, repr: Repr) -> usize {
        if label.is_overflow() {
            self.overflowing += 1;
        }
        let words = self.stow(repr);
        self.table.insert(Slot::new(label, generation, words))
    }

    /// Puts a state of another generation in the place of the one there.
    pub(super) fn replace(&mut self, index: usize, was_small: bool, generation: u8, repr: Repr) {
        self.unstow(index, was_small);
        let words = self.stow(repr);
        if let Some(slot) = self.table.get_mut(index) {
            slot.set(generation, words);
        }
    }

    pub(super) fn remove(&mut self, index: usize, small: bool, shared: &Shared) {
        let Some(label) = self.table.get(index).map(Slot::label) else { return };
        self.unstow(index, small);
        self.table.remove(index);
        if label.is_overflow() {
            self.overflowing -= 1;
        } else {
            shared.release();
        }
    }

    /// The overflow bucket of a policy's tier, if there is one.
    #[inline]
    pub(super) fn overflow(&self, policy: u16, tier: u8) -> Option<usize> {
        if self.overflowing == 0 { None } else { self.find(Label::overflow(policy, tier)) }
    }

    /// Where the sweep goes on, and of how many slots.
    #[cfg(test)]
    pub(super) fn sweeps(&self) -> (usize, usize) {
        (self.cursor, self.table.width())
    }

    /// The instant that counts for a key that is not here.
    #[inline]
    pub(super) fn earliest(&self, now: Timestamp) -> Timestamp {
        now.max(self.horizon)
    }

    /// Forgets what is as good as unused among the next `count` slots, except `kept`; returns how many were.
    pub(super) fn sweep(&mut self, now: Timestamp, count: usize, kept: &[Label], shared: &Shared) -> usize {
        let mut forgotten = 0;
        for _ in 0..count.min(self.table.width()) {
            if self.cursor >= self.table.width() {
                self.cursor = 0;
            }
            match self.stale(self.cursor, now, kept, &shared.registry) {
                // Closing the gap may have moved another slot here, so the cursor stays.
                Some((fresh_at, small)) => {
                    self.horizon = self.horizon.max(fresh_at);
                    self.remove(self.cursor, small, shared);
                    forgotten += 1;
                }
                None => self.cursor += 1,
            }
        }
        forgotten
    }

    fn stale(&self, index: usize, now: Timestamp, kept: &[Label], registry: &Registry) -> Option<(Timestamp, bool)> {
        let slot = self.table.get(index)?;
        let algorithm = registry.algorithm(slot.registered())?;
        let fresh_at = self.read(index, algorithm.is_small(), |repr| algorithm.repr_fresh_at(repr))?;
        // The last instant stands for all that come after it, so nothing is known to be fresh there.
        let stale = fresh_at <= now && fresh_at < Timestamp::MAX && !kept.contains(&slot.label());
        stale.then_some((fresh_at, algorithm.is_small()))
    }

    /// Forgets one key, whatever its state.
    pub(super) fn forget(&mut self, label: Label, shared: &Shared) {
        if let Some(index) = self.find(label) {
            self.remove_registered(index, shared);
        }
    }

    fn remove_registered(&mut self, index: usize, shared: &Shared) {
        let algorithm = self.table.get(index).and_then(|slot| shared.registry.algorithm(slot.registered()));
        self.remove(index, algorithm.is_none_or(|algorithm| algorithm.is_small()), shared);
    }

    /// Forgets every key of the policies that are `meant`.
    pub(super) fn clear(&mut self, shared: &Shared, meant: impl Fn(u16) -> bool) {
        let mut index = 0;
        while index < self.table.width() {
            // Closing the gap may move another slot here, so the index stays after a removal.
            match self.table.get(index).map(Slot::registered) {
                Some(registered) if meant(registered.policy) => self.remove_registered(index, shared),
                _ => index += 1,
            }
        }
    }

    fn stow(&mut self, repr: Repr) -> Words {
        if let Repr::Words(words) = repr {
            return words;
        }
        let side = self.side.get_or_insert_default();
        let place = match side.free.pop() {
            Some(place) => {
                side.states[place as usize] = repr;
                place
            }
            None => {
                side.states.push(repr);
                (side.states.len() - 1) as u32
            }
        };
        Words { instant: 0, amount: u64::from(place) }
    }

    fn unstow(&mut self, index: usize, small: bool) {
        if small {
            return;
        }
        if let (Some(slot), Some(side)) = (self.table.get(index), &mut self.side) {
            let place = slot.words().amount as u32;
            side.states[place as usize] = Repr::Words(Words { instant: 0, amount: 0 });
            side.free.push(place);
        }
    }
}
