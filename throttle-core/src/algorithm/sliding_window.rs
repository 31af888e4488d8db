use std::time::Duration;

use super::reciprocal::Divisor;
use super::transition::{Transition, micros_between};
use super::verdict::{Mark, Standing};
use super::wire::{Numbers, Wire, amount, amounts, instant};
use crate::error::ConfigError;
use crate::rate::{Rate, in_range, part};
use crate::time::{EXACT_MAX, Timestamp};

/// A trailing window, estimated from counters of sub-windows. The window is as long as S
/// sub-windows (default 10).
///
/// The newest S sub-windows count in full. The one before them counts by its overlap with the
/// window, as if its units had been spread evenly. With S = 1 this is the two-counter estimator. In
/// any stretch shorter than the window less one sub-window, at most the limit is admitted. In a
/// longer stretch, up to a whole window, a burst at the end of a sub-window can raise that to
/// 2·limit − 1. With more sub-windows, this happens only in stretches that are closer to a whole
/// window, because only one sub-window is estimated, and it is shorter.
///
/// State: 8·(S + 2) bytes.
///
/// ```
/// use throttle_core::{SlidingWindow, Rate, Timestamp};
///
/// let algorithm = SlidingWindow::new(Rate::per_minute(100)).build()?;
/// let (state, verdict) = algorithm.decide(algorithm.fresh(), Timestamp::EPOCH, 100);
/// assert!(verdict.is_admitted());
/// assert!(!algorithm.decide(state, Timestamp::EPOCH, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    rate: Rate,
    buckets: u64,
}

