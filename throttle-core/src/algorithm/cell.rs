//! A key's state together with the parameters that wrote it: the one place where requests meet states.
//!
//! [`Cell::wait`] asks without changing anything, [`Cell::take`] charges, [`Cell::standing`] reports and
//! [`Cell::settle`] corrects an earlier charge. When a limit was changed or a key moves to another tier, the state was
//! written by other parameters than those that decide. [`Cell::counted`] reads such a state in the terms of the
//! parameters that wrote it, and the first charge rewrites it.
//!
//! [`decide`] is the same decision on a state whose algorithm is known when the code is compiled.

use super::carry::{Carry, Conversion};
use super::dispatch::Algorithm;
use super::stored::Repr;
use super::transition::{Transition, ask};
use super::verdict::{NEVER, Standing, Taken};
use crate::time::Timestamp;

/// A state, the parameters that decide about it, and the instant at which they do.
#[derive(Clone)]
pub(crate) struct Cell<'a> {
    by: &'a Algorithm,
    repr: Repr,
    /// More may have been used than the state tells: it was cut to a smaller capacity when the parameters changed.
    clipped: bool,
    /// The other parameters that wrote the state, and how their units are carried over.
    other: Option<(&'a Algorithm, Carry)>,
    at: Timestamp,
    /// µs by which the clock is behind `at`.
    lag: u64,
    /// Whether `at` counts only until the first charge; later requests are decided at the clock's time.
    until_charged: bool,
}

impl<'a> Cell<'a> {
    /// The cell of a key that was never used.
    pub(crate) fn fresh(by: &'a Algorithm, at: Timestamp) -> Self {
        Self::new(by, by.fresh_repr(), false, at)
    }

    /// A state that the same parameters wrote.
    pub(crate) fn new(by: &'a Algorithm, repr: Repr, clipped: bool, at: Timestamp) -> Self {
        Self { by, repr, clipped, other: None, at, lag: 0, until_charged: false }
    }

    /// Names the parameters that wrote the state. They may be the same.
    pub(crate) fn written_by(mut self, writer: &'a Algorithm, carry: Carry) -> Self {
        self.other = Some((writer, carry)).filter(|_| !writer.is_alike(self.by));
        self
    }

    /// Sets the clock's own time, which may be behind the instant that counts.
    pub(crate) fn behind(mut self, now: Timestamp) -> Self {
        self.lag = self.at.micros_since(now).unsigned_abs();
        self
    }

    /// Ends the lag with the first charge: the key has a slot then, and its next request is decided at the clock's
    /// time.
    pub(crate) fn until_charged(mut self) -> Self {
        self.until_charged = true;
        self
    }

