//! Trailing windows: every admitted request remembered, and the estimate from sub-windows.

use std::collections::BTreeMap;

use super::{Model, Paid, Place, Q, ceil, floor, q};

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    at: i128,
    units: i128,
}

#[derive(Debug)]
pub(super) struct Log {
    limit: i128,
    window: i128,
    entries: Vec<Entry>,
    numbers: u64,
}

impl Log {
    pub(super) fn new(limit: u64, window: u64) -> Self {
        Self { limit: limit.into(), window: window.into(), entries: Vec::new(), numbers: 0 }
    }

    fn now(&self, t: i128) -> i128 {
        self.entries.last().map_or(t, |newest| newest.at.max(t))
    }

    fn live(&self, t: i128) -> impl Iterator<Item = &Entry> {
        let edge = self.now(t) - self.window;
        self.entries.iter().filter(move |entry| entry.at > edge)
    }

    fn used(&self, t: i128) -> i128 {
        self.live(t).map(|entry| entry.units).sum()
    }
}

impl Model for Log {
    fn capacity(&self) -> i128 {
        self.limit
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.used(t) + cost <= self.limit
    }

    /// A debit made later than `t` can leave less than nothing.
    fn remaining(&self, t: i128) -> i128 {
        (self.limit - self.used(t)).max(0)
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        let mut excess = self.used(t) + cost - self.limit;
        for entry in self.live(t) {
            excess -= entry.units;
            if excess <= 0 {
                return entry.at + self.window - t;
            }
        }
        unreachable!("a cost within the limit fits an empty window")
    }

    fn reset(&self, t: i128) -> i128 {
        self.live(t).last().map_or(0, |newest| newest.at + self.window - t)
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        let at = self.now(t);
        self.entries = self.live(t).copied().collect();
        self.numbers += 1;
        self.entries.push(Entry { number: self.numbers, at, units: cost });
        Place::Entry(self.numbers)
    }

    fn give_back(&mut self, _: i128, receipt: Paid, units: i128) {
        for entry in self.entries.iter_mut().filter(|entry| Place::Entry(entry.number) == receipt.place) {
            entry.units -= units;
        }
        self.entries.retain(|entry| entry.units > 0);
    }

    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        let units = units.min(self.remaining(t));
        let edge = self.now(t) - self.window;
        let entry = self.entries.iter_mut().find(|entry| Place::Entry(entry.number) == receipt.place);
        if let Some(entry) = entry.filter(|entry| entry.at > edge) {
            entry.units += units;
        }
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
        Self { limit: limit.into(), buckets: buckets.into(), width, counts: BTreeMap::new(), last: None }
    }

    fn now(&self, t: i128) -> i128 {
        self.last.map_or(t, |last| last.max(t))
    }

    fn full(&self, index: i128) -> i128 {
        self.counts.range(index - self.buckets + 1..=index).map(|(_, units)| units).sum()
    }

    fn oldest(&self, index: i128) -> i128 {
        self.counts.get(&(index - self.buckets)).copied().unwrap_or(0)
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
            let begin = if later == index { now } else { later * self.width };
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
        if self.estimate(self.now(t)) == q(0) { 0 } else { self.first(t, 0) - t }
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
        let Place::SubWindow(index) = receipt.place else { return };
        if let Some(count) = self.counts.get_mut(&index) {
            *count -= units;
        }
    }

    /// Only while the sub-window of the charge counts in full.
    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        let Place::SubWindow(index) = receipt.place else { return };
        let units = units.min(self.remaining(t));
        let running = self.now(t).div_euclid(self.width) - index < self.buckets;
        if let Some(count) = self.counts.get_mut(&index).filter(|_| running) {
            *count += units;
        }
    }
}
