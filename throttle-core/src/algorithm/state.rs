use std::sync::Arc;

use super::carry::Carry;
use super::cell::Cell;
use super::dispatch::Algorithm;
use super::stored::Repr;
use super::verdict::Verdict;
use crate::time::Timestamp;

/// What a backend keeps for one key of one policy.
///
/// Opaque: only the [`Algorithm`](crate::Algorithm) that made it can read it. Backends that keep states in another
/// process use [`to_wire`](Self::to_wire) and [`from_wire`](Self::from_wire).
///
/// ```
/// use throttle_core::{Gcra, Rate, Timestamp};
///
/// let gcra = Gcra::new(Rate::per_minute(60)).burst(2).build()?;
/// let (state, verdict) = gcra.decide(gcra.fresh(), Timestamp::EPOCH, 2);
/// assert!(verdict.is_admitted());
/// assert_eq!(gcra.peek(&state, Timestamp::EPOCH).remaining(), 0);
/// assert_eq!(gcra.fresh_at(&state), Timestamp::from_micros(2_000_000));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
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

    /// Decides about `cost` units and charges them if they are admitted. A cost of 0 peeks: it is always admitted and
    /// charges nothing.
    ///
    /// A state that another algorithm made counts as fresh. A state of the same algorithm with other parameters must be
    /// [carried over](Self::carry_over) first.
    #[must_use]
    pub fn decide(&self, state: State, now: Timestamp, cost: u64) -> (State, Verdict) {
        let under = state.under;
        let mut cell = Cell::new(self, state.repr, state.clipped, now);
        let wait = cell.wait(cost);
        let delay = if wait == 0 && cost > 0 { cell.take(cost).0 } else { 0 };
        let verdict = Verdict { standing: cell.standing(), wait, delay };
        let (repr, clipped) = cell.into_state();
        (State { repr, clipped, under }, verdict)
    }

    /// Returns the verdict for a cost of 0, which charges nothing.
    #[must_use]
    pub fn peek(&self, state: &State, now: Timestamp) -> Verdict {
        Verdict { standing: self.standing(&state.repr, now), wait: 0, delay: 0 }
    }

    /// Returns the first instant from which `state` equals a fresh one in every later decision. From then on it may be
    /// dropped, as long as the clock does not step back before that instant.
    #[must_use]
    pub fn fresh_at(&self, state: &State) -> Timestamp {
        self.repr_fresh_at(&state.repr)
    }

    /// Converts a state of `old`, the former limit: used units stay used, up to the new capacity.
    ///
    /// A raised limit takes effect at once, and a lowered one refuses a key for no longer than its own window. If a key
    /// had used more than the lowered limit, its new state records that the limit is used up, but not by how much it
    /// was exceeded. Whenever the limit is raised before the key has recovered, the key counts as exhausted. So
    /// changing back and forth between limits admits no more than the largest of them does.
    #[must_use]
    pub fn carry_over(&self, old: &Self, state: &State, now: Timestamp) -> State {
        let mut cell = Cell::new(self, state.repr.clone(), state.clipped, now).written_by(old, Carry::Keep);
        cell.carry_over();
        let (repr, clipped) = cell.into_state();
        State { repr, clipped, under: None }
    }
}
