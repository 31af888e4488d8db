//! The token bucket's and the leaky meter's vocabularies of a drain: a level at an instant, of
//! tokens or of water.

use std::marker::PhantomData;

use super::drain::Drain;
use super::transition::{Transition, ask};
use super::verdict::{Mark, Outcome, Standing};
use super::wire::{Numbers, Wire, amount, instant};
use crate::rate::Rate;
use crate::time::Timestamp;

/// A bucket that keeps its level in vocabulary `V`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LevelBucket<V>(Drain, PhantomData<V>);

/// How a level expresses a debt.
pub(crate) trait Vocabulary {
    /// As in [`Wire`].
    const LETTER: u8;

    /// Level from debt, and debt from level: each is its own inverse.
    fn invert(drain: &Drain, grains: u64) -> u64;
}

/// The level is the tokens that can still be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tokens;

/// The level is the water that was poured in and has not drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Water;

impl Vocabulary for Tokens {
    const LETTER: u8 = b't';

    #[inline]
    fn invert(drain: &Drain, grains: u64) -> u64 {
        drain.depth.saturating_sub(grains)
    }
}

impl Vocabulary for Water {
    const LETTER: u8 = b'm';

    #[inline]
    fn invert(_: &Drain, grains: u64) -> u64 {
        grains
    }
}

/// Grains at the time of the last admitted request. That time never falls, or a clock that stepped
/// back would be credited twice for the same stretch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) last: i64,
    pub(crate) grains: u64,
}

impl<V: Vocabulary> LevelBucket<V> {
    pub(crate) fn new(drain: Drain) -> Self {
        Self(drain, PhantomData)
    }

    #[inline]
    fn debt(&self, level: &Level, now: Timestamp) -> u64 {
        let elapsed = (now.as_micros() - level.last).max(0).unsigned_abs();
        self.0.after(V::invert(&self.0, level.grains), elapsed)
    }

    #[inline]
    fn set(&self, level: &mut Level, now: Timestamp, debt: u64) {
        *level = Level {
            last: level.last.max(now.as_micros()),
            grains: V::invert(&self.0, debt),
        };
    }

    /// µs by which the clock is behind the last admitted request.
    #[inline]
    fn lag(level: &Level, now: Timestamp) -> u64 {
        (level.last - now.as_micros()).max(0).unsigned_abs()
    }

    #[inline(always)]
    fn standing_with(&self, debt: u64, lag: u64) -> Standing {
        let (remaining, next) = self.0.room(debt);
        Standing {
            remaining,
            reset: lag + self.0.micros(debt),
            next: lag + next,
        }
    }
}

impl<V: Vocabulary> Transition for LevelBucket<V> {
    type State = Level;
    const DRAINS: bool = true;

    #[inline]
    fn capacity(&self) -> u64 {
        self.0.capacity
    }

    fn fresh(&self) -> Level {
        Level {
            last: Timestamp::MIN.as_micros(),
            grains: V::invert(&self.0, 0),
        }
    }

    #[inline]
    fn wait(&self, level: &Level, now: Timestamp, cost: u64) -> u64 {
        match self.0.wait(self.debt(level, now), cost) {
            0 => 0,
            wait => Self::lag(level, now) + wait,
        }
    }

    #[inline]
    fn take(&self, level: &mut Level, now: Timestamp, cost: u64) -> Mark {
        let debt = self.debt(level, now) + self.0.grains(cost);
        self.set(level, now, debt);
        Mark::at(now)
    }

    #[inline]
    fn standing(&self, level: &Level, now: Timestamp) -> Standing {
        let debt = self.debt(level, now);
        let lag = if debt == 0 { 0 } else { Self::lag(level, now) };
        self.standing_with(debt, lag)
    }

    #[inline(always)]
    fn decide(&self, level: &mut Level, now: Timestamp, cost: u64) -> (Outcome, Standing) {
        let debt = self.debt(level, now);
        if cost == 0 || cost > self.0.capacity || debt + self.0.grains(cost) > self.0.depth {
            let wait = ask(self, level, now, cost);
            return (Outcome::uncharged(wait), self.standing(level, now));
        }
        let (debt, lag) = (debt + self.0.grains(cost), Self::lag(level, now));
        self.set(level, now, debt);
        (
            Outcome::charged(cost, Mark::at(now)),
            self.standing_with(debt, lag),
        )
    }

    fn give_back(&self, level: &mut Level, now: Timestamp, _: Mark, _: u64, units: u64) {
        let debt = self.debt(level, now).saturating_sub(self.0.grains(units));
        self.set(level, now, debt);
    }

    fn debit(&self, level: &mut Level, now: Timestamp, _: Mark, units: u64) {
        let left = self.standing(level, now).remaining;
        self.take(level, now, units.min(left));
    }

    fn fresh_at(&self, level: &Level) -> Timestamp {
        let last = Timestamp::from_micros(level.last);
        let reset = self.standing(level, last).reset;
        last.after_micros(reset)
    }

    fn share(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let (drain, rate) = self.0.share(rate, n);
        (Self::new(drain), rate)
    }
}

impl<V: Vocabulary> Wire for LevelBucket<V> {
    const LETTER: u8 = V::LETTER;

    fn parameters(&self) -> Numbers {
        self.0.numbers()
    }

    fn numbers(level: &Level) -> Numbers {
        Numbers::from_slice(&[level.last, level.grains.cast_signed()])
    }

    fn state(&self, numbers: &[i64]) -> Option<Level> {
        let &[last, grains] = numbers else {
            return None;
        };
        Some(Level {
            last: instant(last)?,
            grains: amount(grains, self.0.depth)?,
        })
    }
}
