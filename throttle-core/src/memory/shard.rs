//! A part of the store: a table that is read without a lock, and a rest that only its lock opens.
//!
//! A request that needs several shards locks all their rests in ascending order, and then holds their tables in
//! ascending order. A request that holds a table waits for no rest. So no two requests wait for each other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::policies::{Policies, PolicyVersions, Version};
use super::slot::{Content, HAS_KIN, Label};
use super::sync::{AtomicUsize, Mutex, MutexGuard};
use super::table::{ChangingTable, Table};
use crate::algorithm::{Algorithm, Kin, KinState, Repr, States, Words, Writer};
use crate::time::Timestamp;

/// The keys and states of one shard, on cache lines of its own, so that threads on different shards do not disturb each
/// other.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Shard {
    pub(super) table: Table,
    rest: Mutex<Rest>,
}

/// A shard that no other thread changes.
pub(super) struct LockedShard<'a> {
    pub(super) table: ChangingTable<'a>,
    pub(super) rest: MutexGuard<'a, Rest>,
}

/// What is used under the lock only.
#[derive(Debug)]
pub(super) struct Rest {
    /// States larger than two words, and which of their places are free.
    large: Option<Box<LargeStates>>,
    /// What the slots of keys with kin have no room for.
    kin: HashMap<Label, KinSlots>,
    /// Where the sweep continues.
    pub(super) cursor: usize,
    /// The latest instant at which a forgotten state had become fresh. For a clock before it, a key without a slot may
    /// have been forgotten rather than never used.
    pub(super) horizon: Timestamp,
    overflow_buckets: u32,
    /// Those of them that keys with numbers of their own share.
    own_buckets: u32,
}

#[derive(Debug, Default)]
struct LargeStates {
    states: Vec<Repr>,
    free: Vec<u32>,
}

/// The rest of a key that has kin.
#[derive(Debug)]
struct KinSlots {
    /// Of the state in the slot, which is not repeated here. `None` if that one is an unused one in the place of a
    /// state whose parameters have no generation.
    first: Option<KinState>,
    /// The states under other parameters.
    others: Vec<(KinWriter, KinState)>,
}

/// The parameters of a state in the side table.
#[derive(Debug)]
enum KinWriter {
    Generation(u8),
    Kept(Arc<Algorithm>),
}

impl KinWriter {
    fn of(writer: Writer<'_>) -> Self {
        match writer {
            Writer::Numbered(_, generation) => Self::Generation(generation),
            Writer::Kept(by) => Self::Kept(by),
        }
    }

    fn writer<'a>(&self, policies: &'a Policies, policy: u16) -> Option<Writer<'a>> {
        Some(match self {
            Self::Generation(generation) => {
                let generation = *generation;
                Writer::Numbered(policies.algorithm(Version { policy, generation })?, generation)
            }
            Self::Kept(by) => Writer::Kept(Arc::clone(by)),
        })
    }
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
        let rest = Rest {
            large: None,
            kin: HashMap::new(),
            cursor: 0,
            horizon: Timestamp::MIN,
            overflow_buckets: 0,
            own_buckets: 0,
        };
        Self { table: Table::new(usual), rest: Mutex::new(rest) }
    }

    /// Waits for other threads, and keeps them from changing the shard.
    pub(super) fn lock(&self) -> LockedShard<'_> {
        self.lock_with(self.lock_rest())
    }

    /// Locks a shard whose rest is locked.
    pub(super) fn lock_with<'a>(&'a self, rest: MutexGuard<'a, Rest>) -> LockedShard<'a> {
        LockedShard { table: self.table.change(), rest }
    }

    /// Locks the shard unless another thread holds a part of it.
    pub(super) fn try_lock(&self) -> Option<LockedShard<'_>> {
        let rest = self.rest.try_lock()?;
        Some(LockedShard { table: self.table.try_change()?, rest })
    }

    /// Waits for other threads, and keeps them from adding, removing or moving keys, and from changing large states.
    pub(super) fn lock_rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock()
    }
}

