use std::time::Duration;

use super::drain::Drain;
use super::gcra::{Arrival, Tat};
use super::transition::{Transition, micros_between};
use super::verdict::{Mark, Standing};
use super::wire::{Numbers, Wire, instant};
use crate::error::ConfigError;
use crate::rate::Rate;
use crate::time::{Timestamp, micros_ceil};

/// A leaky bucket as a queue: a request that exceeds the rate is admitted with a delay instead of
/// being refused.
///
/// Units leave one emission interval `T` apart. A request is admitted if its last unit can leave
/// within `max_wait`. The schedule is kept in exact fractions and never drifts; only the reported
/// delay is rounded up. An idle bucket accumulates no burst.
///
/// State: 24 bytes, the next free slot and the time of the last admitted request.
///
/// ```
/// use std::time::Duration;
/// use throttle_core::{LeakyBucket, Limiter, Policy, Rate};
///
/// let bucket = LeakyBucket::new(Rate::per_minute(1)).max_wait(Duration::from_secs(90));
/// let limiter = Limiter::in_memory(Policy::new("mails", bucket)?)?;
/// assert!(limiter.check("ada", 1).delay().is_zero());
/// assert!(limiter.check("ada", 1).delay() > Duration::from_secs(50));
/// assert!(!limiter.check("ada", 1).is_admitted(), "the third would leave after two minutes");
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakyBucket {
    rate: Rate,
    max_wait_us: u64,
    without_delay: bool,
}

