//! A part of the store: a table that is read without a lock, and a rest that only its lock opens.
//!
//! A request that needs several shards locks all their rests in ascending order, and then holds
//! their tables in ascending order. A request that holds a table waits for no rest. So no two
//! requests wait for each other.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::policies::{CallParameters, Policies, UNNUMBERED};
use super::slot::{Content, Label};
use super::sync::{AtomicUsize, Mutex, MutexGuard};
use super::table::{ChangingTable, Table};
use crate::algorithm::{Algorithm, Repr, Words};
use crate::time::Timestamp;

/// The keys and states of one shard, on cache lines of its own, so that threads on different shards
/// do not disturb each other.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Shard {
    pub(super) table: Table,
    pub(super) absent: Absent,
    rest: Mutex<LockedFields>,
}

/// What is to be known about a key without a slot. Changes only while both the rest and the table
/// are held, so a thread that holds either may read it, and its reads are no steps of their own for
/// the model checker.
#[derive(Debug)]
pub(super) struct Absent {
    /// µs of the latest instant at which a forgotten state had become fresh. For a clock before it,
    /// the key may have been forgotten rather than never used.
    horizon: AtomicI64,
    /// How many overflow buckets there are. The key may share one.
    overflow_buckets: AtomicU32,
}

impl Absent {
    /// Whether the key counts as unused.
    pub(super) fn is_unused(&self, now: Timestamp) -> bool {
        self.overflow_buckets() == 0 && self.horizon() <= now
    }

    pub(super) fn overflow_buckets(&self) -> u32 {
        self.overflow_buckets.load(Ordering::Relaxed)
    }

    pub(super) fn horizon(&self) -> Timestamp {
        Timestamp::from_micros(self.horizon.load(Ordering::Relaxed))
    }

    pub(super) fn raise_horizon(&self, fresh_at: Timestamp) {
        self.horizon
            .store(self.horizon().max(fresh_at).as_micros(), Ordering::Relaxed);
    }
}

/// A shard that no other thread changes.
pub(super) struct LockedShard<'a> {
    pub(super) table: ChangingTable<'a>,
    pub(super) rest: MutexGuard<'a, LockedFields>,
    pub(super) absent: &'a Absent,
}

/// What is used under the lock only.
#[derive(Debug)]
pub(super) struct LockedFields {
    /// States that do not fit their slots, and which of their indices are free.
    large: Option<Box<LargeStates>>,
    /// Where the sweep continues.
    pub(super) cursor: usize,
}

#[derive(Debug, Default)]
struct LargeStates {
    states: Vec<(Repr, Option<Arc<Algorithm>>)>,
    free: Vec<u32>,
}

/// Which parameters wrote a state, as a slot names them.
#[derive(Debug)]
pub(super) struct StateWriter {
    pub(super) writer: u8,
    /// The parameters themselves, if they have no number.
    pub(super) unnumbered: Option<Arc<Algorithm>>,
}

impl StateWriter {
    pub(super) fn by(parameters: CallParameters<'_>) -> Self {
        Self {
            writer: parameters.writer,
            unnumbered: parameters.unnumbered().cloned(),
        }
    }

    /// The parameters of a state that does not fit a slot because something is kept with it.
    pub(super) fn beside(parameters: Arc<Algorithm>) -> Self {
        Self {
            writer: UNNUMBERED,
            unnumbered: Some(parameters),
        }
    }
}

/// What all shards of a store share.
#[derive(Debug)]
pub(super) struct SharedStore {
    pub(super) policies: Policies,
    /// Keys in all shards, overflow buckets not counted.
    pub(super) keys: OwnCacheLine<AtomicUsize>,
    pub(super) max_keys: usize,
}

/// A value on cache lines of its own, so that writing it does not slow down threads that read its
/// neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct OwnCacheLine<T>(pub(super) T);

impl SharedStore {
    /// Reserves room for one key; `false` if there is none.
    pub(super) fn reserve(&self) -> bool {
        let reserved = self.keys.0.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !reserved {
            self.release(1);
        }
        reserved
    }

