//! A key's state and the parameters that decide about it: the one place where requests meet states.
//!
//! [`Cell::wait`] asks without changing anything, [`Cell::take`] charges, [`Cell::standing`]
//! reports and [`Cell::settle`] corrects an earlier charge.
//!
//! A key has one state, and the state names the parameters that wrote it. A call may carry other
//! parameters: its limit was changed, its key has moved to another tier, or two versions of a
//! program share a store. Other parameters read the state as so many used units: those that the
//! writer counts at this instant, at most their own capacity. They admit a cost once the writer
//! counts few enough, and write the state anew with the first charge.
//!
//! [`Transition::decide`](super::Transition::decide) is the same decision on a state whose
//! algorithm is known when the code is compiled.

use std::borrow::Cow;
use std::sync::Arc;

use super::exception::Exception;
use super::kind::Algorithm;
use super::stored::Repr;
use super::verdict::{NEVER, Standing, StateCharge};
use crate::time::Timestamp;

/// The parameters that wrote a state. Those that have a number are lent, because to copy them costs
/// more than to read the state.
pub(crate) type Writer<'a> = Cow<'a, Arc<Algorithm>>;

/// The state of a key, the parameters that decide about it, and the instant at which they do.
#[derive(Clone)]
pub(crate) struct Cell<'a> {
    pub(super) by: &'a Algorithm,
    /// Borrowed where only a wait or a standing is wanted.
    pub(super) repr: Cow<'a, Repr>,
    /// The parameters that wrote the state, as long as they are others than `by`.
    pub(super) writer: Option<Writer<'a>>,
    pub(super) at: Timestamp,
    /// What stands over the state.
    pub(super) exception: Option<Box<Exception>>,
    /// µs by which the clock is behind `at`.
    pub(super) lag: u64,
    /// Whether `at` counts only until the first charge; later requests are decided at the clock's
    /// time.
    pub(super) until_charged: bool,
    /// Units that must stay free.
    pub(super) reserve: u64,
}

impl<'a> Cell<'a> {
    /// The cell of a key that was never used.
    pub(crate) fn fresh(by: &'a Algorithm, at: Timestamp) -> Self {
        Self::new(by, None, by.fresh_repr(), at)
    }

    /// A state that the parameters `writer` wrote, or without them `by`.
    pub(crate) fn new(
        by: &'a Algorithm,
        writer: Option<Writer<'a>>,
        repr: Repr,
        at: Timestamp,
    ) -> Self {
        let writer = writer.filter(|writer| !writer.is_alike(by));
        let (exception, repr) = repr.without_exception();
        Self {
            by,
            repr: Cow::Owned(repr),
            writer,
            at,
            exception,
            lag: 0,
            until_charged: false,
            reserve: 0,
        }
    }

    /// Sets the clock's own time, which may be behind the instant that counts.
    pub(crate) fn behind(mut self, now: Timestamp) -> Self {
        self.lag = self.at.micros_since(now).unsigned_abs();
        self
    }

    /// Ends the lag with the first charge: the key has a slot then, and its next request is decided
    /// at the clock's time.
    pub(crate) fn until_charged(mut self) -> Self {
        self.until_charged = true;
        self
    }

    /// Sets the units that a cost must leave free.
    pub(crate) fn leave(&mut self, reserve: u64) {
        self.reserve = reserve;
    }

    /// Whether the deciding parameters have written the state.
    pub(crate) fn is_own(&self) -> bool {
        self.writer.is_none()
    }

    pub(crate) fn into_repr(self) -> Repr {
        self.repr.into_owned().beneath(self.exception)
    }

    /// µs until `cost` is admitted: 0 for now, [`NEVER`] for a cost that exceeds the capacity
    /// together with the reserve.
    pub(crate) fn wait(&self, cost: u64) -> u64 {
        if let Some(exception) = self.in_force() {
            return self.wait_under(exception, cost);
        }
        match self.wait_from_at(if cost > 0 {
            cost.saturating_add(self.reserve)
        } else {
            0
        }) {
            NEVER => NEVER,
            wait => self.since_now(wait),
        }
    }

    /// Charges an admitted cost. Returns the µs to wait before going on, and the charge.
    pub(crate) fn take(&mut self, cost: u64) -> (u64, StateCharge) {
        if let Some(Exception { treatment, .. }) = self.in_force().cloned() {
            return self.take_under(&treatment, cost);
        }
        self.forget_past();
        if let Some(writer) = self.writer.take() {
            self.repr = Cow::Owned(used_now(self.by, self.used(&writer), self.at));
        }
        let (delay, taken) = self.by.take(self.repr.to_mut(), self.at, cost);
        // Until the clock has caught up, nothing may leave.
        let delay = if self.by.delays() {
            delay + self.lag
        } else {
            delay
        };
        if self.until_charged {
            self.at = Timestamp::from_micros(self.at.as_micros().saturating_sub_unsigned(self.lag));
            self.lag = 0;
        }
        (delay, taken)
    }

