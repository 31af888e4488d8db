//! Algorithms that drain at a rate: GCRA by its arrival time, the token bucket by tokens, the meter
//! by water, the shaper by slots.

use super::{Model, Paid, Place, Q, ceil, floor, fraction, q};

#[derive(Debug)]
pub(super) struct Gcra {
    interval: Q,
    tolerance: Q,
    burst: i128,
    tat: Option<Q>,
}

impl Gcra {
    pub(super) fn new(limit: u64, period: u64, burst: u64) -> Self {
        let interval = fraction(period, limit);
        Self {
            interval,
            tolerance: interval * q(burst.into()),
            burst: burst.into(),
            tat: None,
        }
    }

    fn arrival(&self, t: i128) -> Q {
        self.tat.map_or(q(t), |tat| tat.max(q(t)))
    }

    /// How far a charge of `cost` would exceed the tolerance.
    fn excess(&self, t: i128, cost: i128) -> Q {
        self.arrival(t) + self.interval * q(cost) - self.tolerance - q(t)
    }
}

impl Model for Gcra {
    fn capacity(&self) -> i128 {
        self.burst
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.excess(t, cost) <= q(0)
    }

    fn remaining(&self, t: i128) -> i128 {
        floor((self.tolerance - (self.arrival(t) - q(t))) / self.interval).max(0)
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        ceil(self.excess(t, cost))
    }

    fn reset(&self, t: i128) -> i128 {
        ceil(self.arrival(t) - q(t))
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        self.tat = Some(self.arrival(t) + self.interval * q(cost));
        Place::Anywhere
    }

    fn give_back(&mut self, t: i128, _: Paid, units: i128) {
        self.tat = self
            .tat
            .map(|tat| (tat - self.interval * q(units)).max(q(t)));
    }
}

#[derive(Debug)]
pub(super) struct TokenBucket {
    rate: Q,
    capacity: Q,
    tokens: Q,
    last: Option<i128>,
}

impl TokenBucket {
    pub(super) fn new(limit: u64, period: u64, burst: u64) -> Self {
        let capacity = q(burst.into());
        Self {
            rate: fraction(limit, period),
            capacity,
            tokens: capacity,
            last: None,
        }
    }

    fn level(&self, t: i128) -> Q {
        let elapsed = self.last.map_or(0, |last| (t - last).max(0));
        (self.tokens + self.rate * q(elapsed)).min(self.capacity)
    }

    fn lag(&self, t: i128) -> i128 {
        self.last.map_or(0, |last| (last - t).max(0))
    }

    fn until(&self, t: i128, target: Q) -> i128 {
        let missing = target - self.level(t);
        if missing <= q(0) {
            0
        } else {
            self.lag(t) + ceil(missing / self.rate)
        }
    }

    fn set(&mut self, t: i128, tokens: Q) {
        self.tokens = tokens;
        self.last = Some(self.last.map_or(t, |last| last.max(t)));
    }
}

impl Model for TokenBucket {
    fn capacity(&self) -> i128 {
        floor(self.capacity)
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.level(t) >= q(cost)
    }

    fn remaining(&self, t: i128) -> i128 {
        floor(self.level(t))
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        self.until(t, q(cost))
    }

    fn reset(&self, t: i128) -> i128 {
        self.until(t, self.capacity)
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        self.set(t, self.level(t) - q(cost));
        Place::Anywhere
    }

    fn give_back(&mut self, t: i128, _: Paid, units: i128) {
        self.set(t, (self.level(t) + q(units)).min(self.capacity));
    }
}

#[derive(Debug)]
pub(super) struct LeakyMeter {
    interval: Q,
    capacity: i128,
    water: Q,
    last: Option<i128>,
}

impl LeakyMeter {
    pub(super) fn new(limit: u64, period: u64, burst: u64) -> Self {
        Self {
            interval: fraction(period, limit),
            capacity: burst.into(),
            water: q(0),
            last: None,
        }
    }

    fn now(&self, t: i128) -> i128 {
        self.last.map_or(t, |last| last.max(t))
    }

    fn level(&self, t: i128) -> Q {
        let elapsed = self.last.map_or(0, |last| self.now(t) - last);
        (self.water - q(elapsed) / self.interval).max(q(0))
    }
}

impl Model for LeakyMeter {
    fn capacity(&self) -> i128 {
        self.capacity
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.level(t) + q(cost) <= q(self.capacity)
    }

    fn remaining(&self, t: i128) -> i128 {
        floor(q(self.capacity) - self.level(t))
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        self.now(t) - t + ceil((self.level(t) + q(cost - self.capacity)) * self.interval)
    }