    pub(super) fn release(&self, keys: usize) {
        self.keys.0.fetch_sub(keys, Ordering::Relaxed);
    }

    /// Whether three quarters of the room for keys is taken.
    #[inline]
    pub(super) fn is_nearly_full(&self) -> bool {
        self.keys.0.load(Ordering::Relaxed) >= self.max_keys - self.max_keys / 4
    }
}

impl Shard {
    /// A shard for usually as many keys.
    pub(super) fn new(usual: usize) -> Self {
        let absent = Absent {
            horizon: AtomicI64::new(Timestamp::MIN.as_micros()),
            overflow_buckets: AtomicU32::new(0),
        };
        Self {
            table: Table::new(usual),
            absent,
            rest: Mutex::new(LockedFields {
                large: None,
                cursor: 0,
            }),
        }
    }

    /// Where the shard stands among those of its store.
    pub(super) fn order(&self) -> *const Self {
        self
    }

    /// Waits for other threads, and keeps them from changing the shard.
    pub(super) fn lock(&self) -> LockedShard<'_> {
        self.lock_with(self.lock_rest())
    }

    /// Locks a shard whose rest is locked.
    pub(super) fn lock_with<'a>(&'a self, rest: MutexGuard<'a, LockedFields>) -> LockedShard<'a> {
        LockedShard {
            table: self.table.change(),
            rest,
            absent: &self.absent,
        }
    }

    /// Locks the shard unless another thread holds a part of it.
    pub(super) fn try_lock(&self) -> Option<LockedShard<'_>> {
        let rest = self.try_lock_rest()?;
        Some(LockedShard {
            table: self.table.try_change()?,
            rest,
            absent: &self.absent,
        })
    }

    /// Waits for other threads, and keeps them from adding, removing or moving keys, and from
    /// changing large states.
    pub(super) fn lock_rest(&self) -> MutexGuard<'_, LockedFields> {
        self.rest.lock()
    }

    /// The same, unless another thread has locked it.
    pub(super) fn try_lock_rest(&self) -> Option<MutexGuard<'_, LockedFields>> {
        self.rest.try_lock()
    }
}

impl LockedFields {
    /// Large states, and the places that there are for them.
    #[cfg(test)]
    pub(super) fn large_states(&self) -> (usize, usize) {
        let states = self.large.as_ref().map_or(&[][..], |large| &large.states);
        (
            states
                .iter()
                .filter(|(state, _)| *state != Repr::EMPTY)
                .count(),
            states.len(),
        )
    }

    /// Frees what a removed slot has held here, and returns for how many keys room is to be
    /// released.
    pub(super) fn forget(
        &mut self,
        content: &Content,
        absent: &Absent,
        policies: &Policies,
    ) -> usize {
        self.take(content, content.algorithm(policies));
        let is_overflow = content.label().is_overflow();
        if is_overflow {
            absent.overflow_buckets.fetch_sub(1, Ordering::Relaxed);
        }
        usize::from(!is_overflow)
    }

    /// Moves a slot's state out, and the parameters that are kept with it. `numbered` are those
    /// that the slot names.
    pub(super) fn take(
        &mut self,
        content: &Content,
        numbered: Option<&Arc<Algorithm>>,
    ) -> (Repr, Option<Arc<Algorithm>>) {
        let words = content.words();
        if numbered.is_some_and(|writer| writer.is_small()) {
            return (Repr::Words(words), None);
        }
        let index = words.amount as u32;
        let large = self.large.get_or_insert_default();
        match large.states.get_mut(index as usize) {
            None => (Repr::EMPTY, None),
            Some(state) => {
                large.free.push(index);
                std::mem::replace(state, (Repr::EMPTY, None))
            }
        }
    }

