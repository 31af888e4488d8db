use std::collections::VecDeque;
use std::time::Duration;

use super::transition::{Transition, micros_between};
use super::verdict::{Mark, Standing};
use super::wire::{Numbers, Wire, amount, amounts, instant};
use crate::error::ConfigError;
use crate::rate::{Rate, part};
use crate::time::{EXACT_MAX, Timestamp};

/// An exact trailing window: only the units of the last period count.
///
/// Each admitted request is remembered for one period; requests of the same microsecond share an
/// entry. So a key takes 16 bytes per distinct instant in the window (at most as many as the
/// limit), and a decision reads all of them. For large limits use
/// [`SlidingWindow`](super::SlidingWindow).
///
/// ```
/// use throttle_core::{SlidingLog, Rate, Timestamp};
///
/// let algorithm = SlidingLog::new(Rate::per_minute(100)).build()?;
/// let (state, verdict) = algorithm.decide(algorithm.fresh(), Timestamp::EPOCH, 100);
/// assert!(verdict.is_admitted());
/// assert!(!algorithm.decide(state, Timestamp::EPOCH, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    rate: Rate,
}

impl SlidingLog {
    /// The rate's count in any half-open window of the rate's period.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate }
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(TrailingLog, Rate), ConfigError> {
        let rate = self.rate.validate()?;
        let log = TrailingLog {
            limit: rate.count(),
            window: rate.period_micros().cast_signed(),
        };
        Ok((log, rate))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(_: u8, numbers: &[i64]) -> Option<Self> {
        let [limit, window] = amounts(numbers)?;
        Some(Self::new(Rate::new(limit, Duration::from_micros(window))))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TrailingLog {
    limit: u64,
    window: i64,
}

/// Runs of (instant, units), oldest first, no instant twice, and their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    runs: VecDeque<(i64, u64)>,
    total: u64,
}

impl Log {
    fn now(&self, now: Timestamp) -> i64 {
        self.runs
            .back()
            .map_or(now.as_micros(), |newest| newest.0.max(now.as_micros()))
    }

    fn forget_until(&mut self, instant: i64) {
        while let Some(&(at, units)) = self.runs.front()
            && at <= instant
        {
            self.total -= units;
            self.runs.pop_front();
        }
    }

    fn run_at(&self, instant: i64) -> Option<usize> {
        self.runs.binary_search_by_key(&instant, |run| run.0).ok()
    }

    fn remove(&mut self, index: usize, units: u64) {
        let run = &mut self.runs[index];
        let units = units.min(run.1);
        run.1 -= units;
        self.total -= units;
        if run.1 == 0 {
            self.runs.remove(index);
        }
    }
}

impl TrailingLog {
    /// Live runs at `now`, oldest first, and their sum. A unit taken at `s` is free again at
    /// `s + window`.
    fn live<'a>(
        &self,
        log: &'a Log,
        now: Timestamp,
    ) -> (impl Iterator<Item = (i64, u64)> + 'a, u64) {
        let edge = log.now(now) - self.window;
        let expired = log.runs.iter().take_while(move |run| run.0 <= edge);
        let (count, units) = expired.fold((0, 0), |(n, units), run| (n + 1, units + run.1));
        (log.runs.iter().skip(count).copied(), log.total - units)
    }

    /// µs until so many units of these runs are free again; `None` if they are fewer.
    fn until_freed(
        &self,
        mut runs: impl Iterator<Item = (i64, u64)>,
        units: u64,
        now: Timestamp,
    ) -> Option<u64> {
        let mut freed = 0;
        let last = runs.find(|run| {
            freed += run.1;
            freed >= units
        });
        last.map(|run| self.freed_at(now, run.0))
    }

    fn freed_at(&self, now: Timestamp, instant: i64) -> u64 {
        micros_between(now, instant + self.window)
    }
}

impl Transition for TrailingLog {
    type State = Log;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self) -> Log {
        Log::default()
    }

