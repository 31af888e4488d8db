use std::time::Duration;

use super::transition::{Transition, micros_between};
use super::verdict::{Mark, NEVER, Outcome, Standing};
use super::wire::{Numbers, Wire, amount, amounts};
use crate::error::ConfigError;
use crate::rate::{Rate, part};
use crate::time::{Timestamp, micros_ceil};

/// A counter that resets at whole multiples of the period.
///
/// Around a boundary twice the limit can be admitted: all of one window at its end and all of the
/// next at its start. If that matters, use [`Gcra`](super::Gcra) or a sliding window.
///
/// State: 16 bytes, the window's start and the count.
///
/// ```
/// use throttle_core::{FixedWindow, Rate, Timestamp};
///
/// let algorithm = FixedWindow::new(Rate::per_minute(100)).build()?;
/// let (state, verdict) = algorithm.decide(algorithm.fresh(), Timestamp::EPOCH, 100);
/// assert!(verdict.is_admitted());
/// assert!(!algorithm.decide(state, Timestamp::EPOCH, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    rate: Rate,
    offset_us: i64,
}

impl FixedWindow {
    /// Admits the rate's count in each window of the rate's period. Windows start at whole
    /// multiples of the period since the epoch.
    #[must_use]
    pub const fn new(rate: Rate) -> Self {
        Self { rate, offset_us: 0 }
    }

    /// Moves every window's start later by `offset`, in whole microseconds, rounded up. Defaults to
    /// zero.
    #[must_use]
    pub fn offset(mut self, offset: Duration) -> Self {
        self.offset_us = i64::try_from(micros_ceil(offset)).unwrap_or(i64::MAX);
        self
    }

    /// Moves every window's start by `micros` µs, later or earlier.
    #[must_use]
    pub const fn offset_micros(mut self, micros: i64) -> Self {
        self.offset_us = micros;
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(Counter<FixedWindows>, Rate), ConfigError> {
        let rate = self.rate.validate()?;
        let length = rate.period_micros().cast_signed();
        let window = FixedWindows {
            length,
            offset: self.offset_us.rem_euclid(length),
        };
        Ok((
            Counter {
                limit: rate.count(),
                window,
            },
            rate,
        ))
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(_: u8, numbers: &[i64]) -> Option<Self> {
        let [limit, length, offset] = amounts(numbers)?;
        Some(
            Self::new(Rate::new(limit, Duration::from_micros(length)))
                .offset_micros(offset.cast_signed()),
        )
    }
}

/// How time is cut into windows.
pub(crate) trait Windows: Copy {
    /// As in [`Wire`].
    const LETTER: u8;
    const PARAMETERS: usize = 3;

    /// Start and end of the window that holds an instant: `start <= instant < end`.
    fn window(&self, at: i64) -> (i64, i64);

    /// µs that no window is shorter than.
    fn shortest(&self) -> i64;

    /// As in [`Wire`].
    fn variant(&self) -> u8 {
        b'0'
    }

    /// How windows are cut, for the tag.
    fn parameters(&self) -> Numbers;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindows {
    length: i64,
    /// 0 .. length.
    offset: i64,
}

impl Windows for FixedWindows {
    const LETTER: u8 = b'f';

    #[inline]
    fn window(&self, at: i64) -> (i64, i64) {
        let start = (at - self.offset).div_euclid(self.length) * self.length + self.offset;
        (start, start + self.length)
    }

    #[inline]
    fn shortest(&self) -> i64 {
        self.length
    }

    fn parameters(&self) -> Numbers {
        Numbers::from_slice(&[self.length, self.offset])
    }
}

/// A limit per window, however windows are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Counter<W> {
    pub(crate) limit: u64,
    pub(crate) window: W,
}

/// Units used in the window that starts at `start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) start: i64,
    pub(crate) used: u64,
}

impl<W: Windows> Counter<W> {
    /// The start of the window that runs at `now` and what is used of it. An instant before the
    /// window last used counts as in it: a clock that steps back must not reopen a window.
    #[inline]
    fn view(&self, state: Count, now: Timestamp) -> Count {
        let at = now.as_micros().max(state.start);
        // The usual case, without a look at the calendar. A state that nothing is used of may start
        // anywhere.
        if state.used > 0 && at - state.start < self.window.shortest() {
            return state;
        }
        let (start, _) = self.window.window(at);
        Count {
            start,
            used: if start == state.start { state.used } else { 0 },
        }
    }

