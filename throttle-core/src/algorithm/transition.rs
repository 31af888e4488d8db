//! What every algorithm answers about a state, and what it does to one.

use super::verdict::{Mark, NEVER, Standing, Taken, Verdict};
use crate::time::Timestamp;

/// One algorithm as a pure function of (state, now, cost).
///
/// Costs are at least 1 unless said otherwise; durations are microseconds. Nothing here reads a clock or does I/O, and
/// nothing panics: policies outside the exact envelope are refused before they get here, and instants are bounded by
/// [`Timestamp`].
pub(crate) trait Transition {
    type State;

    /// Most units that can be admitted at one instant.
    fn capacity(&self) -> u64;

    /// The state of a key that was never used.
    fn fresh(&self) -> Self::State;

    /// Whether a cost of 1 ..= capacity is admitted now, and if not, in how many microseconds (≥ 1).
    fn wait(&self, state: &Self::State, now: Timestamp, cost: u64) -> u64;

    /// µs from now until a cost that is admitted now may leave; only the shaper delays.
    fn delay(&self, _state: &Self::State, _now: Timestamp) -> u64 {
        0
    }

    /// Charges a cost that [`wait`](Self::wait) has just admitted.
    fn take(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Mark;

    /// Where the key stands at this instant.
    fn standing(&self, state: &Self::State, now: Timestamp) -> Standing;

    /// Gives back `units` of an earlier charge of `cost` units, never into a later window.
    fn give_back(&self, state: &mut Self::State, now: Timestamp, mark: Mark, cost: u64, units: u64);

    /// Debits `units` more to an earlier charge, as far as there is something left and its window is still open.
    fn debit(&self, state: &mut Self::State, now: Timestamp, mark: Mark, units: u64);

    /// Whether the window is over that a charge was made in: it counts no more, whatever has come since. What has no windows
    /// never is.
    fn is_over(&self, _now: Timestamp, _mark: Mark) -> bool {
        false
    }

    /// The first instant from which the state is the same as a fresh one.
    fn fresh_at(&self, state: &Self::State) -> Timestamp;
}

/// What came of asking for a cost, before it is told where the key then stands.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) wait: u64,
    pub(crate) delay: u64,
    pub(crate) taken: Taken,
}

impl Outcome {
    #[inline]
    pub(crate) fn verdict(&self, standing: Standing) -> Verdict {
        Verdict { standing, wait: self.wait, delay: self.delay }
    }
}

/// The part of a decision that nobody else may disturb: asks, and charges what is admitted. A cost of 0 is admitted and
/// charges nothing.
#[inline]
pub(crate) fn ask_and_take<A: Transition>(algorithm: &A, state: &mut A::State, now: Timestamp, cost: u64) -> Outcome {
    if cost == 0 {
        return Outcome { wait: 0, delay: 0, taken: Taken::default() };
    }
    let wait = if cost > algorithm.capacity() { NEVER } else { algorithm.wait(state, now, cost) };
    if wait > 0 {
        return Outcome { wait, delay: 0, taken: Taken::default() };
    }
    let delay = algorithm.delay(state, now);
    let mark = algorithm.take(state, now, cost);
    Outcome { wait, delay, taken: Taken { cost, mark } }
}

/// µs from `now` to an instant, which may lie after [`Timestamp::MAX`]: cut off there, a wait at the end of time would be 0
/// and admit. It lies within 2^53 µs of a timestamp, so nothing overflows.
pub(crate) fn micros_between(now: Timestamp, later: i64) -> u64 {
    (later - now.as_micros()).max(0).unsigned_abs()
}
