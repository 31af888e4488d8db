//! Algorithms that start anew at an instant: interval refills, fixed windows, civil periods.

use super::{Model, Paid, Place};
use crate::support::spec::{Anchor, Cadence};

const DAY: i128 = 86_400_000_000;

#[derive(Debug)]
pub(super) struct Interval {
    capacity: i128,
    refill: i128,
    interval: i128,
    aligned: bool,
    tokens: i128,
    anchor: Option<i128>,
    last: Option<i128>,
}

struct Bucket {
    tokens: i128,
    anchor: i128,
    now: i128,
}

impl Interval {
    pub(super) fn new(capacity: u64, refill: u64, interval: u64, aligned: bool) -> Self {
        let (capacity, refill, interval) = (capacity.into(), refill.into(), interval.into());
        Self {
            capacity,
            refill,
            interval,
            aligned,
            tokens: capacity,
            anchor: None,
            last: None,
        }
    }

    fn view(&self, t: i128) -> Bucket {
        let now = self.last.map_or(t, |last| last.max(t));
        let Some(anchor) = self.anchor else {
            let anchor = if self.aligned {
                now.div_euclid(self.interval) * self.interval
            } else {
                now
            };
            return Bucket {
                tokens: self.capacity,
                anchor,
                now,
            };
        };
        let portions = (now - anchor) / self.interval;
        let tokens = (self.tokens + portions * self.refill).min(self.capacity);
        let anchor = if tokens == self.capacity && !self.aligned {
            now
        } else {
            anchor + portions * self.interval
        };
        Bucket {
            tokens,
            anchor,
            now,
        }
    }

    fn until(&self, t: i128, target: i128) -> i128 {
        let Bucket { tokens, anchor, .. } = self.view(t);
        let missing = target - tokens;
        let portions = missing / self.refill + i128::from(missing % self.refill > 0);
        anchor + self.interval * portions - t
    }

    fn set(&mut self, bucket: &Bucket, tokens: i128) {
        (self.tokens, self.anchor, self.last) = (tokens, Some(bucket.anchor), Some(bucket.now));
    }
}

impl Model for Interval {
    fn capacity(&self) -> i128 {
        self.capacity
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.view(t).tokens >= cost
    }

    fn remaining(&self, t: i128) -> i128 {
        self.view(t).tokens
    }

    fn retry(&self, t: i128, cost: i128) -> i128 {
        self.until(t, cost)
    }

    fn reset(&self, t: i128) -> i128 {
        if self.remaining(t) == self.capacity {
            0
        } else {
            self.until(t, self.capacity)
        }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        let bucket = self.view(t);
        let tokens = bucket.tokens - cost;
        self.set(&bucket, tokens);
        Place::Window(bucket.anchor)
    }

    fn give_back(&mut self, t: i128, _: Paid, units: i128) {
        let bucket = self.view(t);
        let tokens = (bucket.tokens + units).min(self.capacity);
        self.set(&bucket, tokens);
    }
}

#[derive(Debug)]
enum Cut {
    Fixed {
        window: i128,
        offset: i128,
    },
    /// `shift` is local time minus UTC, less the hour at which periods begin.
    Civil {
        cadence: Cadence,
        day: Option<u8>,
        shift: i128,
    },
}

impl Cut {
    /// The window that contains an instant, without its end.
    fn window(&self, t: i128) -> (i128, i128) {
        match *self {
            Self::Fixed { window, offset } => {
                let start = (t - offset).div_euclid(window) * window + offset;
                (start, start + window)
            }
            Self::Civil {
                cadence,
                day: anchor,
                shift,
            } => {
                let day = (t + shift).div_euclid(DAY);
                let (first, after) = match cadence {
                    Cadence::Day => (day, day + 1),
                    // The epoch was a Thursday, three days into its week.
                    Cadence::Week => {
                        let anchor = 4 - i128::from(anchor.unwrap_or(1));
                        let first = (day + anchor).div_euclid(7) * 7 - anchor;
                        (first, first + 7)
                    }
                    Cadence::Month => {
                        let begins = |(first, after): (i128, i128)| match anchor.unwrap_or(1) {
                            0 => after - 1,
                            number => first + i128::from(number) - 1,
                        };
                        let this = month(day);
                        let (before, next) = (month(this.0 - 1), month(this.1));
                        if day < begins(this) {
                            (begins(before), begins(this))
                        } else {
                            (begins(this), begins(next))
                        }
                    }
                };
                (first * DAY - shift, after * DAY - shift)
            }
        }
    }
}