impl Rest {
    /// How many overflow buckets there are.
    pub(super) fn overflow_buckets(&self) -> u32 {
        self.overflow_buckets
    }

    /// Whether a key that counts nothing may still not be forgotten: the bucket of own numbers, beside buckets of
    /// tiers. Numbers that have no state there begin with what those count. Buckets of another policy's tiers keep it,
    /// too, because they are counted together: that costs at most one slot for each policy.
    pub(super) fn keeps_idle(&self, label: Label) -> bool {
        label.is_overflow_of_own() && self.overflow_buckets > self.own_buckets
    }

    /// Large states, and the places that there are for them.
    #[cfg(test)]
    pub(super) fn large_states(&self) -> (usize, usize) {
        let states = self.large.as_ref().map_or(&[][..], |large| &large.states);
        (states.iter().filter(|state| **state != Repr::EMPTY).count(), states.len())
    }

    /// Frees what a removed slot has held here, and returns for how many keys room is to be released.
    pub(super) fn forget(&mut self, content: &Content, small: bool) -> usize {
        self.free_large(content, small);
        if content.has_kin() {
            self.take_kin(content.label());
        }
        let is_overflow = content.label().is_overflow();
        self.overflow_buckets -= u32::from(is_overflow);
        self.own_buckets -= u32::from(content.label().is_overflow_of_own());
        usize::from(!is_overflow)
    }

    /// Frees the place of a slot's large state.
    fn free_large(&mut self, content: &Content, small: bool) {
        if let Some(large) = self.large.as_mut().filter(|_| !small) {
            let place = content.words().amount as u32;
            large.states[place as usize] = Repr::EMPTY;
            large.free.push(place);
        }
    }

    fn take_kin(&mut self, label: Label) -> Option<KinSlots> {
        let taken = self.kin.remove(&label);
        if self.kin.is_empty() && self.kin.capacity() > 0 {
            self.kin = HashMap::new();
        }
        taken
    }

    /// The first instant at which none of a key's kin counts anything; `None` for a slot without kin.
    #[cold]
    pub(super) fn kin_fresh_at(&self, label: Label, policies: &Policies) -> Option<Timestamp> {
        let kin = self.kin.get(&label)?;
        let fresh_at =
            |(by, state): &(KinWriter, KinState)| Some(by.writer(policies, label.policy())?.repr_fresh_at(&state.repr));
        kin.others.iter().filter_map(fresh_at).max()
    }

    /// Keys that have kin.
    #[cfg(test)]
    pub(super) fn keys_with_kin(&self) -> usize {
        self.kin.len()
    }

    /// The large state that a slot's words refer to.
    #[inline]
    pub(super) fn large_state(&mut self, words: Words) -> Option<&mut Repr> {
        self.large.as_mut()?.states.get_mut(words.amount as usize)
    }
}

