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

/// One call, and the parameters that decide it.
#[derive(Clone, Copy)]
pub(super) struct SingleCall<'a> {
    pub(super) parameters: &'a Parameters,
    pub(super) key: &'a Key,
    pub(super) cost: u64,
    pub(super) now: Timestamp,
}

impl Store {
    /// Decides one policy.
    #[inline(always)]
    pub(super) fn decide_alone(&self, call: SingleCall<'_>) -> Decision {
        if !call.parameters.is_plain {
            return self.decide_large(call);
        }
        let (shard, label, writer) = self.locate(call);
        match shard.table.read(label, writer) {
            Ok(known) => call.parameters.algorithm.accept(Alone {
                store: self,
                known,
                call,
            }),
            Err(unread) => self.decide_unread(call, unread),
        }
    }

    /// Decides one policy whose state is not in its slot, or could not be read because of other
    /// threads.
    #[cold]
    #[inline(never)]
    fn decide_unread(&self, call: SingleCall<'_>, unread: Unread) -> Decision {
        if unread == Unread::Disturbed {
            self.decide_undisturbed(call, false)
        } else {
            self.decide_one(call)
        }
    }

    /// Decides one policy with a small state, and keeps other threads from changing the shard
    /// meanwhile.
    #[cold]
    #[inline(never)]
    fn decide_undisturbed(&self, call: SingleCall<'_>, was_disturbed: bool) -> Decision {
        let (shard, label, writer) = self.locate(call);
        let mut table = shard.table.change();
        let known = table.read_locked(label, writer);
        if was_disturbed {
            table.begin_dispute();
        }
        let Some(known) = known else {
            drop(table);
            return self.decide_one(call);
        };
        call.parameters.algorithm.accept(Alone {
            store: self,
            known,
            call,
        })
    }

    /// Decides one policy whose state does not fit a slot: where it is, if the same parameters wrote
    /// it.
    #[inline(never)]
    fn decide_large(&self, call: SingleCall<'_>) -> Decision {
        let (shard, label, writer) = self.locate(call);
        let mut shard = shard.lock();
        let decision = shard
            .large_state(label, writer)
            .and_then(|state| call.parameters.algorithm.accept(Large { state, call }));
        drop(shard);
        decision.unwrap_or_else(|| self.decide_one(call))
    }

    #[inline(always)]
    fn locate(&self, call: SingleCall<'_>) -> (&Shard, Label, u8) {
        let hash = self.key_hasher.hash(call.key);
        (
            self.shard(hash),
            Label::new(hash, call.parameters.policy),
            call.parameters.writer,
        )
    }
}

/// One policy's decision on a known key with a small state. It lends nothing of itself to a
/// function that is not inlined, so its parts stay in registers.
struct Alone<'a> {
    store: &'a Store,
    known: KnownKey<'a>,
    call: SingleCall<'a>,
}

impl Visitor for Alone<'_> {
    type Output = Decision;

    #[inline(always)]
    fn visit<A: Transition<State: StateFormat>>(self, algorithm: &A) -> Decision {
        let Self {
            store,
            known,
            call:
                SingleCall {
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
                SingleCall {
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

/// One policy's decision on a state that does not fit a slot. `None` if another algorithm wrote it.
struct Large<'a> {
    state: &'a mut Repr,
    call: SingleCall<'a>,
}

impl Visitor for Large<'_> {
    type Output = Option<Decision>;

    fn visit<A: Transition<State: StateFormat>>(self, algorithm: &A) -> Option<Decision> {
        let SingleCall {
            parameters,
            cost,
            now,
            ..
        } = self.call;
        let decide = |state: &mut _| algorithm.decide(state, now, cost);
        let (outcome, standing) = A::State::change(self.state, decide)?;
        Some(Decision::of_one(outcome, standing, parameters.tier, false))
    }
}
