//! The fast path: one policy whose key has a slot that the same parameters wrote. Nearly every
//! request takes it, or that [of several policies](super::fast_set).
//!
//! A small state is decided as a copy, which was read without a lock. A request that is charged
//! begins a change of its key's shard, which fails if another thread has changed it since, and
//! writes the copy; any other request writes nothing. After such a failure, requests for the shard
//! begin their change before they read, for a while.

use super::policies::Parameters;
use super::shard::Shard;
use super::slot::Label;
use super::store::Store;
use super::table::{Known, Unread};
use crate::algorithm::{Repr, Stored, Transition, Visitor};
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
    pub(super) fn decide_alone(&self, asked: Asked<'_>) -> Decision {
        let (shard, label, writer) = self.place(&asked);
        match shard.table.read(label, writer) {
            Ok(known) if asked.parameters.is_plain => asked.parameters.algorithm.accept(Alone {
                store: self,
                known,
                asked,
            }),
            Ok(known) => self.decide_large(asked, shard, known),
            Err(unread) => self.decide_otherwise(asked, unread),
        }
    }

    /// Decides one policy whose key is not known, or could not be read because of other threads.
    #[cold]
    #[inline(never)]
    fn decide_otherwise(&self, asked: Asked<'_>, unread: Unread) -> Decision {
        if unread == Unread::Disturbed && asked.parameters.algorithm.is_small() {
            self.decide_undisturbed(asked, false)
        } else {
            self.decide_new(&asked)
                .unwrap_or_else(|| self.decide_one(&asked))
        }
    }

    /// Decides one policy with a small state, and keeps other threads from changing the shard
    /// meanwhile.
    #[cold]
    #[inline(never)]
    fn decide_undisturbed(&self, asked: Asked<'_>, was_disturbed: bool) -> Decision {
        let (shard, label, writer) = self.place(&asked);
        let mut table = shard.table.change();
        let known = table.read_held(label, writer);
        if was_disturbed {
            table.begin_dispute();
        }
        let Some(known) = known else {
            drop(table);
            return self.decide_one(&asked);
        };
        asked.parameters.algorithm.accept(Alone {
            store: self,
            known,
            asked,
        })
    }

    /// Decides one policy whose state is too large for its slot.
    #[inline(never)]
    fn decide_large(&self, asked: Asked<'_>, shard: &Shard, known: Known<'_>) -> Decision {
        let mut rest = shard.lock_rest();
        // Keys do not move from here on.
        let known = if known.is_still() {
            Some(known)
        } else {
            let (shard, label, writer) = self.place(&asked);
            shard.table.change().read_held(label, writer)
        };
        let state = known.and_then(|known| rest.large_state(known.words));
        let decision =
            state.and_then(|state| asked.parameters.algorithm.accept(Large(state, asked)));
        drop(rest);
        decision.unwrap_or_else(|| self.decide_one(&asked))
    }

    #[inline(always)]
    pub(super) fn place(&self, asked: &Asked<'_>) -> (&Shard, Label, u8) {
        let hash = self.key_hasher.hash(asked.key);
        (
            self.shard(hash),
            Label::new(hash, asked.parameters.policy),
            asked.parameters.writer,
        )
    }
}

/// One policy's decision on a known key with a small state. It lends nothing of itself to a
/// function that is not inlined, so its parts stay in registers.
struct Alone<'a> {
    store: &'a Store,
    known: Known<'a>,
    asked: Asked<'a>,
}

impl Visitor for Alone<'_> {
    type Output = Decision;

    #[inline(always)]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Decision {
        let Self {
            store,
            known,
            asked:
                Asked {
                    parameters,
                    key,
                    cost,
                    now,
                },
        } = self;
        let Some(mut state) = A::State::from_words(known.words) else {
            unreachable!("the state is small")
        };
        let (outcome, standing) = algorithm.decide(&mut state, now, cost);
        if let Some(words) = state.words().filter(|_| outcome.taken.cost > 0)
            && !known.replace(parameters.writer, words)
        {
            return store.decide_undisturbed(
                Asked {
                    parameters,
                    key,
                    cost,
                    now,
                },
                true,
            );
        }
        Decision::of_one(outcome, standing, parameters.tier, false)
    }
}

/// The same with a state that is too large for its slot. `None` if another algorithm wrote it.
struct Large<'a>(&'a mut Repr, Asked<'a>);

impl Visitor for Large<'_> {
    type Output = Option<Decision>;

    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Option<Decision> {
        let Self(
            state,
            Asked {
                parameters,
                cost,
                now,
                ..
            },
        ) = self;
        let (outcome, standing) =
            A::State::change(state, |state| algorithm.decide(state, now, cost))?;
        Some(Decision::of_one(outcome, standing, parameters.tier, false))
    }
}
