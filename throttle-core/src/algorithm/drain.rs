//! The arithmetic that GCRA, token bucket, leaky meter and shaper share: a debt that drains at an
//! exact rate.

use std::time::Duration;

use super::reciprocal::Divisor;
use super::wire::{Numbers, amounts};
use crate::error::ConfigError;
use crate::rate::{Rate, gcd, part};
use crate::time::EXACT_MAX;

/// The longest debt, in µs, of a drain that loses one grain each: the debt and the time it takes
/// make 2^53 together.
const MOST_SPACED: u64 = EXACT_MAX / 2;

/// Debt is counted in grains: `q` grains make a unit and `p` grains drain each microsecond, where
/// p/q is the rate in lowest terms. So every quantity is a whole number, whatever the rate, and
/// stays below 2^53.
///
/// GCRA counts the debt as time (TAT − now, in 1/p µs), the token bucket as missing tokens (in 1/q
/// token) and the meter as water. The three make the same decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Drain {
    /// Grains drained each microsecond.
    pub(crate) p: Divisor,
    /// Grains in a unit.
    pub(crate) q: Divisor,
    /// Most grains that may be owed.
    pub(crate) depth: u64,
    /// µs in which a full debt drains, rounded up.
    pub(crate) empties_in: u64,
    /// Whole units in a full debt.
    pub(crate) capacity: u64,
}

impl Drain {
    /// A drain that holds `burst` units.
    pub(crate) fn with_burst(rate: Rate, burst: u64) -> Result<Self, ConfigError> {
        let (p, q) = lowest_terms(rate.validate()?);
        let fits = |burst: u64| fitting(p, q, u128::from(burst) * u128::from(q));
        fits(burst).filter(|_| burst > 0).ok_or_else(|| {
            let most = Some(deepest(p) / q).filter(|&most| most > 0);
            let rule = match most {
                Some(most) if burst == 0 => format!(
                    "with a rate of {rate} it must lie between 1 and {most}, and with 0 no \
                        request is ever admitted; \
                     raise it, or leave it out to admit the rate's count at once"
                ),
                Some(most) => format!(
                    "with a rate of {rate} it must lie between 1 and {most} to be counted exactly \
                        (in 1/{q} unit, \
                     below 2^53); lower it, or round the rate so that count and period share \
                     larger factors"
                ),
                None => format!(
                    "no burst can be counted exactly (in 1/{q} unit, below 2^53) with a rate of \
                        {rate}; round the rate \
                     so that count and period share larger factors"
                ),
            };
            ConfigError::new("burst", burst, rule)
        })
    }

    /// A drain that holds what leaves within `max_wait_us`, and one unit more: the one that leaves
    /// at once.
    pub(crate) fn with_wait(rate: Rate, max_wait_us: u64) -> Result<Self, ConfigError> {
        let (p, q) = lowest_terms(rate.validate()?);
        let fits = |wait: u64| fitting(p, q, u128::from(wait) * u128::from(p) + u128::from(q));
        fits(max_wait_us).ok_or_else(|| {
            let most = deepest(p).checked_sub(q).map(|left| left / p);
            let rule = match most {
                Some(most) => format!(
                    "with a rate of {rate} it can be at most {most} to be counted exactly (in \
                        1/{p} microsecond, below \
                     2^53); lower it, or round the rate so that count and period share larger \
                     factors"
                ),
                None => format!("the rate {rate} cannot be counted exactly (below 2^53); round it"),
            };
            ConfigError::new("max_wait in microseconds", max_wait_us, rule)
        })
    }

    pub(crate) fn numbers(&self) -> Numbers {
        Numbers::from_slice(&[self.p.get(), self.q.get(), self.depth].map(u64::cast_signed))
    }

    /// The rate and the depth in grains that such numbers are of, and the grains of a unit.
    pub(crate) fn origin(numbers: &[i64]) -> Option<(Rate, u64, u64)> {
        let [p, q, depth] = amounts(numbers)?;
        Some((Rate::new(p, Duration::from_micros(q)), depth, q))
    }

