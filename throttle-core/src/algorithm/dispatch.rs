//! One type for all algorithms, which runs the transition of the one that it holds.

use super::calendar_quota::Civil;
use super::fixed_window::{Counter, Fixed};
use super::gcra::Arrival;
use super::interval_bucket::Portions;
use super::leaky_bucket::Queue;
use super::level::{Leveled, Tokens, Water};
use super::sliding_log::Trailing;
use super::sliding_window::Estimate;
use super::stored::{Repr, Stored};
use super::transition::{Transition, ask};
use super::verdict::{Mark, Standing, Taken};
use super::wire::Wire;
use crate::rate::Rate;
use crate::time::Timestamp;

/// A validated algorithm, ready to decide.
///
/// ```
/// use throttle_core::algorithm::{Algorithm, Gcra};
/// use throttle_core::{Rate, Timestamp};
///
/// let gcra = Gcra::new(Rate::per_second(10)).burst(2).build()?;
/// let now = Timestamp::EPOCH;
/// let (state, first) = gcra.decide(gcra.fresh(), now, 2);
/// let (state, second) = gcra.decide(state, now, 1);
/// assert!(first.is_admitted() && !second.is_admitted());
/// assert_eq!(second.retry_after_micros(), Some(100_000));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm {
    pub(super) kind: Kind,
    rate: Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Gcra(Arrival),
    TokenBucket(Leveled<Tokens>),
    LeakyMeter(Leveled<Water>),
    IntervalBucket(Portions),
    FixedWindow(Counter<Fixed>),
    SlidingWindow(Estimate),
    SlidingLog(Trailing),
    CalendarQuota(Counter<Civil>),
    LeakyBucket(Queue),
}

/// Runs one expression for whichever algorithm it is.
macro_rules! each {
    ($kind:expr, $algorithm:ident => $run:expr) => {
        match $kind {
            Kind::Gcra($algorithm) => $run,
            Kind::TokenBucket($algorithm) => $run,
            Kind::LeakyMeter($algorithm) => $run,
            Kind::IntervalBucket($algorithm) => $run,
            Kind::FixedWindow($algorithm) => $run,
            Kind::SlidingWindow($algorithm) => $run,
            Kind::SlidingLog($algorithm) => $run,
            Kind::CalendarQuota($algorithm) => $run,
            Kind::LeakyBucket($algorithm) => $run,
        }
    };
}

/// A step to run on whichever algorithm it is. The step is compiled once for each algorithm, so one branch finds the
/// algorithm and the state stays in registers.
pub(crate) trait Visitor {
    type Output;
    fn visit<A: Wire<State: Stored>>(self, algorithm: &A) -> Self::Output;
}

impl Algorithm {
    pub(super) const fn from_kind(kind: Kind, rate: Rate) -> Self {
        Self { kind, rate }
    }

