//! The fast path: one policy whose key has a slot that the same parameters wrote. Nearly every request takes it, or
//! that [of several policies](super::fast_set).
//!
//! A small state is decided as a copy, which was read without a lock. A request that is charged begins a change of its
//! key's shard, which fails if another thread has changed it since, and writes the copy; any other request writes
//! nothing. After such a failure, requests for the shard begin their change before they read, for a while.

use super::policies::Parameters;
use super::shard::Shard;
use super::slot::Label;
use super::store::Store;
use super::table::{Known, Unread};
use crate::algorithm::{Stored, Transition, Visitor, decide};
use crate::decision::Decision;
use crate::key::Key;
use crate::time::Timestamp;

/// What one policy is asked.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) parameters: &'a Parameters,
    pub(super) key: &'a Key,
    pub(super) cost: u64,
    pub(super) now: Timestamp,
}

impl Store {
    /// Decides one policy.
    #[inline(always)]
    pub(super) fn decide_alone(&self, asked: &Asked<'_>) -> Decision {
        let (shard, label, writer) = self.place(asked);
        match shard.table.read(label, writer) {
            Ok(known) => asked.parameters.algorithm.accept(Alone { store: self, shard, known, asked }),
            Err(unread) => self.decide_otherwise(asked, unread),
        }
    }

    /// Decides one policy whose key is not known, or could not be read because of other threads.
    #[cold]
    #[inline(never)]
    fn decide_otherwise(&self, asked: &Asked<'_>, unread: Unread) -> Decision {
        if unread == Unread::Disturbed && asked.parameters.algorithm.is_small() {
            self.decide_undisturbed(asked, false)
        } else {
            self.decide_new(asked).unwrap_or_else(|| self.decide_one(asked))
        }
    }

    /// Decides one policy with a small state, and keeps other threads from changing the shard meanwhile.
    #[cold]
    #[inline(never)]
    fn decide_undisturbed(&self, asked: &Asked<'_>, was_disturbed: bool) -> Decision {
        let (shard, label, writer) = self.place(asked);
        let mut table = shard.table.change();
        let known = table.read_held(label, writer);
        if was_disturbed {
            table.begin_dispute();
        }
        let Some(known) = known else {
            drop(table);
            return self.decide_one(asked);
        };
        asked.parameters.algorithm.accept(Alone { store: self, shard, known, asked })
    }

    #[inline(always)]
    pub(super) fn place(&self, asked: &Asked<'_>) -> (&Shard, Label, u8) {
        let hash = self.key_hasher.hash(asked.key);
        (self.shard(hash), Label::new(hash, asked.parameters.policy), asked.parameters.writer)
    }
}

/// One policy's decision on a known key.
struct Alone<'a> {
    store: &'a Store,
    shard: &'a Shard,
    known: Known<'a>,
    asked: &'a Asked<'a>,
}

impl Visitor for Alone<'_> {
    type Output = Decision;

    #[inline(always)]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Decision {
        let Self { store, known, asked, .. } = self;
        let Asked { parameters, cost, now, .. } = *asked;
        let Some(mut state) = A::State::from_words(known.words) else {
            return self.on_large(algorithm).unwrap_or_else(|| store.decide_one(asked));
        };
        let outcome = decide(algorithm, &mut state, now, cost);
        if let Some(words) = state.words().filter(|_| outcome.taken.cost > 0)
            && !known.replace(words)
        {
            return store.decide_undisturbed(asked, true);
        }
        Decision::of_one(outcome, algorithm.standing(&state, now), parameters.tier, false)
    }
}

impl Alone<'_> {
    /// Decides on a state that is too large for its slot. `None` if the key is gone.
    #[inline(never)]
    fn on_large<A: Transition<State: Stored>>(&self, algorithm: &A) -> Option<Decision> {
        let Asked { parameters, cost, now, .. } = *self.asked;
        let mut rest = self.shard.lock_rest();
        // Keys do not move from here on.
        let words = if self.known.is_still() {
            self.known.words
        } else {
            let (shard, label, writer) = self.store.place(self.asked);
            shard.table.change().read_held(label, writer)?.words
        };
        let (outcome, standing) = A::State::change(rest.large_state(words)?, |state| {
            (decide(algorithm, state, now, cost), algorithm.standing(state, now))
        })?;
        Some(Decision::of_one(outcome, standing, parameters.tier, false))
    }
}