    fn wait(&self, log: &Log, now: Timestamp, cost: u64) -> u64 {
        let (runs, used) = self.live(log, now);
        let excess = (used + cost).saturating_sub(self.limit);
        // A cost within the limit fits at the latest when everything has expired.
        if excess == 0 {
            0
        } else {
            self.until_freed(runs, excess, now).unwrap_or(0)
        }
    }

    fn take(&self, log: &mut Log, now: Timestamp, cost: u64) -> Mark {
        let at = log.now(now);
        log.forget_until(at - self.window);
        match log.runs.back_mut() {
            Some(newest) if newest.0 == at => newest.1 += cost,
            _ => log.runs.push_back((at, cost)),
        }
        log.total += cost;
        Mark { at, frac: 0 }
    }

    fn standing(&self, log: &Log, now: Timestamp) -> Standing {
        let (runs, used) = self.live(log, now);
        let remaining = self.limit.saturating_sub(used);
        // More may be used than the limit, if the clock has stepped back to where units count
        // again.
        let excess = (used + 1).saturating_sub(self.limit).max(1);
        let (Some(next), Some(newest)) = (self.until_freed(runs, excess, now), log.runs.back())
        else {
            return Standing {
                remaining,
                reset: 0,
                next: 0,
            };
        };
        Standing {
            remaining,
            reset: self.freed_at(now, newest.0),
            next,
        }
    }

    fn give_back(&self, log: &mut Log, _: Timestamp, mark: Mark, _: u64, units: u64) {
        if let Some(index) = log.run_at(mark.at) {
            log.remove(index, units);
        }
    }

    fn debit(&self, log: &mut Log, now: Timestamp, mark: Mark, units: u64) {
        let left = self.standing(log, now).remaining;
        let expired = mark.at <= log.now(now) - self.window;
        // A charge that was given back whole in the meantime has no run any more; it has no debit
        // either.
        if let Some(index) = log.run_at(mark.at).filter(|_| !expired) {
            log.runs[index].1 += units.min(left);
            log.total += units.min(left);
        }
    }

    fn latest(&self, log: &Log, now: Timestamp) -> Mark {
        Mark {
            at: log.runs.back().map_or(now.as_micros(), |newest| newest.0),
            frac: 0,
        }
    }

    fn is_over(&self, now: Timestamp, mark: Mark) -> bool {
        mark.at + self.window <= now.as_micros()
    }

    fn fresh_at(&self, log: &Log) -> Timestamp {
        log.runs.back().map_or(Timestamp::MIN, |newest| {
            Timestamp::from_micros(newest.0 + self.window)
        })
    }

    fn share(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let limit = part(self.limit, n);
        (Self { limit, ..*self }, Rate::new(limit, rate.period()))
    }
}

impl Wire for TrailingLog {
    const LETTER: u8 = b'l';
    const PARAMETERS: usize = 2;

    fn parameters(&self) -> Numbers {
        Numbers::from_slice(&[self.limit.cast_signed(), self.window])
    }

    fn numbers(log: &Log) -> Numbers {
        let runs = log
            .runs
            .iter()
            .flat_map(|(at, units)| [*at, units.cast_signed()]);
        std::iter::once(log.total.cast_signed())
            .chain(runs)
            .collect()
    }

    fn state(&self, numbers: &[i64]) -> Option<Log> {
        let (total, runs) = numbers.split_first()?;
        let (runs, rest) = runs.as_chunks::<2>();
        // Not counting what has expired, no more than the limit; counting it, no more than can be
        // told.
        let run = |[at, units]: &[i64; 2]| {
            Some((
                instant(*at)?,
                amount(*units, EXACT_MAX).filter(|units| *units > 0)?,
            ))
        };
        let runs: VecDeque<(i64, u64)> = runs.iter().map(run).collect::<Option<_>>()?;
        let ascending = runs
            .iter()
            .zip(runs.iter().skip(1))
            .all(|(one, next)| one.0 < next.0);
        let sum = runs
            .iter()
            .try_fold(0, |sum: u64, run| sum.checked_add(run.1))?;
        let total = amount(*total, EXACT_MAX).filter(|total| *total == sum)?;
        (rest.is_empty() && ascending).then_some(Log { runs, total })
    }
}