    /// Where a key stands that has used so many units of a window, which ends in `next` µs.
    fn standing_with(&self, used: u64, next: u64) -> Standing {
        Standing {
            remaining: self.limit.saturating_sub(used),
            reset: if used == 0 { 0 } else { next },
            next,
        }
    }

    /// µs until the window that starts at `start` ends.
    #[inline]
    fn until_end(&self, start: i64, now: Timestamp) -> u64 {
        micros_between(now, self.window.window(start).1)
    }
}

impl<W: Windows> Transition for Counter<W> {
    type State = Count;
    const ENDS: bool = true;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self) -> Count {
        Count {
            start: Timestamp::MIN.as_micros(),
            used: 0,
        }
    }

    #[inline]
    fn wait(&self, state: &Count, now: Timestamp, cost: u64) -> u64 {
        let Count { start, used } = self.view(*state, now);
        if used + cost <= self.limit {
            0
        } else {
            self.until_end(start, now)
        }
    }

    #[inline]
    fn take(&self, state: &mut Count, now: Timestamp, cost: u64) -> Mark {
        let Count { start, used } = self.view(*state, now);
        *state = Count {
            start,
            used: used + cost,
        };
        Mark { at: start, frac: 0 }
    }

    #[inline]
    fn standing(&self, state: &Count, now: Timestamp) -> Standing {
        let Count { start, used } = self.view(*state, now);
        self.standing_with(used, self.until_end(start, now))
    }

    #[inline]
    fn decide(&self, state: &mut Count, now: Timestamp, cost: u64) -> (Outcome, Standing) {
        let Count { start, used } = self.view(*state, now);
        let next = self.until_end(start, now);
        if cost == 0 || cost > self.limit || used + cost > self.limit {
            let wait = if cost > self.limit { NEVER } else { next };
            return (
                Outcome::uncharged(if cost == 0 { 0 } else { wait }),
                self.standing_with(used, next),
            );
        }
        *state = Count {
            start,
            used: used + cost,
        };
        (
            Outcome::charged(cost, Mark { at: start, frac: 0 }),
            self.standing_with(used + cost, next),
        )
    }

    fn give_back(&self, state: &mut Count, _: Timestamp, mark: Mark, _: u64, units: u64) {
        if state.start == mark.at {
            state.used = state.used.saturating_sub(units);
        }
    }

    fn debit(&self, state: &mut Count, now: Timestamp, mark: Mark, units: u64) {
        let Count { start, used } = self.view(*state, now);
        if start == mark.at {
            *state = Count {
                start,
                used: self.limit.min(used.saturating_add(units)),
            };
        }
    }

    fn latest(&self, state: &Count, _: Timestamp) -> Mark {
        Mark {
            at: state.start,
            frac: 0,
        }
    }

    fn is_over(&self, now: Timestamp, mark: Mark) -> bool {
        self.window.window(mark.at).1 <= now.as_micros()
    }

    fn fresh_at(&self, state: &Count) -> Timestamp {
        match state.used {
            // The window's start keeps a clock that steps back from reopening an earlier one.
            0 => Timestamp::from_micros(state.start),
            _ => Timestamp::from_micros(self.window.window(state.start).1),
        }
    }

    fn share(&self, rate: Rate, n: u64) -> (Self, Rate) {
        let limit = part(self.limit, n);
        (Self { limit, ..*self }, Rate::new(limit, rate.period()))
    }
}

impl<W: Windows> Wire for Counter<W> {
    const LETTER: u8 = W::LETTER;
    const PARAMETERS: usize = W::PARAMETERS;

    fn variant(&self) -> u8 {
        self.window.variant()
    }

    fn parameters(&self) -> Numbers {
        let mut parameters = Numbers::from_slice(&[self.limit.cast_signed()]);
        parameters.extend(self.window.parameters());
        parameters
    }

    fn numbers(count: &Count) -> Numbers {
        Numbers::from_slice(&[count.start, count.used.cast_signed()])
    }

    fn state(&self, numbers: &[i64]) -> Option<Count> {
        let &[start, used] = numbers else { return None };
        let used = amount(used, self.limit)?;
        // Units are used of windows alone: a script finds the window that runs and compares the
        // starts.
        (used == 0 || self.window.window(start).0 == start).then_some(Count { start, used })
    }
}
