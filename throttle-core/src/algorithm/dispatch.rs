//! Runs a step of whichever algorithm an [`Algorithm`] holds.

use super::kind::Algorithm;
use super::stored::{Repr, StateFormat, Words};
use super::transition::{Transition, ask};
use super::verdict::{Mark, Standing, StateCharge};
use super::wire::Wire;
use super::{Kind, each};
use crate::rate::Rate;
use crate::time::Timestamp;

/// A step to run on whichever algorithm it is. The step is compiled once for each algorithm, so one
/// branch finds the algorithm and the state stays in registers.
pub(crate) trait Visitor {
    type Output;
    fn visit<A: Wire<State: StateFormat>>(self, algorithm: &A) -> Self::Output;
}

impl Algorithm {
    /// The units that are admitted per period. For a monthly quota the period is 31 days.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most units that can be admitted at one instant, which is what an unused key has. A
    /// larger cost is never admitted.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u64 {
        each!(&self.kind, a => a.capacity())
    }

    /// The effective window of the rate-limit headers, in µs: the time in which the client can use
    /// no more than `remaining`.
    #[must_use]
    pub(crate) fn effective_window(&self, standing: Standing) -> u64 {
        if each!(&self.kind, a => ends(a)) {
            return standing.next;
        }
        // The pair of headers must not promise more than the rate: r units in at least r emission
        // intervals.
        let micros = u128::from(standing.remaining) * u128::from(self.rate.period_micros());
        let paced = micros.div_ceil(u128::from(self.rate.count().max(1)));
        standing.next.max(u64::try_from(paced).unwrap_or(u64::MAX))
    }

    /// Returns whether used units become available again evenly over time, and not when a window or
    /// an interval ends.
    #[must_use]
    pub fn drains(&self) -> bool {
        each!(&self.kind, a => drains(a))
    }

    /// Whether a state means the same to both.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        self.kind == other.kind
    }

    /// Whether the state fits two words.
    #[inline]
    pub(crate) fn is_small(&self) -> bool {
        each!(&self.kind, a => is_small(a))
    }

    /// Returns whether the algorithm delays requests: an admitted request may have to wait.
    #[must_use]
    pub fn delays(&self) -> bool {
        each!(&self.kind, a => a.delays())
    }

    /// Whether a request is refused as long as anything of an earlier one is owed, however little
    /// it costs.
    pub(super) fn admits_only_when_idle(&self) -> bool {
        each!(&self.kind, a => a.admits_only_when_idle())
    }

    pub(crate) fn fresh_repr(&self) -> Repr {
        each!(&self.kind, a => a.fresh().into_repr())
    }

    /// The state of a key that was never used, if two words hold it, and else anything.
    pub(crate) fn fresh_words(&self) -> Words {
        each!(&self.kind, a => a.fresh().words().unwrap_or(Words { instant: 0, amount: 0 }))
    }

    #[inline(always)]
    pub(crate) fn accept<V: Visitor>(&self, visitor: V) -> V::Output {
        each!(&self.kind, a => visitor.visit(a))
    }

    /// µs until `cost` is admitted: 0 for now, [`NEVER`](super::verdict::NEVER) for a cost above
    /// the capacity. Like the methods below, it takes a state that another algorithm wrote as
    /// fresh.
    pub(super) fn wait(&self, repr: &Repr, now: Timestamp, cost: u64) -> u64 {
        each!(&self.kind, a => match StateFormat::read(repr, |state| ask(a, state, now, cost)) {
            Some(wait) => wait,
            None => ask(a, &a.fresh(), now, cost),
        })
    }

    /// Charges an admitted cost. Returns the µs to wait before going on, and the charge.
    pub(super) fn take(&self, repr: &mut Repr, now: Timestamp, cost: u64) -> (u64, StateCharge) {
        let (delay, mark) = each!(&self.kind, a => {
            let charge = |state: &mut _| (a.delay(state, now), a.take(state, now, cost));
            StateFormat::change(repr, charge).unwrap_or_else(|| {
                let mut state = a.fresh();
                let charged = charge(&mut state);
                *repr = state.into_repr();
                charged
            })
        });
        (delay, StateCharge { cost, mark })
    }

    pub(super) fn standing(&self, repr: &Repr, now: Timestamp) -> Standing {
        each!(&self.kind, a => match StateFormat::read(repr, |state| a.standing(state, now)) {
            Some(standing) => standing,
            None => a.standing(&a.fresh(), now),
        })
    }

    /// Makes `taken` a charge of `actual` units: gives back the difference, or debits it as far as
    /// units remain.
    pub(crate) fn settle(&self, repr: &mut Repr, now: Timestamp, taken: StateCharge, actual: u64) {
        let StateCharge { cost, mark } = taken;
        each!(&self.kind, a => {
            // A state that another algorithm wrote holds nothing of this charge.
            let _ = StateFormat::change(repr, |state| {
                if actual <= cost {
                    // An algorithm with a larger capacity may have made the charge; this state
                    // holds no more than its own.
                    let most = a.capacity();
                    a.give_back(state, now, mark, cost.min(most), (cost - actual).min(most));
                } else {
                    a.debit(state, now, mark, actual - cost);
                }
            });
        });
    }

    /// The mark of the latest charge that still counts.
    pub(super) fn latest(&self, repr: &Repr, now: Timestamp) -> Mark {
        each!(&self.kind, a => StateFormat::read(repr, |state| a.latest(state, now)).unwrap_or_default())
    }

    /// Whether the window of a charge has ended.
    pub(crate) fn is_over(&self, now: Timestamp, mark: Mark) -> bool {
        each!(&self.kind, a => a.is_over(now, mark))
    }

    #[inline]
    pub(crate) fn repr_fresh_at(&self, repr: &Repr) -> Timestamp {
        if let Repr::Excepted(exception, beneath) = repr {
            return self.repr_fresh_at(beneath).max(exception.until);
        }
        each!(&self.kind, a => StateFormat::read(repr, |state| a.fresh_at(state)).unwrap_or(Timestamp::MIN))
    }
}

const fn drains<A: Transition>(_: &A) -> bool {
    A::DRAINS
}

const fn ends<A: Transition>(_: &A) -> bool {
    A::ENDS
}

const fn is_small<A: Transition<State: StateFormat>>(_: &A) -> bool {
    A::State::IS_SMALL
}
