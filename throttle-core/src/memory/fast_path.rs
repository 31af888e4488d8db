//! The fast path: one policy whose key has a slot that the same parameters wrote. Nearly every
//! request takes it, or that [of several policies](super::decide_set).
//!
//! A small state is decided as a copy, which was read without a lock. A request that is charged
//! begins a change of its key's shard, which fails if another thread has changed it since, and
//! writes the copy; any other request writes nothing. After such a failure, requests for the shard
//! begin their change before they read, for a while.

use super::policies::Parameters;
use super::shard::Shard;
use super::slot::Label;
use super::store::Store;
use super::table::{KnownKey, Unread};
use crate::algorithm::{Repr, StateFormat, Transition, Visitor};
use crate::decision::Decision;
use crate::key::Key;
use crate::time::Timestamp;

// A structure of the arguments would be lent to the functions off the fast path, and so be written
// to memory on it.
impl Store {
    /// Decides one policy.
    #[inline(always)]
    pub(super) fn decide_alone(
        &self,
        parameters: &Parameters,
        key: &Key,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        if !parameters.is_plain {
            return self.decide_large(parameters, key, cost, now);
        }
        let (shard, label) = self.locate(parameters, key);
        match shard.table.read(label) {
            Ok(known) if known.writer == parameters.writer => parameters.algorithm.accept(Alone {
                store: self,
                known,
                parameters,
                key,
                cost,
                now,
            }),
            Ok(_) | Err(Unread::Missing) => self.decide_one(parameters, key, cost, now),
            Err(Unread::Disturbed) => self.decide_undisturbed(parameters, key, cost, now, false),
        }
    }

    /// Decides one policy with a small state, and keeps other threads from changing the shard
    /// meanwhile.
    #[cold]
    #[inline(never)]
    fn decide_undisturbed(
        &self,
        parameters: &Parameters,
        key: &Key,
        cost: u64,
        now: Timestamp,
        was_disturbed: bool,
    ) -> Decision {
        let (shard, label) = self.locate(parameters, key);
        let mut table = shard.table.change();
        let known = table
            .read_locked(label)
            .filter(|known| known.writer == parameters.writer);
        if was_disturbed {
            table.begin_dispute();
        }
        let Some(known) = known else {
            drop(table);
            return self.decide_one(parameters, key, cost, now);
        };
        parameters.algorithm.accept(Alone {
            store: self,
            known,
            parameters,
            key,
            cost,
            now,
        })
    }

    /// Decides one policy whose state does not fit a slot: where it is, if the same parameters wrote
    /// it.
    #[inline(never)]
    fn decide_large(
        &self,
        parameters: &Parameters,
        key: &Key,
        cost: u64,
        now: Timestamp,
    ) -> Decision {
        let (shard, label) = self.locate(parameters, key);
        let mut shard = shard.lock();
        let decision = shard
            .large_state(label, parameters.writer)
            .and_then(|state| {
                parameters.algorithm.accept(Large {
                    state,
                    tier: parameters.tier,
                    cost,
                    now,
                })
            });
        drop(shard);
        decision.unwrap_or_else(|| self.decide_one(parameters, key, cost, now))
    }

    #[inline(always)]
    fn locate(&self, parameters: &Parameters, key: &Key) -> (&Shard, Label) {
        let hash = self.key_hasher.hash(key);
        (self.shard(hash), Label::new(hash, parameters.policy))
    }
}

/// One policy's decision on a known key with a small state.
struct Alone<'a> {
    store: &'a Store,
    known: KnownKey<'a>,
    parameters: &'a Parameters,
    key: &'a Key,
    cost: u64,
    now: Timestamp,
}

impl Visitor for Alone<'_> {
    type Output = Decision;

    #[inline(always)]
    fn visit<A: Transition<State: StateFormat>>(self, algorithm: &A) -> Decision {
        let Self {
            store,
            known,
            parameters,
            key,
            cost,
            now,
        } = self;
        let Some(mut state) = A::State::from_words(known.words) else {
            unreachable!("the state is small")
        };
        let (outcome, standing) = algorithm.decide(&mut state, now, cost);
        if let Some(words) = state.words().filter(|_| outcome.taken.cost > 0)
            && !known.replace(parameters.writer, words)
        {
            return store.decide_undisturbed(parameters, key, cost, now, true);
        }
        Decision::of_one(outcome, standing, parameters.tier, false)
    }
}

/// One policy's decision on a state that does not fit a slot. `None` if another algorithm wrote it.
struct Large<'a> {
    state: &'a mut Repr,
    tier: u8,
    cost: u64,
    now: Timestamp,
}

impl Visitor for Large<'_> {
    type Output = Option<Decision>;

    fn visit<A: Transition<State: StateFormat>>(self, algorithm: &A) -> Option<Decision> {
        let decide = |state: &mut _| algorithm.decide(state, self.now, self.cost);
        let (outcome, standing) = A::State::change(self.state, decide)?;
        Some(Decision::of_one(outcome, standing, self.tier, false))
    }
}
