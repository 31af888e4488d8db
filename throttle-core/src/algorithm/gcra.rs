use super::drain::Drain;
use super::transition::{Transition, ask};
use super::verdict::{Mark, Outcome, Standing};
use super::wire::{Numbers, Wire, amount};
use crate::error::ConfigError;
use crate::rate::Rate;
use crate::time::Timestamp;

/// The generic cell rate algorithm (ITU-T I.371): one theoretical arrival time (TAT) per key.
///
/// A request of cost `c` is admitted when `max(TAT, now) + c·T − tau <= now`, where the emission
/// interval `T` is period/count and the tolerance `tau` is `burst·T`; equality admits. An unused
/// key admits exactly `burst` units at once, and one more every `T` after that. `T` stays an exact
/// fraction, so no rate drifts.
///
/// State: 16 bytes, the TAT alone. When the clock steps back, a refused key is admitted at the same
/// clock time as without the step.
///
/// ```
/// use throttle_core::{Gcra, Limiter, Policy, Rate};
///
/// let limiter = Limiter::in_memory(Policy::new("api", Gcra::new(Rate::per_hour(60)).burst(2))?)?;
/// assert!(limiter.check("ada", 2).is_admitted());
/// assert!(!limiter.check("ada", 1).is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gcra {
    rate: Rate,
    burst: Option<u64>,
}

impl Gcra {
    /// Units at `rate`. The burst defaults to the rate's count.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate, burst: None }
    }

    /// Most units admitted at one instant. Defaults to the rate's count.
    #[must_use]
    pub const fn burst(mut self, units: u64) -> Self {
        self.burst = Some(units);
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(Arrival, Rate), ConfigError> {
        let drain = Drain::with_burst(self.rate, self.burst.unwrap_or(self.rate.count()))?;
        Ok((Arrival(drain), self.rate))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(_: u8, numbers: &[i64]) -> Option<Self> {
        let (rate, burst) = Drain::burst_origin(numbers)?;
        Some(Self::new(rate).burst(burst))
    }
}

/// GCRA's vocabulary of a drain: the debt as a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arrival(pub(crate) Drain);

/// The theoretical arrival time: `whole` µs and `frac` p-ths of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tat {
    pub(crate) whole: i64,
    pub(crate) frac: u64,
}

impl Arrival {
    /// The debt at `now`. It exceeds the depth only after the clock has stepped back.
    #[inline]
    fn debt(&self, tat: Tat, now: Timestamp) -> Debt {
        let ahead = tat.whole - now.as_micros();
        if ahead < 0 {
            Debt::Grains(0)
        } else if ahead.unsigned_abs() <= self.0.empties_in {
            Debt::Grains(ahead.unsigned_abs() * self.0.p.get() + tat.frac)
        } else {
            Debt::BeyondDepth(ahead.unsigned_abs())
        }
    }

    /// Whole units that remain, and if there are none, the µs until there is one. If there are
    /// some, the effective window is the time of so many units, which is not shorter.
    #[inline(always)]
    fn room(&self, debt: u64, free: u64) -> (u64, u64) {
        let Self(drain) = self;
        match drain.q.divide(free) {
            0 => (0, drain.micros(debt + drain.q.get() - drain.depth)),
            remaining => (remaining, 0),
        }
    }

    /// Where the key stands, with the instant of the next unit in any case.
    pub(crate) fn exact_standing(&self, tat: &Tat, now: Timestamp) -> Standing {
        let ahead = tat.whole - now.as_micros();
        let reset = if ahead < 0 {
            0
        } else {
            ahead.unsigned_abs() + u64::from(tat.frac > 0)
        };
        match self.debt(*tat, now) {
            Debt::Grains(debt) => {
                let (remaining, next) = self.0.room(debt);
                Standing {
                    remaining,
                    reset,
                    next,
                }
            }
            Debt::BeyondDepth(_) => Standing {
                remaining: 0,
                reset,
                next: self.wait(tat, now, 1),
            },
        }
    }

    /// A TAT that is `units` emission intervals later. The division does not depend on the state,
    /// so the processor can do it while it loads the state.
    #[inline(always)]
    pub(crate) fn later(&self, tat: Tat, units: u64) -> Tat {
        let (whole, frac) = self.0.p.split(self.0.grains(units));
        let frac = tat.frac + frac;
        let (carry, frac) = if frac >= self.0.p.get() {
            (1, frac - self.0.p.get())
        } else {
            (0, frac)
        };
        Tat {
            whole: tat.whole + whole.cast_signed() + carry,
            frac,
        }
    }

    /// The decision on a cost of 0 or above the capacity, or after the clock has stepped back so far
    /// that more than the depth is owed: nothing is charged.
    #[cold]
    #[inline(never)]
    fn ask_only(&self, tat: Tat, now: Timestamp, cost: u64) -> (u64, Standing) {
        (ask(self, &tat, now, cost), self.standing(&tat, now))
    }
}

