use std::time::Duration;

use super::transition::{Transition, micros_between};
use super::verdict::{Mark, Standing};
use super::wire::{Numbers, Wire, amount, amounts};
use crate::error::ConfigError;
use crate::rate::{Rate, in_range, part};
use crate::time::{EXACT_MAX, Timestamp, micros_ceil};

/// A token bucket refilled in whole portions: `refill` tokens each `interval`.
///
/// Partial intervals are never lost: taking tokens does not restart a running interval. By default
/// the interval of a full bucket starts at the request that first takes from it;
/// [`aligned`](Self::aligned) starts intervals at whole multiples since the epoch instead.
///
/// State: 16 bytes, the tokens and the start of the running interval.
///
/// ```
/// use throttle_core::{IntervalBucket, Timestamp};
///
/// let algorithm = IntervalBucket::new(100).build()?;
/// let (state, verdict) = algorithm.decide(algorithm.fresh(), Timestamp::EPOCH, 100);
/// assert!(verdict.is_admitted());
/// assert!(!algorithm.decide(state, Timestamp::EPOCH, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalBucket {
    capacity: u64,
    refill: u64,
    interval_us: u64,
    aligned: bool,
    quota: bool,
}

impl IntervalBucket {
    /// A bucket of `capacity` tokens, refilled completely each second.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        Self {
            capacity,
            refill: capacity,
            interval_us: 1_000_000,
            aligned: false,
            quota: false,
        }
    }

    /// Sets how many tokens are added each interval, up to the capacity, and how long an interval
    /// is, rounded up to whole microseconds. Defaults to the capacity each second.
    #[must_use]
    pub fn refill(mut self, tokens: u64, interval: Duration) -> Self {
        (self.refill, self.interval_us) = (tokens, micros_ceil(interval));
        self
    }

    /// Refills at whole multiples of the interval since the epoch. Defaults to intervals that start
    /// at first use.
    #[must_use]
    pub const fn aligned(mut self) -> Self {
        self.aligned = true;
        self
    }

    /// Makes every interval an account of its own: what is given back or debited later stays out of
    /// it.
    pub(super) const fn quota(mut self) -> Self {
        self.quota = true;
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(Portions, Rate), ConfigError> {
        let portions = Portions::new(self)?;
        let rate = portions.rate();
        Ok((portions, rate))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(variant: u8, numbers: &[i64]) -> Option<Self> {
        let [capacity, refill, interval_us] = amounts(numbers)?;
        Some(Self {
            capacity,
            refill,
            interval_us,
            aligned: variant == b'1',
            quota: variant == b'2',
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Portions {
    capacity: u64,
    refill: u64,
    interval: i64,
    aligned: bool,
    quota: bool,
}

/// Tokens left in the interval that starts at `anchor`. A full bucket's anchor means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Balance {
    pub(crate) anchor: i64,
    pub(crate) tokens: u64,
}

impl Portions {
    pub(crate) fn new(spec: IntervalBucket) -> Result<Self, ConfigError> {
        let capacity = in_range("capacity", spec.capacity)?;
        let refill = in_range("refill", spec.refill)?;
        let interval = in_range("interval in microseconds", spec.interval_us)?;
        let most = EXACT_MAX / capacity.div_ceil(refill);
        if interval > most {
            let rule = format!(
                "an empty bucket of {capacity} filled by {refill} must be full within 2^53 \
                    microseconds, so the \
                 interval can be at most {most}"
            );
            return Err(ConfigError::new("interval in microseconds", interval, rule));
        }
        Ok(Self {
            capacity,
            refill,
            interval: interval.cast_signed(),
            aligned: spec.aligned,
            quota: spec.quota,
        })
    }

    /// What it admits over time. Of a refill above the capacity only what fits is ever there.
    fn rate(&self) -> Rate {
        Rate::new(
            self.refill.min(self.capacity),
            Duration::from_micros(self.interval.unsigned_abs()),
        )
    }

    /// The bucket as it is at `now`, with the interval that runs then. Time never falls behind the
    /// anchor.
    #[inline]
    fn view(&self, state: Balance, now: Timestamp) -> Balance {
        let now = now.as_micros().max(state.anchor);
        let elapsed = ((now - state.anchor) / self.interval).unsigned_abs();
        let tokens = if elapsed >= self.refills_to(state.tokens, self.capacity) {
            self.capacity
        } else {
            state.tokens + elapsed * self.refill
        };
        let anchor = if tokens < self.capacity {
            state.anchor + elapsed.cast_signed() * self.interval
        } else if self.aligned {
            now.div_euclid(self.interval) * self.interval
        } else {
            now
        };
        Balance { anchor, tokens }
    }

    fn refills_to(&self, tokens: u64, target: u64) -> u64 {
        target.saturating_sub(tokens).div_ceil(self.refill)
    }

    fn until(&self, view: Balance, now: Timestamp, target: u64) -> u64 {
        let refills = self.refills_to(view.tokens, target).cast_signed();
        micros_between(now, view.anchor + refills * self.interval)
    }
}

impl Transition for Portions {
    type State = Balance;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn fresh(&self) -> Balance {
        Balance {
            anchor: Timestamp::MIN.as_micros(),
            tokens: self.capacity,
        }
    }

    fn wait(&self, state: &Balance, now: Timestamp, cost: u64) -> u64 {
        let view = self.view(*state, now);
        if view.tokens >= cost {
            0
        } else {
            self.until(view, now, cost)
        }
    }

    fn take(&self, state: &mut Balance, now: Timestamp, cost: u64) -> Mark {
        let view = self.view(*state, now);
        *state = Balance {
            anchor: view.anchor,
            tokens: view.tokens - cost,
        };
        Mark {
            at: view.anchor,
            frac: 0,
        }
    }

    fn standing(&self, state: &Balance, now: Timestamp) -> Standing {
        let view = self.view(*state, now);
        if view.tokens == self.capacity {
            return Standing {
                remaining: self.capacity,
                reset: 0,
                next: 0,
            };
        }
        Standing {
            remaining: view.tokens,
            reset: self.until(view, now, self.capacity),
            next: self.until(view, now, view.tokens + 1),
        }
    }

    fn give_back(&self, state: &mut Balance, now: Timestamp, mark: Mark, _: u64, units: u64) {
        let view = self.view(*state, now);
        if self.quota && view.anchor != mark.at {
            return;
        }
        *state = Balance {
            anchor: view.anchor,
            tokens: self.capacity.min(view.tokens + units),
        };
    }

    fn debit(&self, state: &mut Balance, now: Timestamp, mark: Mark, units: u64) {
        let view = self.view(*state, now);
        let left = if self.quota && view.anchor != mark.at {
            0
        } else {
            view.tokens
        };
        self.take(state, now, units.min(left));
    }

    fn latest(&self, state: &Balance, now: Timestamp) -> Mark {
        Mark {
            at: self.view(*state, now).anchor,
            frac: 0,
        }
    }

    fn is_over(&self, now: Timestamp, mark: Mark) -> bool {
        self.quota && mark.at + self.interval <= now.as_micros()
    }

    fn fresh_at(&self, state: &Balance) -> Timestamp {
        let refills = self.refills_to(state.tokens, self.capacity).cast_signed();
        Timestamp::from_micros(state.anchor + refills * self.interval)
    }

    /// A refill that cannot be divided comes so much less often instead; a quota's is the quota
    /// itself.
    fn share(&self, _: Rate, n: u64) -> (Self, Rate) {
        // What the bucket cannot hold is no part of its rate, and so none of a share's.
        let refill = self.refill.min(self.capacity);
        let whole = self.quota || refill >= n;
        let (refill, stretch) = if whole {
            (part(refill, n), 1)
        } else {
            (1, n.div_ceil(refill))
        };
        let interval = self
            .interval
            .unsigned_abs()
            .saturating_mul(stretch)
            .min(EXACT_MAX);
        // It must be full within 2^53 µs, and rounding may have made that take longer.
        let capacity = part(self.capacity, n).min(refill.saturating_mul(EXACT_MAX / interval));
        let share = Self {
            capacity,
            refill,
            interval: interval.cast_signed(),
            ..*self
        };
        (share, share.rate())
    }
}

impl Wire for Portions {
    const LETTER: u8 = b'i';

    fn variant(&self) -> u8 {
        b'0' + u8::from(self.aligned) + 2 * u8::from(self.quota)
    }

    fn parameters(&self) -> Numbers {
        Numbers::from_slice(&[
            self.capacity.cast_signed(),
            self.refill.cast_signed(),
            self.interval,
        ])
    }

    fn numbers(state: &Balance) -> Numbers {
        Numbers::from_slice(&[state.anchor, state.tokens.cast_signed()])
    }

    fn state(&self, numbers: &[i64]) -> Option<Balance> {
        let &[anchor, tokens] = numbers else {
            return None;
        };
        Some(Balance {
            anchor,
            tokens: amount(tokens, self.capacity)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refill_above_the_capacity_admits_the_capacity_each_interval() {
        let rate = |tokens| {
            IntervalBucket::new(4)
                .refill(tokens, Duration::from_secs(2))
                .build()
                .unwrap()
                .rate()
        };
        for (tokens, admitted) in [(3, 3), (4, 4), (10, 4)] {
            assert_eq!(
                rate(tokens),
                Rate::new(admitted, Duration::from_secs(2)),
                "{tokens} tokens each interval"
            );
        }
    }
}