    /// The name of the algorithm: `gcra`, `token_bucket`, `leaky_meter`, `interval_bucket`, `fixed_window`,
    /// `sliding_window`, `sliding_log`, `calendar_quota` or `leaky_bucket`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Gcra(_) => "gcra",
            Kind::TokenBucket(_) => "token_bucket",
            Kind::LeakyMeter(_) => "leaky_meter",
            Kind::IntervalBucket(_) => "interval_bucket",
            Kind::FixedWindow(_) => "fixed_window",
            Kind::SlidingWindow(_) => "sliding_window",
            Kind::SlidingLog(_) => "sliding_log",
            Kind::CalendarQuota(_) => "calendar_quota",
            Kind::LeakyBucket(_) => "leaky_bucket",
        }
    }

    /// The units that are admitted per period. For a monthly quota the period is 31 days.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The most units that can be admitted at one instant, which is what an unused key has. A larger cost is never
    /// admitted.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u64 {
        each!(&self.kind, a => a.capacity())
    }

    /// The effective window of the rate-limit headers, in µs: the time in which the client can use no more than
    /// `remaining`.
    #[must_use]
    pub(crate) fn effective_window(&self, standing: Standing) -> u64 {
        match &self.kind {
            // What remains of a window lasts until the window ends, and nothing is added before.
            Kind::FixedWindow(_) | Kind::CalendarQuota(_) => standing.next,
            // Otherwise the pair must not promise more than the rate: r units in at least r emission intervals.
            _ => {
                let micros = u128::from(standing.remaining) * u128::from(self.rate.period_micros());
                let paced = micros.div_ceil(u128::from(self.rate.count().max(1)));
                standing.next.max(u64::try_from(paced).unwrap_or(u64::MAX))
            }
        }
    }

    /// Returns whether used units become available again evenly over time, and not when a window or an interval ends.
    #[must_use]
    pub const fn drains(&self) -> bool {
        matches!(self.kind, Kind::Gcra(_) | Kind::TokenBucket(_) | Kind::LeakyMeter(_))
    }

    /// Whether a state means the same to both.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        self.kind == other.kind
    }

    /// Whether the state fits two words.
    #[inline]
    pub(crate) const fn is_small(&self) -> bool {
        !matches!(self.kind, Kind::SlidingWindow(_) | Kind::SlidingLog(_) | Kind::LeakyBucket(_))
    }

    /// Returns whether the algorithm delays requests: an admitted request may have to wait.
    #[must_use]
    pub const fn delays(&self) -> bool {
        matches!(self.kind, Kind::LeakyBucket(queue) if !queue.is_without_delay())
    }

    /// Whether a request is refused as long as anything of an earlier one is owed, however little it costs.
    pub(super) const fn admits_only_when_idle(&self) -> bool {
        matches!(self.kind, Kind::LeakyBucket(queue) if queue.is_without_delay())
    }

    pub(crate) fn fresh_repr(&self) -> Repr {
        each!(&self.kind, a => a.fresh().into_repr())
    }

    #[inline(always)]
    pub(crate) fn accept<V: Visitor>(&self, visitor: V) -> V::Output {
        each!(&self.kind, a => visitor.visit(a))
    }

    /// µs until `cost` is admitted: 0 for now, [`NEVER`](super::verdict::NEVER) for a cost above the capacity. Like the
    /// methods below, it takes a state that another algorithm wrote as fresh.
    pub(super) fn wait(&self, repr: &Repr, now: Timestamp, cost: u64) -> u64 {
        each!(&self.kind, a => match Stored::read(repr, |state| ask(a, state, now, cost)) {
            Some(wait) => wait,
            None => ask(a, &a.fresh(), now, cost),
        })
    }

    /// Charges an admitted cost. Returns the µs to wait before going on, and the charge.
    pub(super) fn take(&self, repr: &mut Repr, now: Timestamp, cost: u64) -> (u64, Taken) {
        let (delay, mark) = each!(&self.kind, a => {
            let charge = |state: &mut _| (a.delay(state, now), a.take(state, now, cost));
            Stored::change(repr, charge).unwrap_or_else(|| {
                let mut state = a.fresh();
                let charged = charge(&mut state);
                *repr = state.into_repr();
                charged
            })
        });
        (delay, Taken { cost, mark })
    }

    pub(super) fn standing(&self, repr: &Repr, now: Timestamp) -> Standing {
        each!(&self.kind, a => match Stored::read(repr, |state| a.standing(state, now)) {
            Some(standing) => standing,
            None => a.standing(&a.fresh(), now),
        })
    }

    /// Makes `taken` a charge of `actual` units: gives back the difference, or debits it as far as units remain.
    pub(crate) fn settle(&self, repr: &mut Repr, now: Timestamp, taken: Taken, actual: u64) {
        let Taken { cost, mark } = taken;
        each!(&self.kind, a => {
            // A state that another algorithm wrote holds nothing of this charge.
            let _ = Stored::change(repr, |state| {
                if actual <= cost {
                    // An algorithm with a larger capacity may have made the charge; this state holds no more than its
                    // own.
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
        each!(&self.kind, a => Stored::read(repr, |state| a.latest(state, now)).unwrap_or_default())
    }

    /// Whether the window of a charge has ended.
    pub(crate) fn is_over(&self, now: Timestamp, mark: Mark) -> bool {
        each!(&self.kind, a => a.is_over(now, mark))
    }

    #[inline]
    pub(crate) fn repr_fresh_at(&self, repr: &Repr) -> Timestamp {
        each!(&self.kind, a => Stored::read(repr, |state| a.fresh_at(state)).unwrap_or(Timestamp::MIN))
    }
}