/// First day of the month that contains a day, and of the next month, counted from the epoch, by
/// the rule of leap years alone.
fn month(day: i128) -> (i128, i128) {
    let leap = |year: i128| {
        year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0)
    };
    let days_before = |year: i128| {
        let past = year - 1;
        past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) - 719_162
    };
    let mut year = 1970 + day.div_euclid(366);
    while days_before(year) > day {
        year -= 1;
    }
    while days_before(year + 1) <= day {
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut first = days_before(year);
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < first + length {
            return (first, first + length);
        }
        first += length;
    }
    unreachable!("a day lies in one of its year's months")
}

#[derive(Debug)]
pub(super) struct Windowed {
    limit: i128,
    cut: Cut,
    /// The window last used, and the use in it.
    window: Option<(i128, i128)>,
    count: i128,
    last: Option<i128>,
}

impl Windowed {
    pub(super) fn fixed(limit: u64, window: u64, offset: i64) -> Self {
        Self::new(
            limit,
            Cut::Fixed {
                window: window.into(),
                offset: offset.into(),
            },
        )
    }

    pub(super) fn calendar(
        limit: u64,
        cadence: Cadence,
        offset_minutes: i32,
        anchor: Anchor,
    ) -> Self {
        let shift = i128::from(offset_minutes) * 60_000_000 - i128::from(anchor.hour) * DAY / 24;
        Self::new(
            limit,
            Cut::Civil {
                cadence,
                day: anchor.day,
                shift,
            },
        )
    }

    fn new(limit: u64, cut: Cut) -> Self {
        Self {
            limit: limit.into(),
            cut,
            window: None,
            count: 0,
            last: None,
        }
    }

    fn view(&self, t: i128) -> ((i128, i128), i128) {
        let window = self.cut.window(self.last.map_or(t, |last| last.max(t)));
        (
            window,
            if self.window == Some(window) {
                self.count
            } else {
                0
            },
        )
    }
}

impl Model for Windowed {
    fn capacity(&self) -> i128 {
        self.limit
    }

    fn can(&self, t: i128, cost: i128) -> bool {
        self.view(t).1 + cost <= self.limit
    }

    fn remaining(&self, t: i128) -> i128 {
        self.limit - self.view(t).1
    }

    fn retry(&self, t: i128, _: i128) -> i128 {
        self.view(t).0.1 - t
    }

    fn reset(&self, t: i128) -> i128 {
        let ((_, end), used) = self.view(t);
        if used == 0 { 0 } else { end - t }
    }

    fn take(&mut self, t: i128, cost: i128) -> Place {
        let (window, used) = self.view(t);
        (self.window, self.count) = (Some(window), used + cost);
        self.last = Some(self.last.map_or(t, |last| last.max(t)));
        Place::Window(window.0)
    }

    fn give_back(&mut self, _: i128, receipt: Paid, units: i128) {
        if self.window.map(|window| Place::Window(window.0)) == Some(receipt.place) {
            self.count = (self.count - units).max(0);
        }
    }

    /// Only while the window of the charge is open.
    fn debit(&mut self, t: i128, receipt: Paid, units: i128) {
        let (window, used) = self.view(t);
        if receipt.place == Place::Window(window.0) {
            (self.window, self.count) = (Some(window), (used + units).min(self.limit));
        }
    }

    fn latest(&self, t: i128, _: Paid) -> Place {
        Place::Window(self.view(t).0.0)
    }

    fn is_over(&self, t: i128, place: Place) -> bool {
        matches!(place, Place::Window(start) if self.cut.window(start).1 <= t)
    }
}