    fn reset(&self, t: i128) -> i128 {
        let level = self.level(t);
        if level == q(0) {
            0
        } else {
            self.now(t) - t + ceil(level * self.interval)
        }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        (self.water, self.last) = (self.level(t) + q(cost), Some(self.now(t)));
        Place::Anywhere
    }

    fn give_back(&mut self, t: i128, _: Paid, units: i128) {
        (self.water, self.last) = ((self.level(t) - q(units)).max(q(0)), Some(self.now(t)));
    }
}

#[derive(Debug)]
pub(super) struct Shaper {
    interval: Q,
    max_wait: Q,
    delays: bool,
    next: Option<Q>,
    last: Option<i128>,
}

impl Shaper {
    pub(super) fn new(limit: u64, period: u64, max_wait: u64, delays: bool) -> Self {
        Self {
            interval: fraction(period, limit),
            max_wait: q(max_wait.into()),
            delays,
            next: None,
            last: None,
        }
    }

    /// How long until a request may start, if it may not be delayed. The part of a microsecond is
    /// waited for by none.
    fn starts_in(&self, t: i128) -> i128 {
        self.next
            .filter(|next| !self.delays && *next > q(self.now(t)))
            .map_or(0, |next| floor(next) - t)
            .max(0)
    }

    fn units_left(&self, t: i128) -> i128 {
        (floor((self.max_wait - self.wait(t)) / self.interval) + 1).max(0)
    }

    fn now(&self, t: i128) -> i128 {
        self.last.map_or(t, |last| last.max(t))
    }

    fn slot(&self, t: i128) -> Q {
        let now = q(self.now(t));
        self.next.map_or(now, |next| next.max(now))
    }

    fn wait(&self, t: i128) -> Q {
        self.slot(t) - q(self.now(t))
    }

    /// By how much the last of `cost` units would leave too late.
    fn excess(&self, t: i128, cost: i128) -> Q {
        self.wait(t) + self.interval * q(cost - 1) - self.max_wait
    }
}

impl Model for Shaper {
    fn capacity(&self) -> i128 {
        floor(self.max_wait / self.interval) + 1
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.excess(t, cost) <= q(0) && self.starts_in(t) == 0
    }

    fn remaining(&self, t: i128) -> i128 {
        if self.starts_in(t) > 0 {
            0
        } else {
            self.units_left(t)
        }
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        let excess = self.excess(t, cost);
        let fits_in = if excess > q(0) {
            self.now(t) - t + ceil(excess)
        } else {
            0
        };
        fits_in.max(self.starts_in(t))
    }

    fn reset(&self, t: i128) -> i128 {
        let wait = self.wait(t);
        if wait == q(0) {
            0
        } else {
            self.now(t) - t + ceil(wait)
        }
    }

    fn delay(&self, t: i128) -> i128 {
        if self.delays {
            self.now(t) - t + ceil(self.wait(t))
        } else {
            0
        }
    }

    fn debit(&mut self, t: i128, _: Paid, units: i128) {
        self.take(t, units.min(self.units_left(t)));
    }

    /// A schedule knows its charges by their slots, and that of another limit's charge would begin
    /// now.
    fn latest(&self, t: i128, other: Paid) -> Place {
        let first = q(self.now(t));
        Place::Slots {
            first,
            after: first + self.interval * q(other.cost),
        }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        let first = self.slot(t);
        let after = first + self.interval * q(cost);
        // Without delays, the instant since which each charge has followed the one before it.
        let follows = !self.delays && self.next.is_some_and(|next| floor(next) + 1 >= self.now(t));
        self.last = if follows {
            self.last
        } else {
            Some(self.now(t))
        };
        self.next = Some(after);
        Place::Slots { first, after }
    }

    fn give_back(&mut self, t: i128, receipt: Paid, units: i128) {
        let Place::Slots { first, after } = receipt.place else {
            return;
        };
        // Nothing is owed, so nothing comes back, and the next charge follows none.
        if !self.delays && self.wait(t) == q(0) {
            return;
        }
        if !self.delays && units < receipt.cost {
            if self.last.is_some_and(|since| floor(first) < since) {
                return;
            }
            self.next = self
                .next
                .map(|next| (next - self.interval * q(units)).max(q(self.now(t))));
        } else if self.next == Some(after) {
            let kept = first + self.interval * q(receipt.cost - units);
            self.next = Some(kept.max(q(self.now(t))));
        }
    }
}
