//! The contract of an algorithm: what it computes from a state, an instant and a cost.

use super::verdict::{Mark, NEVER, Outcome, Standing};
use crate::rate::Rate;
use crate::time::Timestamp;

/// One algorithm as a pure function of (state, now, cost).
///
/// # Contract
///
/// * Costs are 1 ..= capacity (any, for [`decide`](Self::decide)), durations are microseconds.
/// * No method reads a clock, does I/O or panics. Parameters outside the exact range are refused
///   when the algorithm is built, and instants are bounded by [`Timestamp`].
/// * A step back of the clock admits nothing more than the clock before it did.
pub(crate) trait Transition: Sized {
    type State;

    /// Whether used units become available again evenly over time, and not when a window or an
    /// interval ends.
    const DRAINS: bool = false;

    /// Whether what remains lasts until the window ends, and nothing is added before.
    const ENDS: bool = false;

    /// Most units that can be admitted at one instant.
    fn capacity(&self) -> u64;

    /// The state of a key that was never used.
    fn fresh(&self) -> Self::State;

    /// µs until the cost is admitted: 0 for now.
    fn wait(&self, state: &Self::State, now: Timestamp, cost: u64) -> u64;

    /// Whether an admitted request may have to wait.
    fn delays(&self) -> bool {
        false
    }

    /// Whether a request is refused as long as anything of an earlier one is owed, however little
    /// it costs.
    fn admits_only_when_idle(&self) -> bool {
        false
    }

    /// µs to wait before an admitted request goes on.
    fn delay(&self, _state: &Self::State, _now: Timestamp) -> u64 {
        0
    }

    /// Charges a cost that [`wait`](Self::wait) has just admitted.
    fn take(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> Mark;

    /// Where the key stands at this instant.
    fn standing(&self, state: &Self::State, now: Timestamp) -> Standing;

    /// Asks for `cost` units of a state that the same parameters wrote, and charges them if they
    /// are admitted. A cost of 0 is admitted and charges nothing. Returns where the key stands
    /// then, too. An algorithm may compute all of it in one pass, with the same results.
    #[inline(always)]
    fn decide(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> (Outcome, Standing) {
        let wait = ask(self, state, now, cost);
        let outcome = if wait == 0 && cost > 0 {
            take(self, state, now, cost)
        } else {
            Outcome::uncharged(wait)
        };
        (outcome, self.standing(state, now))
    }

    /// Gives back `units` of an earlier charge of `cost` units, never into a later window.
    fn give_back(&self, state: &mut Self::State, now: Timestamp, mark: Mark, cost: u64, units: u64);

    /// Debits `units` more to an earlier charge, as far as units remain and its window is still
    /// open.
    fn debit(&self, state: &mut Self::State, now: Timestamp, mark: Mark, units: u64);

    /// The mark of the latest charge that still counts, for an algorithm that finds charges by
    /// their marks.
    fn latest(&self, _state: &Self::State, now: Timestamp) -> Mark {
        Mark::at(now)
    }

    /// Whether the window of a charge has ended, so that the charge no longer counts. Always
    /// `false` for an algorithm without windows.
    fn is_over(&self, _now: Timestamp, _mark: Mark) -> bool {
        false
    }

    /// The first instant from which the state is the same as a fresh one.
    fn fresh_at(&self, state: &Self::State) -> Timestamp;

    /// 1/n of what this admits at `rate`, and the rate of that.
    fn share(&self, rate: Rate, n: u64) -> (Self, Rate);
}

/// µs until `cost` is admitted: 0 for now, [`NEVER`] for a cost above the capacity. A cost of 0 is
/// always admitted.
#[inline(always)]
pub(crate) fn ask<A: Transition>(
    algorithm: &A,
    state: &A::State,
    now: Timestamp,
    cost: u64,
) -> u64 {
    if cost == 0 {
        0
    } else if cost > algorithm.capacity() {
        NEVER
    } else {
        algorithm.wait(state, now, cost)
    }
}

/// Charges `cost` units that [`ask`] has just admitted.
#[inline(always)]
pub(crate) fn take<A: Transition>(
    algorithm: &A,
    state: &mut A::State,
    now: Timestamp,
    cost: u64,
) -> Outcome {
    let delay = algorithm.delay(state, now);
    let mark = algorithm.take(state, now, cost);
    Outcome {
        delay,
        ..Outcome::charged(cost, mark)
    }
}

/// µs from `now` to an instant, which may lie after [`Timestamp::MAX`]: cut off there, a wait at
/// the end of time would be 0 and admit. It lies within 2^53 µs of a timestamp, so nothing
/// overflows.
#[inline]
pub(crate) fn micros_between(now: Timestamp, later: i64) -> u64 {
    (later - now.as_micros()).max(0).unsigned_abs()
}