    /// The parameters that decide.
    pub(crate) fn by(&self) -> &'a Algorithm {
        self.by
    }

    /// Whether other parameters wrote the state.
    pub(crate) fn is_foreign(&self) -> bool {
        self.other.is_some()
    }

    /// The state, and whether more may have been used than it tells.
    pub(crate) fn into_state(self) -> (Repr, bool) {
        (self.repr, self.clipped)
    }

    /// Charges all that the limit holds, for a charge of more than remains: part of a unit that has drained does not
    /// remain. Everything counts as used that a state with a larger capacity could tell.
    pub(crate) fn fill(&mut self) {
        (self.repr, self.clipped, self.other) = (self.charged(self.by.capacity()), true, None);
    }

    /// µs until `cost` is admitted: 0 for now, [`NEVER`] for a cost above the capacity.
    pub(crate) fn wait(&self, cost: u64) -> u64 {
        match self.wait_from_at(cost) {
            NEVER => NEVER,
            wait => self.since_now(wait),
        }
    }

    /// Charges an admitted cost. Returns the µs to wait before going on, and the charge.
    pub(crate) fn take(&mut self, cost: u64) -> (u64, Taken) {
        self.carry_over();
        // An idle key has nothing left that the state could fail to tell.
        self.clipped = self.clipped && self.by.standing(&self.repr, self.at).reset > 0;
        let (delay, taken) = self.by.take(&mut self.repr, self.at, cost);
        // Until the clock has caught up, nothing may leave.
        let delay = if self.by.delays() { delay + self.lag } else { delay };
        if self.until_charged {
            self.at = Timestamp::from_micros(self.at.as_micros().saturating_sub_unsigned(self.lag));
            self.lag = 0;
        }
        (delay, taken)
    }

    /// Where the key stands.
    pub(crate) fn standing(&self) -> Standing {
        let Standing { remaining, reset, next } = self.standing_at();
        Standing { remaining, reset: self.since_now(reset), next: self.since_now(next) }
    }

    /// Makes an earlier charge one of `actual` units: gives back the difference, or debits it as far as something is
    /// left.
    pub(crate) fn settle(&mut self, taken: Taken, actual: u64) {
        let Some((writer, _)) = self.other else {
            return self.by.settle(&mut self.repr, self.at, taken, actual);
        };
        if writer.standing(&self.repr, self.at).reset == 0 {
            // The key is idle, so which parameters wrote its state does not matter.
            let mut own = Self::fresh(self.by, self.at);
            own.settle(taken, actual);
            // A settlement with no effect does not write.
            if own.standing_at().reset > 0 {
                *self = own;
            }
        } else if !self.by.is_over(self.at, taken.mark)
            && let Some((cost, actual)) = self.carried_back().and_then(|to| to.settlement(taken.cost, actual))
        {
            writer.settle(&mut self.repr, self.at, Taken { cost, ..taken }, actual);
        }
    }

    /// Rewrites a state of other parameters: what they counted as used stays used, as far as the carry rule says.
    pub(crate) fn carry_over(&mut self) {
        let Some(conversion) = self.conversion() else { return };
        let counted = self.counted();
        let carried = self.charged(conversion.used(counted));
        (self.repr, self.clipped, self.other) = (carried, conversion.clips(counted), None);
    }

    /// An unused state that is charged so many units at once.
    fn charged(&self, units: u64) -> Repr {
        let mut repr = self.by.fresh_repr();
        if units > 0 {
            self.by.take(&mut repr, self.at, units);
        }
        repr
    }

    fn wait_from_at(&self, cost: u64) -> u64 {
        match (self.other, self.conversion()) {
            (Some((writer, _)), Some(conversion)) if cost > 0 && cost <= conversion.to => {
                // The writer admits this much exactly when no more is used than leaves room for the cost.
                writer.wait(&self.repr, self.at, conversion.from - conversion.most(cost))
            }
            _ => self.by.wait(&self.repr, self.at, cost),
        }
    }

    fn standing_at(&self) -> Standing {
        let (Some((writer, _)), Some(conversion)) = (self.other, self.conversion()) else {
            return self.by.standing(&self.repr, self.at);
        };
        match conversion.used(self.counted()) {
            0 => self.by.standing(&self.by.fresh_repr(), self.at),
            used => {
                let remaining = conversion.to - used;
                let reset = writer.standing(&self.repr, self.at).reset;
                Standing { remaining, reset, next: self.wait_from_at(remaining + 1) }
            }
        }
    }

    /// Units that the other parameters count as used. What remains is rounded down, so this is rounded up.
    fn counted(&self) -> u64 {
        let writer = self.other.map_or(self.by, |(writer, _)| writer);
        writer.capacity().saturating_sub(writer.standing(&self.repr, self.at).remaining)
    }

    /// From the parameters that wrote the state to those that decide.
    fn conversion(&self) -> Option<Conversion> {
        let (writer, rule) = self.other?;
        Some(Conversion { rule, from: writer.capacity(), to: self.by.capacity(), clipped: self.clipped })
    }

    /// From the parameters that decide to those that wrote the state.
    fn carried_back(&self) -> Option<Conversion> {
        let (writer, rule) = self.other?;
        Some(Conversion { rule, from: self.by.capacity(), to: writer.capacity(), clipped: false })
    }

    /// A wait from the instant that counts, as a wait from the clock's time.
    fn since_now(&self, micros: u64) -> u64 {
        if micros > 0 { micros + self.lag } else { 0 }
    }
}

/// What a request did to a state.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    /// µs until the cost is admitted.
    pub(crate) wait: u64,
    /// µs to wait before going on.
    pub(crate) delay: u64,
    pub(crate) taken: Taken,
}

/// Asks for `cost` units of a state that the same parameters wrote, and charges them if they are admitted and `charge`
/// is set. A cost of 0 is admitted and charges nothing.
#[inline(always)]
pub(crate) fn decide<A: Transition>(
    algorithm: &A,
    state: &mut A::State,
    now: Timestamp,
    cost: u64,
    charge: bool,
) -> Outcome {
    let wait = ask(algorithm, state, now, cost);
    if wait > 0 || cost == 0 || !charge {
        return Outcome { wait, delay: 0, taken: Taken::default() };
    }
    take(algorithm, state, now, cost)
}

/// Charges `cost` units that [`ask`] has just admitted.
#[inline(always)]
pub(crate) fn take<A: Transition>(algorithm: &A, state: &mut A::State, now: Timestamp, cost: u64) -> Outcome {
    let delay = algorithm.delay(state, now);
    let mark = algorithm.take(state, now, cost);
    Outcome { wait: 0, delay, taken: Taken { cost, mark } }
}