    /// A slot's state and the parameters that wrote it.
    pub(super) fn state<'a>(
        &'a self,
        content: &Content,
        policies: &'a Policies,
    ) -> Option<(Cow<'a, Repr>, &'a Arc<Algorithm>)> {
        let writer = content.algorithm(policies);
        if let Some(writer) = writer.filter(|writer| writer.is_small()) {
            return Some((Cow::Owned(Repr::Words(content.words())), writer));
        }
        let index = content.words().amount as usize;
        let (repr, unnumbered) = self.large.as_ref()?.states.get(index)?;
        Some((Cow::Borrowed(repr), writer.or(unnumbered.as_ref())?))
    }

    /// Puts a state and its parameters here. Returns what the slot holds instead.
    pub(super) fn put_large(&mut self, repr: Repr, unnumbered: Option<Arc<Algorithm>>) -> Words {
        let large = self.large.get_or_insert_default();
        let index = large.free.pop().unwrap_or_else(|| {
            large.states.push((Repr::EMPTY, None));
            (large.states.len() - 1) as u32
        });
        large.states[index as usize] = (repr, unnumbered);
        Words {
            instant: 0,
            amount: u64::from(index),
        }
    }
}

impl LockedShard<'_> {
    pub(super) fn find(&self, label: Label) -> Option<usize> {
        self.table.find(label)
    }

    /// A state that does not fit its slot, if the parameters of that number wrote it.
    pub(super) fn large_state(&mut self, label: Label, writer: u8) -> Option<&mut Repr> {
        let slot = self
            .table
            .find_held(label)
            .filter(|_| writer != UNNUMBERED)?;
        let index = slot.words_of(writer)?.amount as usize;
        let (repr, _) = self.rest.large.as_mut()?.states.get_mut(index)?;
        Some(repr)
    }

    /// Finds a key again that was at `index`; sweeping and growing move slots.
    pub(super) fn find_again(&self, label: Label, index: usize) -> Option<usize> {
        let unmoved = self
            .table
            .get(index)
            .is_some_and(|content| content.label() == label);
        if unmoved {
            Some(index)
        } else {
            self.find(label)
        }
    }

    /// Puts a state into a used slot whose own was taken out.
    pub(super) fn put_state(&mut self, index: usize, repr: Repr, written: StateWriter) {
        let (writer, words) = self.words_of(repr, written);
        self.table.set(index, writer, words);
    }

    pub(super) fn insert(&mut self, label: Label, repr: Repr, written: StateWriter) {
        self.absent
            .overflow_buckets
            .fetch_add(label.is_overflow().into(), Ordering::Relaxed);
        let (writer, words) = self.words_of(repr, written);
        self.table.insert(Content::new(label, writer, words));
    }

    pub(super) fn remove(&mut self, index: usize, shared: &SharedStore) {
        let Some(content) = self.table.get(index) else {
            return;
        };
        shared.release(self.rest.forget(&content, self.absent, &shared.policies));
        self.table.remove(index);
    }

    /// Finds an overflow bucket, if there are any.
    pub(super) fn find_bucket(&self, bucket: Label) -> Option<usize> {
        if self.absent.overflow_buckets() == 0 {
            None
        } else {
            self.find(bucket)
        }
    }

    /// The instant that counts for a key without a slot.
    pub(super) fn earliest(&self, now: Timestamp) -> Timestamp {
        now.max(self.absent.horizon())
    }

    /// Forgets one key, whatever its state.
    pub(super) fn forget(&mut self, label: Label, shared: &SharedStore) {
        if let Some(index) = self.find(label) {
            self.remove(index, shared);
        }
    }

    /// Forgets every key of the policies that `of` selects.
    pub(super) fn clear(&mut self, shared: &SharedStore, of: impl Fn(u16) -> bool) {
        let mut index = 0;
        while index < self.table.end() {
            // Closing the gap may move another slot here, so the index stays after a removal.
            match self.table.get(index).map(|content| content.label()) {
                Some(label) if of(label.policy()) => self.remove(index, shared),
                _ => index += 1,
            }
        }
    }

    /// What a slot holds of a state: the number of its parameters, and two words.
    fn words_of(&mut self, repr: Repr, written: StateWriter) -> (u8, Words) {
        let StateWriter { writer, unnumbered } = written;
        let words = match repr {
            Repr::Words(words) if unnumbered.is_none() => words,
            repr => self.rest.put_large(repr, unnumbered),
        };
        (writer, words)
    }
}
