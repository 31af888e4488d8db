//! Trailing windows: every admitted request remembered, and the estimate from sub-windows.

use std::collections::BTreeMap;

use super::{Model, Paid, Place, Q, ceil, floor, q};

#[derive(Debug)]
pub(super) struct Log {
    limit: i128,
    window: i128,
    /// Units by the instant at which they were taken: requests of the same instant share an entry.
    entries: BTreeMap<i128, i128>,
}

impl Log {
    pub(super) fn new(limit: u64, window: u64) -> Self {
        Self {
            limit: limit.into(),
            window: window.into(),
            entries: BTreeMap::new(),
        }
    }

    fn now(&self, t: i128) -> i128 {
        self.entries
            .last_key_value()
            .map_or(t, |(newest, _)| t.max(*newest))
    }

    fn live(&self, t: i128) -> impl Iterator<Item = (i128, i128)> {
        let edge = self.now(t) - self.window;
        self.entries
            .range(edge + 1..)
            .map(|(at, units)| (*at, *units))
    }

    fn used(&self, t: i128) -> i128 {
        self.live(t).map(|(_, units)| units).sum()
    }
}

impl Model for Log {
    fn capacity(&self) -> i128 {
        self.limit
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.used(t) + cost <= self.limit
    }

    /// After a debit later than `t`, this can be negative.
    fn remaining(&self, t: i128) -> i128 {
        (self.limit - self.used(t)).max(0)
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        let mut excess = self.used(t) + cost - self.limit;
        for (at, units) in self.live(t) {
            excess -= units;
            if excess <= 0 {
                return at + self.window - t;
            }
        }
        unreachable!("a cost within the limit fits an empty window")
    }

    fn reset(&self, t: i128) -> i128 {
        self.live(t)
            .last()
            .map_or(0, |(newest, _)| newest + self.window - t)
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        let at = self.now(t);
        self.entries = self.live(t).collect();
        *self.entries.entry(at).or_default() += cost;
        Place::Entry(at)
    }

    fn give_back(&mut self, _: i128, receipt: Paid, units: i128) {
        let Place::Entry(at) = receipt.place else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(&at) {
            *entry -= units;
        }
        self.entries.retain(|_, units| *units > 0);
    }

    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        let Place::Entry(at) = receipt.place else {
            return;
        };
        let (units, edge) = (units.min(self.remaining(t)), self.now(t) - self.window);
        if let Some(entry) = self.entries.get_mut(&at).filter(|_| at > edge) {
            *entry += units;
        }
    }

    fn latest(&self, t: i128, _: Paid) -> Place {
        Place::Entry(self.live(t).last().map_or(t, |(newest, _)| newest))
    }

    fn is_over(&self, t: i128, place: Place) -> bool {
        matches!(place, Place::Entry(at) if at + self.window <= t)
    }
}

#[derive(Debug)]
pub(super) struct Buckets {
    limit: i128,
    buckets: i128,
    width: i128,
    counts: BTreeMap<i128, i128>,
    last: Option<i128>,
}

impl Buckets {
    pub(super) fn new(limit: u64, window: u64, buckets: u64) -> Self {
        let width = i128::from(window / buckets);
        Self {
            limit: limit.into(),
            buckets: buckets.into(),
            width,
            counts: BTreeMap::new(),
            last: None,
        }
    }

    fn now(&self, t: i128) -> i128 {
        self.last.map_or(t, |last| last.max(t))
    }

    fn full(&self, index: i128) -> i128 {
        self.counts
            .range(index - self.buckets + 1..=index)
            .map(|(_, units)| units)
            .sum()
    }

    fn oldest(&self, index: i128) -> i128 {
        self.counts
            .get(&(index - self.buckets))
            .copied()
            .unwrap_or(0)
    }

    fn estimate(&self, now: i128) -> Q {
        let (index, past) = (now.div_euclid(self.width), now.rem_euclid(self.width));
        q(self.full(index)) + Q::new(self.oldest(index) * (self.width - past), self.width)
    }

    /// The first instant from now on at which the estimate is at most `room`.
    fn first(&self, t: i128, room: i128) -> i128 {
        let now = self.now(t);
        let index = now.div_euclid(self.width);
        for later in index..index + self.buckets + 2 {
            let begin = if later == index {
                now
            } else {
                later * self.width
            };
            if self.estimate(begin) <= q(room) {
                return begin;
            }
            let (full, oldest) = (self.full(later), self.oldest(later));
            if full <= room {
                let past = ceil(q(self.width) * (q(1) - Q::new(room - full, oldest)));
                if past < self.width {
                    return begin.max(later * self.width + past);
                }
            }
        }
        unreachable!("an empty window has room")
    }
}

impl Model for Buckets {
    fn capacity(&self) -> i128 {
        self.limit
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.estimate(self.now(t)) + q(cost) <= q(self.limit)
    }

    fn remaining(&self, t: i128) -> i128 {
        floor(q(self.limit) - self.estimate(self.now(t))).max(0)
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        self.first(t, self.limit - cost) - t
    }

    fn reset(&self, t: i128) -> i128 {
        if self.estimate(self.now(t)) == q(0) {
            0
        } else {
            self.first(t, 0) - t
        }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        let now = self.now(t);
        let index = now.div_euclid(self.width);
        *self.counts.entry(index).or_default() += cost;
        self.counts.retain(|kept, _| *kept >= index - self.buckets);
        self.last = Some(now);
        Place::SubWindow(index)
    }

    fn give_back(&mut self, _: i128, receipt: Paid, units: i128) {
        let Place::SubWindow(index) = receipt.place else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&index) {
            *count = (*count - units).max(0);
        }
    }

    /// Only while the sub-window of the charge counts in full, and still contains some of it.
    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        let Place::SubWindow(index) = receipt.place else {
            return;
        };
        let units = units.min(self.remaining(t));
        let running = self.now(t).div_euclid(self.width) - index < self.buckets;
        if let Some(count) = self
            .counts
            .get_mut(&index)
            .filter(|count| running && **count > 0)
        {
            *count += units;
        }
    }

    fn latest(&self, t: i128, _: Paid) -> Place {
        Place::SubWindow(self.last.unwrap_or(t).div_euclid(self.width))
    }

    fn is_over(&self, t: i128, place: Place) -> bool {
        matches!(place, Place::SubWindow(index) if t.div_euclid(self.width) - index > self.buckets)
    }
}