impl SlidingWindow {
    /// The rate's count in the rate's period, in 10 sub-windows.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate, buckets: 10 }
    }

    /// Number of sub-windows, 1 to 1024; it must divide the period in microseconds. Defaults to 10.
    #[must_use]
    pub const fn buckets(mut self, count: u64) -> Self {
        self.buckets = count;
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(Estimate, Rate), ConfigError> {
        let rate = self.rate.validate()?;
        let (limit, period, buckets) = (rate.count(), rate.period_micros(), self.buckets);
        if !(1..=1024).contains(&buckets) {
            return Err(ConfigError::new(
                "buckets",
                buckets,
                "it must lie between 1 and 1024",
            ));
        }
        if !period.is_multiple_of(buckets) {
            let rule = format!(
                "it must divide the period of {period} microseconds into whole sub-windows"
            );
            return Err(ConfigError::new("buckets", buckets, rule));
        }
        let width = in_range("sub-window in microseconds", period / buckets)?;
        let most = EXACT_MAX / width;
        if limit > most {
            let rule = format!(
                "with sub-windows of {width} microseconds it can be at most {most} to be counted \
                    exactly (the product \
                 below 2^53); lower it or use more buckets"
            );
            return Err(ConfigError::new("rate count", limit, rule));
        }
        let (width, ring) = (Divisor::new(width), Divisor::new(buckets + 1));
        let estimate = Estimate {
            limit,
            width,
            ring,
            buckets: buckets as i64,
        };
        Ok((estimate, rate))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(_: u8, numbers: &[i64]) -> Option<Self> {
        let [limit, width, buckets] = amounts(numbers)?;
        let period = Duration::from_micros(width.checked_mul(buckets)?);
        Some(Self::new(Rate::new(limit, period)).buckets(buckets))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Estimate {
    limit: u64,
    /// Of a sub-window, µs.
    width: Divisor,
    /// Counters of a ring: one more than there are sub-windows.
    ring: Divisor,
    buckets: i64,
}

/// Counters of the S + 1 sub-windows up to the one of the last admitted request, as a ring by
/// sub-window number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    last: i64,
    counters: Box<[u64]>,
}

/// A ring seen at one instant: sub-window `index`, `past` µs of it over.
struct View<'a> {
    index: i64,
    past: i64,
    newest: i64,
    ring: &'a Ring,
}

/// Quotient, rounded down, and remainder.
#[inline]
fn split(number: i64, divisor: Divisor) -> (i64, i64) {
    match u64::try_from(number) {
        Ok(number) => {
            let (quotient, rest) = divisor.split(number);
            (quotient.cast_signed(), rest.cast_signed())
        }
        // Before 1970.
        Err(_) => {
            let divisor = divisor.get().cast_signed();
            (number.div_euclid(divisor), number.rem_euclid(divisor))
        }
    }
}

impl Estimate {
    fn view<'a>(&self, ring: &'a Ring, now: Timestamp) -> View<'a> {
        let (index, past) = split(now.as_micros().max(ring.last), self.width);
        View {
            index,
            past,
            newest: split(ring.last, self.width).0,
            ring,
        }
    }

    fn width(&self) -> i64 {
        self.width.get().cast_signed()
    }

    fn slot(&self, index: i64) -> usize {
        // At most 1025, so it fits.
        split(index, self.ring).1 as usize
    }

    /// The counter of a sub-window; what lies outside the ring is empty.
    fn count(&self, view: &View<'_>, index: i64) -> u64 {
        self.count_at(view, index, self.slot(index))
    }

    /// The same, when its slot is known.
    fn count_at(&self, view: &View<'_>, index: i64, slot: usize) -> u64 {
        let age = view.newest - index;
        if (0..=self.buckets).contains(&age) {
            view.ring.counters[slot]
        } else {
            0
        }
    }

    /// Units that count in full, and those of the fading sub-window, when sub-window `index` is
    /// running.
    fn sums(&self, view: &View<'_>, index: i64) -> (u64, u64) {
        let oldest = index - self.buckets;
        let slot = self.slot(oldest);
        let full = if index == view.newest {
            // All but the fading one: the usual case, without the ring arithmetic.
            view.ring.counters.iter().sum::<u64>() - view.ring.counters[slot]
        } else {
            (oldest + 1..=index).map(|i| self.count(view, i)).sum()
        };
        (full, self.count_at(view, oldest, slot))
    }

    /// What a fading count still weighs after `past` µs of the running sub-window, rounded up:
    /// admission compares whole units, so rounding up is exact.
    fn faded(&self, count: u64, past: i64) -> u64 {
        self.width
            .divide_up(count * (self.width() - past).unsigned_abs())
    }

    fn used(&self, view: &View<'_>, (full, fading): (u64, u64)) -> u64 {
        full + self.faded(fading, view.past)
    }

    /// The first instant from now on at which at most `room` units count, from the sums of now.
    fn first_with(&self, view: &View<'_>, (mut full, mut fading): (u64, u64), room: u64) -> i64 {
        let mut past = view.past;
        let mut index = view.index;
        let mut slot = self.slot(index - self.buckets);
        loop {
            if let Some(spare) = room.checked_sub(full) {
                let enough = self.faded_to(fading, spare).max(past);
                if enough < self.width() {
                    return index * self.width() + enough;
                }
            }
            // The next sub-window: one more starts to fade, and nothing new has come. After S + 1
            // steps nothing counts.
            (index, past) = (index + 1, 0);
            slot = if slot + 1 < view.ring.counters.len() {
                slot + 1
            } else {
                0
            };
            fading = self.count_at(view, index - self.buckets, slot);
            full -= fading;
        }
    }

    /// The instant at which nothing counts any more. The newest charge fades last, to the very end
    /// of its sub-window.
    fn empty_at(&self, view: &View<'_>) -> i64 {
        let newest_used = (0..=self.buckets)
            .map(|age| view.newest - age)
            .find(|&i| self.count(view, i) > 0);
        newest_used.map_or(view.ring.last, |index| {
            (index + self.buckets + 1) * self.width()
        })
    }

    /// µs into the sub-window after which `count` weighs at most `spare`: the least e with
    /// count·(width − e) <= spare·width.
    fn faded_to(&self, count: u64, spare: u64) -> i64 {
        if count <= spare {
            return 0;
        }
        let width = self.width.get();
        ((count - spare) * width).div_ceil(count).cast_signed()
    }

    fn until(&self, now: Timestamp, view: &View<'_>, sums: (u64, u64), room: u64) -> u64 {
        micros_between(now, self.first_with(view, sums, room))
    }
}