    /// The rate and the burst that such numbers are of.
    pub(crate) fn burst_origin(numbers: &[i64]) -> Option<(Rate, u64)> {
        let (rate, depth, q) = Self::origin(numbers)?;
        Some((rate, depth.checked_div(q)?))
    }

    /// 1/n of the drain, and its rate. Where the burst is n or more it can be counted whenever this
    /// one can: it holds no more grains, of no smaller size.
    pub(super) fn share(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let burst = part(self.capacity, n);
        let exact = rate
            .share(n)
            .and_then(|rate| Some((Self::with_burst(rate, burst).ok()?, rate)));
        exact.unwrap_or_else(|| {
            let rate = rate.spaced_share(n, MOST_SPACED);
            (
                Self::with_burst(rate, 1).expect("twice the interval is below 2^53"),
                rate,
            )
        })
    }

    /// 1/n of the rate with the same longest wait.
    pub(super) fn share_of_wait(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let wait = (self.depth - self.q.get()) / self.p.get();
        let exact = rate
            .share(n)
            .and_then(|rate| Some((Self::with_wait(rate, wait).ok()?, rate)));
        exact.unwrap_or_else(|| {
            let rate = rate.spaced_share(n, MOST_SPACED);
            let wait = wait.min(MOST_SPACED - rate.period_micros());
            (
                Self::with_wait(rate, wait)
                    .expect("twice the interval and the wait are below 2^53"),
                rate,
            )
        })
    }

    /// Grains still owed after `elapsed` µs.
    #[inline]
    pub(crate) fn after(&self, debt: u64, elapsed: u64) -> u64 {
        debt.saturating_sub(elapsed.min(self.empties_in) * self.p.get())
    }

    /// Grains of `units`, which are at most the capacity.
    #[inline]
    pub(crate) fn grains(&self, units: u64) -> u64 {
        units * self.q.get()
    }

    /// µs until `units` more can be owed; 0 means now.
    #[inline(always)]
    pub(crate) fn wait(&self, debt: u64, units: u64) -> u64 {
        let owed = debt + self.grains(units);
        if owed <= self.depth {
            0
        } else {
            self.micros(owed - self.depth)
        }
    }

    /// Whole units that can still be owed, and µs until there is one more (0 when nothing is owed).
    #[inline(always)]
    pub(crate) fn room(&self, debt: u64) -> (u64, u64) {
        let free = self.depth.saturating_sub(debt);
        let units = self.q.divide(free);
        let next = if debt == 0 {
            0
        } else {
            self.micros(debt + (units + 1) * self.q.get() - self.depth)
        };
        (units, next)
    }

    /// µs in which `grains` drain, rounded up.
    #[inline]
    pub(crate) fn micros(&self, grains: u64) -> u64 {
        self.p.divide_up(grains)
    }
}

/// The envelope: everything a decision computes is below 2^53, exact in an integer here and in a
/// double elsewhere.
fn fitting(p: u64, q: u64, depth: u128) -> Option<Drain> {
    let empties_in = depth.div_ceil(u128::from(p));
    let largest = depth + empties_in * u128::from(p);
    if largest > u128::from(EXACT_MAX) {
        return None;
    }
    let (depth, empties_in) = (depth as u64, empties_in as u64);
    let (p, q) = (Divisor::new(p), Divisor::new(q));
    Some(Drain {
        p,
        q,
        depth,
        empties_in,
        capacity: q.divide(depth),
    })
}

/// The largest depth that [`fitting`] takes: with `steps` the µs in which it drains, it is at most
/// `steps`·p, and together they are at most 2^53 − 1.
fn deepest(p: u64) -> u64 {
    let steps = (EXACT_MAX + p) / (2 * p);
    (steps * p).min(EXACT_MAX - steps * p)
}

fn lowest_terms(rate: Rate) -> (u64, u64) {
    let divisor = gcd(rate.count(), rate.period_micros());
    (rate.count() / divisor, rate.period_micros() / divisor)
}
