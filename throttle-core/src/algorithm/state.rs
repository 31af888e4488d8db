use std::sync::Arc;

use super::dispatch::Algorithm;
use super::stored::Repr;
use super::verdict::Verdict;
use crate::time::Timestamp;

/// What a backend keeps for one key of one policy.
///
/// Opaque: only the [`Algorithm`](crate::Algorithm) that made it can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub(crate) repr: Repr,
    /// More may have been used than the state tells: it was cut to the capacity when the parameters changed.
    pub(crate) clipped: bool,
    /// The parameters that wrote it, if not those of the policy's first tier.
    pub(crate) under: Option<Arc<Algorithm>>,
}

impl Algorithm {
    /// The state of a key that was never used.
    #[must_use]
    pub fn fresh(&self) -> State {
        State { repr: self.fresh_repr(), clipped: false, under: None }
    }

    /// Decides about `cost` units and charges them if they are admitted. A cost of 0 peeks: always allowed, nothing
    /// charged.
    ///
    /// A state that another algorithm made counts as fresh; a state of the same algorithm with other parameters must be
    /// [carried over](Self::carry_over) first.
    #[must_use]
    pub fn decide(&self, mut state: State, now: Timestamp, cost: u64) -> (State, Verdict) {
        let clipped = self.still_clipped(&state.repr, state.clipped, now);
        let (verdict, taken) = self.decide_repr(&mut state.repr, now, cost);
        if taken.cost > 0 {
            state.clipped = clipped;
        }
        (state, verdict)
    }

    /// Where a key stands, as a verdict about a cost of 0.
    #[must_use]
    pub fn peek(&self, state: &State, now: Timestamp) -> Verdict {
        Verdict::allowed(self.standing(&state.repr, now), 0)
    }

    /// The first instant from which `state` cannot be told from a fresh one and may be forgotten, as long as the clock
    /// does not step back before it.
    #[must_use]
    pub fn fresh_at(&self, state: &State) -> Timestamp {
        self.repr_fresh_at(&state.repr)
    }

    /// The state that a changed policy starts with: what was used under `old` stays used, up to the new capacity.
    ///
    /// So a raised limit is felt at once, and a lowered one locks a key out for no longer than its own window. What a
    /// lowered limit had to cut off counts as all used when the limit is raised again before the key has recovered:
    /// going to and fro between two limits is no way to more than either admits.
    #[must_use]
    pub fn carry_over(&self, old: &Self, state: &State, now: Timestamp) -> State {
        let (repr, clipped) = self.carry_repr(old, &state.repr, state.clipped, now);
        State { repr, clipped, under: None }
    }
}