impl Transition for Estimate {
    type State = Ring;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self) -> Ring {
        Ring {
            last: Timestamp::MIN.as_micros(),
            counters: vec![0; self.buckets as usize + 1].into_boxed_slice(),
        }
    }

    fn wait(&self, ring: &Ring, now: Timestamp, cost: u64) -> u64 {
        let view = self.view(ring, now);
        let sums = self.sums(&view, view.index);
        if self.used(&view, sums) + cost <= self.limit {
            0
        } else {
            self.until(now, &view, sums, self.limit - cost)
        }
    }

    fn take(&self, ring: &mut Ring, now: Timestamp, cost: u64) -> Mark {
        let View { index, newest, .. } = self.view(ring, now);
        let at = now.as_micros().max(ring.last);
        // Sub-windows passed since the last charge take over the slots of those that have left the
        // window.
        let passed = (index - newest).min(self.buckets + 1);
        for gone in index - passed + 1..=index {
            ring.counters[self.slot(gone)] = 0;
        }
        ring.counters[self.slot(index)] += cost;
        ring.last = at;
        Mark { at: index, frac: 0 }
    }

    fn standing(&self, ring: &Ring, now: Timestamp) -> Standing {
        let view = self.view(ring, now);
        let sums = self.sums(&view, view.index);
        let used = self.used(&view, sums);
        if used == 0 {
            return Standing {
                remaining: self.limit,
                reset: 0,
                next: 0,
            };
        }
        Standing {
            remaining: self.limit.saturating_sub(used),
            reset: micros_between(now, self.empty_at(&view)),
            // More may be used than the limit: an earlier instant weighs the fading units more.
            next: self.until(now, &view, sums, used.min(self.limit) - 1),
        }
    }

    fn give_back(&self, ring: &mut Ring, _: Timestamp, mark: Mark, _: u64, units: u64) {
        let age = split(ring.last, self.width).0 - mark.at;
        if (0..=self.buckets).contains(&age) {
            let counter = &mut ring.counters[self.slot(mark.at)];
            *counter = counter.saturating_sub(units);
        }
    }

    fn debit(&self, ring: &mut Ring, now: Timestamp, mark: Mark, units: u64) {
        let view = self.view(ring, now);
        let left = self
            .limit
            .saturating_sub(self.used(&view, self.sums(&view, view.index)));
        let age = view.newest - mark.at;
        let running = view.index - mark.at < self.buckets;
        if running && (0..=self.buckets).contains(&age) {
            // A charge of which nothing is there any more has no debit either: the ring may have
            // been forgotten meanwhile.
            let counter = &mut ring.counters[self.slot(mark.at)];
            *counter += if *counter > 0 { units.min(left) } else { 0 };
        }
    }

    fn latest(&self, ring: &Ring, _: Timestamp) -> Mark {
        Mark {
            at: split(ring.last, self.width).0,
            frac: 0,
        }
    }

    fn is_over(&self, now: Timestamp, mark: Mark) -> bool {
        split(now.as_micros(), self.width).0 - mark.at > self.buckets
    }

    fn fresh_at(&self, ring: &Ring) -> Timestamp {
        Timestamp::from_micros(self.empty_at(&self.view(ring, Timestamp::from_micros(ring.last))))
    }

    fn share(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let limit = part(self.limit, n);
        (Self { limit, ..*self }, Rate::new(limit, rate.period()))
    }
}

impl Wire for Estimate {
    const LETTER: u8 = b's';

    fn parameters(&self) -> Numbers {
        Numbers::from_slice(&[self.limit.cast_signed(), self.width(), self.buckets])
    }

    fn numbers(ring: &Ring) -> Numbers {
        std::iter::once(ring.last)
            .chain(ring.counters.iter().map(|count| count.cast_signed()))
            .collect()
    }

    fn state(&self, numbers: &[i64]) -> Option<Ring> {
        let (last, counters) = numbers.split_first()?;
        let counters: Box<[u64]> = counters
            .iter()
            .map(|count| amount(*count, self.limit))
            .collect::<Option<_>>()?;
        (counters.len() as u64 == self.ring.get()).then_some(Ring {
            last: instant(*last)?,
            counters,
        })
    }
}