enum Debt {
    Grains(u64),
    BeyondDepth(u64),
}

impl Transition for Arrival {
    type State = Tat;
    const DRAINS: bool = true;

    #[inline]
    fn capacity(&self) -> u64 {
        self.0.capacity
    }

    fn fresh(&self) -> Tat {
        Tat {
            whole: Timestamp::MIN.as_micros(),
            frac: 0,
        }
    }

    #[inline(always)]
    fn wait(&self, tat: &Tat, now: Timestamp, cost: u64) -> u64 {
        match self.debt(*tat, now) {
            Debt::Grains(debt) => self.0.wait(debt, cost),
            Debt::BeyondDepth(ahead) => {
                // ahead + ceil((frac + cost − depth) / p), where the bracket may be negative.
                let over =
                    (tat.frac + self.0.grains(cost)).cast_signed() - self.0.depth.cast_signed();
                let ceil = -(-over).div_euclid(self.0.p.get().cast_signed());
                ahead.saturating_add_signed(ceil)
            }
        }
    }

    #[inline(always)]
    fn take(&self, tat: &mut Tat, now: Timestamp, cost: u64) -> Mark {
        let from = if tat.whole >= now.as_micros() {
            *tat
        } else {
            Tat {
                whole: now.as_micros(),
                frac: 0,
            }
        };
        *tat = self.later(from, cost);
        Mark::at(now)
    }

    fn standing(&self, tat: &Tat, now: Timestamp) -> Standing {
        let standing = self.exact_standing(tat, now);
        let next = if standing.remaining > 0 {
            0
        } else {
            standing.next
        };
        Standing { next, ..standing }
    }

    #[inline(always)]
    fn decide(&self, tat: &mut Tat, now: Timestamp, cost: u64) -> (Outcome, Standing) {
        let Self(drain) = self;
        let from = if tat.whole < now.as_micros() {
            Tat {
                whole: now.as_micros(),
                frac: 0,
            }
        } else {
            *tat
        };
        let ahead = (from.whole - now.as_micros()).cast_unsigned();
        // A cost of 0 wraps around.
        if cost.wrapping_sub(1) >= drain.capacity || ahead > drain.empties_in {
            let (wait, standing) = self.ask_only(*tat, now, cost);
            return (Outcome::uncharged(wait), standing);
        }
        let debt = ahead * drain.p.get() + from.frac;
        let owed = debt + drain.grains(cost);
        if owed > drain.depth {
            let wait = drain.micros(owed - drain.depth);
            // The wait for one unit is that for the next one.
            let (remaining, next) = if cost == 1 {
                (0, wait)
            } else {
                self.room(debt, drain.depth.saturating_sub(debt))
            };
            let standing = Standing {
                remaining,
                reset: ahead + u64::from(from.frac > 0),
                next,
            };
            return (Outcome::uncharged(wait), standing);
        }
        let (whole, frac) = drain.p.split(owed);
        *tat = Tat {
            whole: now.as_micros() + whole.cast_signed(),
            frac,
        };
        let (remaining, next) = self.room(owed, drain.depth - owed);
        let standing = Standing {
            remaining,
            reset: whole + u64::from(frac > 0),
            next,
        };
        (Outcome::charged(cost, Mark::at(now)), standing)
    }

    fn give_back(&self, tat: &mut Tat, now: Timestamp, _: Mark, _: u64, units: u64) {
        let back = self.0.grains(units);
        let (whole, frac) = self.0.p.split(back);
        let (borrow, frac) = if tat.frac >= frac {
            (0, tat.frac - frac)
        } else {
            (1, tat.frac + self.0.p.get() - frac)
        };
        let earlier = Tat {
            whole: tat.whole - whole.cast_signed() - borrow,
            frac,
        };
        *tat = if earlier.whole >= now.as_micros() {
            earlier
        } else {
            Tat {
                whole: now.as_micros(),
                frac: 0,
            }
        };
    }

    fn debit(&self, tat: &mut Tat, now: Timestamp, _: Mark, units: u64) {
        let left = self.standing(tat, now).remaining;
        self.take(tat, now, units.min(left));
    }

    fn fresh_at(&self, tat: &Tat) -> Timestamp {
        Timestamp::from_micros(tat.whole + i64::from(tat.frac > 0))
    }

    fn share(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let (drain, rate) = self.0.share(rate, n);
        (Self(drain), rate)
    }
}

impl Wire for Arrival {
    const LETTER: u8 = b'g';

    fn parameters(&self) -> Numbers {
        self.0.numbers()
    }

    fn numbers(tat: &Tat) -> Numbers {
        Numbers::from_slice(&[tat.whole, tat.frac.cast_signed()])
    }

    fn state(&self, numbers: &[i64]) -> Option<Tat> {
        let &[whole, frac] = numbers else { return None };
        Some(Tat {
            whole,
            frac: amount(frac, self.0.p.get() - 1)?,
        })
    }
}
