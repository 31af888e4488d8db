use super::drain::Drain;
use super::transition::{Transition, micros_between};
use super::verdict::{Mark, Standing};
use super::wire::{Numbers, Wire, amount};
use crate::error::ConfigError;
use crate::rate::Rate;
use crate::time::Timestamp;

/// The generic cell rate algorithm (ITU-T I.371): one theoretical arrival time (TAT) per key.
///
/// A request of cost `c` is admitted when `max(TAT, now) + c·T − tau <= now`, where the emission interval `T` is
/// period/count and the tolerance `tau` is `burst·T`; equality admits. An unused key admits exactly `burst` units at
/// once, and one more every `T` after that. `T` stays an exact fraction, so no rate drifts.
///
/// State: 16 bytes, the TAT alone. When the clock steps back, a refused key is admitted at the same clock time as
/// without the step.
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
}

/// GCRA's vocabulary of a drain: the debt as a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival(pub(crate) Drain);

/// The theoretical arrival time: `whole` µs and `frac` p-ths of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tat {
    pub(crate) whole: i64,
    pub(crate) frac: u64,
}

impl Arrival {
    /// The debt at `now`. A debt that exceeds the depth, as after a step back of the clock, may be cut off above it.
    #[inline]
    fn debt(&self, tat: Tat, now: Timestamp) -> u64 {
        let ahead = tat.whole - now.as_micros();
        let grains = ahead.cast_unsigned().min(self.0.empties_in + 1) * self.0.p.get() + tat.frac;
        if ahead < 0 { 0 } else { grains }
    }

    /// The TAT of a debt at `now`.
    #[inline]
    fn tat(&self, now: Timestamp, debt: u64) -> Tat {
        let (whole, frac) = self.0.p.split(debt);
        Tat { whole: now.as_micros() + whole.cast_signed(), frac }
    }

    /// µs until TAT − now is no more than tau − c·T.
    #[inline]
    fn until(&self, tat: Tat, now: Timestamp, cost: u64) -> u64 {
        let (whole, frac) = self.0.p.split(self.0.depth - self.0.grains(cost));
        micros_between(now, tat.whole - whole.cast_signed() + i64::from(tat.frac > frac))
    }

    /// A TAT that is `units` emission intervals later.
    #[inline]
    pub(crate) fn later(&self, tat: Tat, units: u64) -> Tat {
        let (whole, frac) = self.0.p.split(self.0.grains(units));
        let frac = tat.frac + frac;
        let (carry, frac) = if frac >= self.0.p.get() { (1, frac - self.0.p.get()) } else { (0, frac) };
        Tat { whole: tat.whole + whole.cast_signed() + carry, frac }
    }
}

impl Transition for Arrival {
    type State = Tat;

    #[inline]
    fn capacity(&self) -> u64 {
        self.0.capacity
    }

    fn fresh(&self) -> Tat {
        Tat { whole: Timestamp::MIN.as_micros(), frac: 0 }
    }

    #[inline(always)]
    fn wait(&self, tat: &Tat, now: Timestamp, cost: u64) -> u64 {
        let owed = self.debt(*tat, now) + self.0.grains(cost);
        if owed <= self.0.depth { 0 } else { self.until(*tat, now, cost) }
    }

    #[inline(always)]
    fn take(&self, tat: &mut Tat, now: Timestamp, cost: u64) -> Mark {
        *tat = self.tat(now, self.debt(*tat, now) + self.0.grains(cost));
        Mark::at(now)
    }

    #[inline(always)]
    fn standing(&self, tat: &Tat, now: Timestamp) -> Standing {
        let debt = self.debt(*tat, now);
        let (remaining, next) = if debt <= self.0.depth { self.0.room(debt) } else { (0, self.until(*tat, now, 1)) };
        Standing { remaining, reset: micros_between(now, tat.whole + i64::from(tat.frac > 0)), next }
    }

    fn give_back(&self, tat: &mut Tat, now: Timestamp, _: Mark, _: u64, units: u64) {
        let back = self.0.grains(units);
        let (whole, frac) = self.0.p.split(back);
        let (borrow, frac) =
            if tat.frac >= frac { (0, tat.frac - frac) } else { (1, tat.frac + self.0.p.get() - frac) };
        let earlier = Tat { whole: tat.whole - whole.cast_signed() - borrow, frac };
        *tat = if earlier.whole >= now.as_micros() { earlier } else { Tat { whole: now.as_micros(), frac: 0 } };
    }

    fn debit(&self, tat: &mut Tat, now: Timestamp, _: Mark, units: u64) {
        let left = self.standing(tat, now).remaining;
        if left > 0 {
            self.take(tat, now, units.min(left));
        }
    }

    fn fresh_at(&self, tat: &Tat) -> Timestamp {
        Timestamp::from_micros(tat.whole + i64::from(tat.frac > 0))
    }
}

impl Wire for Arrival {
    fn kind(&self) -> [u8; 2] {
        *b"g0"
    }

    fn parameters(&self) -> Numbers {
        self.0.numbers()
    }

    fn numbers(tat: &Tat) -> Numbers {
        Numbers::from_slice(&[tat.whole, tat.frac.cast_signed()])
    }

    fn state(&self, numbers: &[i64]) -> Option<Tat> {
        let &[whole, frac] = numbers else { return None };
        Some(Tat { whole, frac: amount(frac, self.0.p.get() - 1)? })
    }
}