    /// Where the key stands for those that leave the reserve free.
    pub(crate) fn standing(&self) -> Standing {
        if let Some(exception) = self.in_force() {
            return self.standing_under(exception);
        }
        let Standing {
            mut remaining,
            reset,
            mut next,
        } = self.standing_at();
        if self.reserve > 0 {
            // A unit that comes back to the reserve is nothing more for the call.
            next =
                next.max(self.wait_from_at(self.reserve.saturating_add(1).min(self.by.capacity())));
            remaining = remaining.saturating_sub(self.reserve);
        }
        Standing {
            remaining,
            reset: self.since_now(reset),
            next: self.since_now(next),
        }
    }

    /// Makes an earlier charge under the deciding parameters one of `actual` units: gives back the
    /// difference, or debits it as far as something is left. Where other parameters have charged
    /// the key since, their latest charge stands for this one, so no more is given back than still
    /// counts there.
    pub(crate) fn settle(&mut self, taken: StateCharge, actual: u64) {
        let (by, at) = (self.by, self.at);
        let Some(writer) = &self.writer else {
            return by.settle(self.repr.to_mut(), at, taken, actual);
        };
        if by.is_over(at, taken.mark) {
            return;
        }
        if writer.standing(&self.repr, at).reset > 0 {
            let mark = writer.latest(&self.repr, at);
            return writer.settle(
                self.repr.to_mut(),
                at,
                StateCharge { mark, ..taken },
                actual,
            );
        }
        // The store may have dropped such a state already. The result must be the same, so the
        // writer does not count.
        let mut repr = by.fresh_repr();
        by.settle(&mut repr, at, taken, actual);
        if by.standing(&repr, at).reset > 0 {
            (self.repr, self.writer) = (Cow::Owned(repr), None);
        }
    }

    fn wait_from_at(&self, cost: u64) -> u64 {
        let (capacity, Some(writer)) = (self.by.capacity(), &self.writer) else {
            return self.by.wait(&self.repr, self.at, cost);
        };
        if cost == 0 || cost > capacity {
            return if cost == 0 { 0 } else { NEVER };
        }
        // The writer admits all but so many units exactly when it counts no more than they leave
        // room for.
        match if self.by.admits_only_when_idle() {
            0
        } else {
            capacity - cost
        } {
            0 => writer.standing(&self.repr, self.at).reset,
            most => writer.wait(&self.repr, self.at, writer.capacity().saturating_sub(most)),
        }
    }

    fn standing_at(&self) -> Standing {
        let Some(writer) = &self.writer else {
            return self.by.standing(&self.repr, self.at);
        };
        match self.used(writer) {
            0 => self.by.standing(&self.by.fresh_repr(), self.at),
            used => {
                let remaining = if self.by.admits_only_when_idle() {
                    0
                } else {
                    self.by.capacity() - used
                };
                let reset = writer.standing(&self.repr, self.at).reset;
                Standing {
                    remaining,
                    reset,
                    next: self.wait_from_at(remaining + 1),
                }
            }
        }
    }

    /// Units that count as used where other parameters have written the state. What remains to
    /// those is rounded down, so this is rounded up. A shaper holds a part of a unit beyond its
    /// capacity, which counts as one, too.
    fn used(&self, writer: &Algorithm) -> u64 {
        counted(writer, &self.repr, self.at).min(self.by.capacity())
    }

    /// The state of which everything that counts now was used at another instant.
    pub(crate) fn moved_to(self, at: Timestamp) -> Repr {
        used_now(
            self.by,
            self.used(self.writer.as_deref().map_or(self.by, |writer| writer)),
            at,
        )
    }

    /// A wait from the instant that counts, as a wait from the clock's time.
    fn since_now(&self, micros: u64) -> u64 {
        if micros > 0 { micros + self.lag } else { 0 }
    }
}

/// Whole units that a state's own parameters count.
fn counted(writer: &Algorithm, repr: &Repr, at: Timestamp) -> u64 {
    let standing = writer.standing(repr, at);
    // Bytes that another program wrote may say that units are used and none is owed: then the
    // latter counts.
    if standing.reset > 0 {
        writer.capacity().saturating_sub(standing.remaining).max(1)
    } else {
        0
    }
}

/// A state with so many units used at this instant.
fn used_now(by: &Algorithm, used: u64, at: Timestamp) -> Repr {
    let mut repr = by.fresh_repr();
    if used > 0 {
        by.take(&mut repr, at, used);
    }
    repr
}