impl LockedShard<'_> {
    pub(super) fn find(&self, label: Label) -> Option<usize> {
        self.table.find(label)
    }

    /// Finds a key again that was at `index`; sweeping and growing move slots.
    pub(super) fn find_again(&self, label: Label, index: usize) -> Option<usize> {
        let unmoved = self.table.get(index).is_some_and(|content| content.label() == label);
        if unmoved { Some(index) } else { self.find(label) }
    }

    /// Moves the states of a key out of its used slot and the side table. `by` wrote the one in the slot.
    /// [`put_states`](Self::put_states) moves them in again.
    pub(super) fn take_states<'a>(&mut self, content: Content, by: &'a Algorithm, shared: &'a Shared) -> States<'a> {
        let Version { policy, generation } = content.version();
        let repr = if by.is_small() {
            Repr::Words(content.words())
        } else {
            let state = self.rest.large_state(content.words());
            state.map_or(Repr::EMPTY, |state| std::mem::replace(state, Repr::EMPTY))
        };
        let mut states = States::new();
        states.push(Kin::alone(Writer::Numbered(by, generation), repr));
        if content.has_kin()
            && let Some(kin) = self.rest.take_kin(content.label())
        {
            match kin.first {
                Some(KinState { since, cut, .. }) => (states[0].state.since, states[0].state.cut) = (since, cut),
                None => states.clear(),
            }
            for (by, state) in kin.others {
                states.extend(by.writer(&shared.policies, policy).map(|by| Kin { by, state }));
            }
        }
        states
    }

    /// Puts a key's states into its used slot, in the place of one that was small or large.
    pub(super) fn put_states(&mut self, index: usize, was_small: bool, states: States<'_>, shared: &Shared) {
        let Some(content) = self.table.get(index) else { return };
        self.rest.free_large(&content, was_small);
        if let Some((generation, words)) = self.words_of(content.label(), states, shared) {
            self.table.set(index, generation, words);
        }
    }

    pub(super) fn insert(&mut self, label: Label, states: States<'_>, shared: &Shared) {
        if label.is_overflow() {
            self.rest.overflow_buckets += 1;
            self.rest.own_buckets += u32::from(label.is_overflow_of_own());
        }
        if let Some((generation, words)) = self.words_of(label, states, shared) {
            self.table.insert(Content::new(label, generation, words));
        }
    }

    pub(super) fn remove(&mut self, index: usize, small: bool, shared: &Shared) {
        let Some(content) = self.table.get(index) else { return };
        shared.release(self.rest.forget(&content, small));
        self.table.remove(index);
    }

    /// The overflow bucket of a policy's tier, if there is one.
    pub(super) fn overflow_bucket(&self, policy: u16, tier: u8) -> Option<usize> {
        if self.rest.overflow_buckets() == 0 { None } else { self.find(Label::overflow(policy, tier)) }
    }

    /// The instant that counts for a key without a slot.
    pub(super) fn earliest(&self, now: Timestamp) -> Timestamp {
        now.max(self.rest.horizon)
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
        while index < self.table.end() {
            // Closing the gap may move another slot here, so the index stays after a removal.
            match self.table.get(index).map(|content| content.label()) {
                Some(label) if of(label.policy()) => self.remove_any(index, shared),
                _ => index += 1,
            }
        }
    }

    fn remove_any(&mut self, index: usize, shared: &Shared) {
        let algorithm = self.table.get(index).and_then(|content| shared.policies.algorithm(content.version()));
        self.remove(index, algorithm.is_none_or(|algorithm| algorithm.is_small()), shared);
    }

    /// A key's states as what its slot holds: the generation, and the two words of the first. The others go to the side
    /// table.
    fn words_of(&mut self, label: Label, states: States<'_>, shared: &Shared) -> Option<(u8, Words)> {
        let mut states = states.into_iter().peekable();
        let (generation, repr, first) = match states.next_if(|kin| matches!(kin.by, Writer::Numbered(..))) {
            Some(Kin { by: Writer::Numbered(_, generation), state }) => {
                let KinState { repr, since, cut } = state;
                (generation, repr, Some(KinState { repr: Repr::EMPTY, since, cut }))
            }
            _ => {
                states.peek()?;
                let placeholder = shared.policies.get(label.policy()).map(PolicyVersions::placeholder)?;
                (placeholder.version.generation, placeholder.algorithm.fresh_repr(), None)
            }
        };
        let others: Vec<_> = states.map(|kin| (KinWriter::of(kin.by), kin.state)).collect();
        let has_kin = if others.is_empty() { 0 } else { HAS_KIN };
        if has_kin > 0 {
            self.rest.kin.insert(label, KinSlots { first, others });
        }
        Some((generation | has_kin, self.words_of_one(repr)))
    }

    fn words_of_one(&mut self, repr: Repr) -> Words {
        if let Repr::Words(words) = repr {
            return words;
        }
        let large = self.rest.large.get_or_insert_default();
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
}