impl LeakyBucket {
    /// Departures at `rate`. The longest wait defaults to 30 seconds.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            max_wait_us: 30_000_000,
            without_delay: false,
        }
    }

    /// How long the last unit of a request may have to wait, in whole microseconds, rounded up.
    /// Zero queues nothing: that is GCRA with a burst of one. Defaults to 30 seconds.
    ///
    /// A rate below two a minute needs a longer wait. At such a rate, a call right after another
    /// one would have to wait for more than 30 seconds, so the default refuses it.
    #[must_use]
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait_us = micros_ceil(wait);
        self
    }

    /// Refuses a request that would have to wait, instead of admitting it with a delay. Nothing is
    /// reserved for a request that waits outside and comes again after `retry_after`.
    ///
    /// A request is admitted when the units of the last one have had their time, whatever it costs,
    /// and its last unit is due within the longest wait. If a part of a charge is given back, the
    /// schedule ends earlier by that part, also if later charges follow it; but not if it was free
    /// in between. A charge that is given back in full counts as a request that was not made: it
    /// returns if no later one follows.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throttle_core::{LeakyBucket, Limiter, Policy, Rate};
    ///
    /// let limiter = Limiter::in_memory(Policy::new(
    ///     "mails",
    ///     LeakyBucket::new(Rate::per_second(1)).without_delay(),
    /// )?)?;
    /// assert!(limiter.check("ada", 3).is_admitted());
    /// let refused = limiter.check("ada", 1);
    /// assert!(refused.retry_after() > Some(Duration::from_secs(2)));
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn without_delay(mut self) -> Self {
        self.without_delay = true;
        self
    }

    /// The rate of departures.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// How long the last unit of a request may have to wait.
    #[must_use]
    pub const fn longest_wait(&self) -> Duration {
        Duration::from_micros(self.max_wait_us)
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(Queue, Rate), ConfigError> {
        let drain = Drain::with_wait(self.rate, self.max_wait_us)?;
        Ok((Queue::new(drain, self.without_delay), self.rate))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(variant: u8, numbers: &[i64]) -> Option<Self> {
        let (rate, depth, q) = Drain::origin(numbers)?;
        let max_wait_us = depth.checked_sub(q)?.checked_div(rate.count())?;
        Some(Self {
            rate,
            max_wait_us,
            without_delay: variant == b'1',
        })
    }
}

/// GCRA's arithmetic with a tolerance of `max_wait + T`, on a clock that never falls behind the
/// last admission: a step back must not let two leave closer than `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queue {
    arrival: Arrival,
    without_delay: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Departures {
    /// When a request was last admitted. Without delays, since when each request has followed the
    /// one before it at once.
    pub(crate) last: i64,
    /// The first free slot.
    pub(crate) next: Tat,
}

impl Queue {
    pub(super) fn new(drain: Drain, without_delay: bool) -> Self {
        Self {
            arrival: Arrival(drain),
            without_delay,
        }
    }

    pub(super) fn drain(&self) -> &Drain {
        &self.arrival.0
    }

    #[inline]
    fn now(state: &Departures, now: Timestamp) -> Timestamp {
        now.max(Timestamp::from_micros(state.last))
    }

    #[inline]
    fn lag(state: &Departures, now: Timestamp) -> u64 {
        Self::now(state, now).micros_since(now).unsigned_abs()
    }

    /// µs until a request may start, if it may not be delayed. The part of a microsecond stays in
    /// the schedule, which would drift without it. A schedule on which nothing is owed is free,
    /// also if the clock has stepped back.
    #[inline]
    fn starts_in(&self, state: &Departures, now: Timestamp) -> u64 {
        let is_busy = state.next.whole > state.last || state.next.frac > 0;
        if self.without_delay && is_busy {
            micros_between(now, state.next.whole)
        } else {
            0
        }
    }

    fn arrival_standing(&self, state: &Departures, now: Timestamp) -> Standing {
        let standing = self
            .arrival
            .exact_standing(&state.next, Self::now(state, now));
        let lag = if standing.reset == 0 {
            0
        } else {
            Self::lag(state, now)
        };
        Standing {
            reset: standing.reset + lag,
            next: standing.next + lag,
            ..standing
        }
    }
}

impl Transition for Queue {
    type State = Departures;

    #[inline]
    fn capacity(&self) -> u64 {
        self.arrival.capacity()
    }

    fn fresh(&self) -> Departures {
        Departures {
            last: Timestamp::MIN.as_micros(),
            next: self.arrival.fresh(),
        }
    }

    #[inline(always)]
    fn wait(&self, state: &Departures, now: Timestamp, cost: u64) -> u64 {
        let fits_in = match self.arrival.wait(&state.next, Self::now(state, now), cost) {
            0 => 0,
            wait => Self::lag(state, now) + wait,
        };
        fits_in.max(self.starts_in(state, now))
    }

    fn delays(&self) -> bool {
        !self.without_delay
    }

    fn admits_only_when_idle(&self) -> bool {
        self.without_delay
    }

    #[inline]
    fn delay(&self, state: &Departures, now: Timestamp) -> u64 {
        if self.without_delay {
            return 0;
        }
        Self::lag(state, now)
            + self
                .arrival
                .standing(&state.next, Self::now(state, now))
                .reset
    }

    #[inline]
    fn take(&self, state: &mut Departures, now: Timestamp, cost: u64) -> Mark {
        let now = Self::now(state, now);
        let slot = if state.next.whole >= now.as_micros() {
            state.next
        } else {
            Tat {
                whole: now.as_micros(),
                frac: 0,
            }
        };
        let follows = self.without_delay && state.next.whole + 1 >= now.as_micros();
        self.arrival.take(&mut state.next, now, cost);
        if !follows {
            state.last = now.as_micros();
        }
        Mark {
            at: slot.whole,
            frac: slot.frac,
        }
    }

    fn standing(&self, state: &Departures, now: Timestamp) -> Standing {
        if self.starts_in(state, now) == 0 {
            return self.arrival_standing(state, now);
        }
        let reset = micros_between(Self::now(state, now), state.next.whole)
            + u64::from(state.next.frac > 0);
        Standing {
            remaining: 0,
            reset: reset + Self::lag(state, now),
            next: self.wait(state, now, 1),
        }
    }

    /// A slot returns only when nothing is scheduled behind it, because later requests already have
    /// their delays. Without delays, a part of a charge returns unless the schedule was free since:
    /// that time has passed.
    fn give_back(&self, state: &mut Departures, now: Timestamp, mark: Mark, cost: u64, units: u64) {
        let now = Self::now(state, now);
        // If nothing is owed, nothing comes back. A schedule that ends now would be followed by the
        // next charge.
        if self.without_delay && self.arrival.standing(&state.next, now).reset == 0 {
            return;
        }
        if self.without_delay && units < cost {
            if mark.at >= state.last {
                self.arrival
                    .give_back(&mut state.next, now, mark, cost, units);
            }
            return;
        }
        let slot = Tat {
            whole: mark.at,
            frac: mark.frac,
        };
        // The mark of another algorithm is no slot, though it may look like one.
        let is_slot = slot.frac < self.drain().p.get();
        if is_slot && state.next == self.arrival.later(slot, cost) {
            let kept = self.arrival.later(slot, cost - units.min(cost));
            let now = now.as_micros();
            state.next = if kept.whole >= now {
                kept
            } else {
                Tat {
                    whole: now,
                    frac: 0,
                }
            };
        }
    }

    fn debit(&self, state: &mut Departures, now: Timestamp, _: Mark, units: u64) {
        let left = self.arrival_standing(state, now).remaining;
        self.take(state, now, units.min(left));
    }

    fn fresh_at(&self, state: &Departures) -> Timestamp {
        self.arrival
            .fresh_at(&state.next)
            .max(Timestamp::from_micros(state.last))
    }

    fn share(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let (drain, rate) = self.drain().share_of_wait(rate, n);
        (Self::new(drain, self.without_delay), rate)
    }
}

impl Wire for Queue {
    const LETTER: u8 = b'q';

    fn variant(&self) -> u8 {
        b'0' + u8::from(self.without_delay)
    }

    fn parameters(&self) -> Numbers {
        self.arrival.parameters()
    }

    fn numbers(state: &Departures) -> Numbers {
        Numbers::from_slice(&[state.last, state.next.whole, state.next.frac.cast_signed()])
    }

    fn state(&self, numbers: &[i64]) -> Option<Departures> {
        let (last, next) = numbers.split_first()?;
        let last = instant(*last)?;
        let next = self.arrival.state(next)?;
        // Whatever is charged or given back, no slot lies before the last charge.
        (last <= next.whole).then_some(Departures { last, next })
    }
}
