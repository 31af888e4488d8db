use std::time::Duration;

use super::civil::{date_of, first_of_month};
use super::fixed_window::{Counter, Fixed, FixedWindow, Windows};
use super::interval_bucket::{IntervalBucket, Portions};
use super::wire::Numbers;
use crate::error::ConfigError;
use crate::rate::{Rate, in_range};

const DAY_US: i64 = 86_400_000_000;
const MAX_OFFSET_MINUTES: i32 = 14 * 60;

/// Admits a number of units per calendar day, week or month, at a fixed offset from UTC.
///
/// Leap years are handled; Unix time has no leap seconds. Daylight saving is not supported, so that every backend
/// computes the same period boundaries. Weeks start on Monday. Two periods are not civil: [`fixed`](Self::fixed) ones
/// of equal length, and [`rolling`](Self::rolling) ones that begin with a key's first use.
///
/// State: 16 bytes, the period's start and the count.
///
/// ```
/// use throttle_core::{CalendarQuota, Timestamp};
///
/// let algorithm = CalendarQuota::monthly(1_000).build()?;
/// let (state, verdict) = algorithm.decide(algorithm.fresh(), Timestamp::EPOCH, 1000);
/// assert!(verdict.is_admitted());
/// assert!(!algorithm.decide(state, Timestamp::EPOCH, 1).1.is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarQuota {
    limit: u64,
    cadence: Cadence,
    offset_minutes: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cadence {
    Day,
    Week,
    Month,
    Fixed(Duration),
    Rolling(Duration),
}

impl CalendarQuota {
    const fn new(limit: u64, cadence: Cadence) -> Self {
        Self { limit, cadence, offset_minutes: 0 }
    }

    /// `limit` units each civil day.
    #[must_use]
    pub const fn daily(limit: u64) -> Self {
        Self::new(limit, Cadence::Day)
    }

    /// `limit` units each week from Monday.
    #[must_use]
    pub const fn weekly(limit: u64) -> Self {
        Self::new(limit, Cadence::Week)
    }

    /// `limit` units each civil month.
    #[must_use]
    pub const fn monthly(limit: u64) -> Self {
        Self::new(limit, Cadence::Month)
    }

    /// `limit` units each period of equal length: a fixed window. Periods start at whole multiples of `period` since
    /// 1970-01-01 00:00 in local time, as set by [`utc_offset_minutes`](Self::utc_offset_minutes).
    #[must_use]
    pub const fn fixed(limit: u64, period: Duration) -> Self {
        Self::new(limit, Cadence::Fixed(period))
    }

    /// `limit` units in a period that begins with a key's first use. When it has ended, the key's next use begins
    /// another.
    #[must_use]
    pub const fn rolling(limit: u64, period: Duration) -> Self {
        Self::new(limit, Cadence::Rolling(period))
    }

    /// Local time's offset from UTC in minutes, east positive: −840 to 840. Defaults to 0. Rolling periods ignore it.
    #[must_use]
    pub const fn utc_offset_minutes(mut self, minutes: i32) -> Self {
        self.offset_minutes = minutes;
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(Cut, Rate), ConfigError> {
        in_range("limit", self.limit)?;
        if !(-MAX_OFFSET_MINUTES..=MAX_OFFSET_MINUTES).contains(&self.offset_minutes) {
            let rule = "it must lie between -840 and 840 (14 hours)";
            return Err(ConfigError::new("UTC offset in minutes", self.offset_minutes, rule));
        }
        let shift = i64::from(self.offset_minutes) * 60_000_000;
        let civil = |cadence, days: u64| {
            let rate = Rate::new(self.limit, Duration::from_secs(days * 86_400));
            let counter = Counter { limit: self.limit, window: Civil { cadence, shift } };
            Ok((Cut::Civil(counter), rate))
        };
        match self.cadence {
            Cadence::Day => civil(CivilPeriod::Day, 1),
            Cadence::Week => civil(CivilPeriod::Week, 7),
            // What is advertised as the window: never shorter than the period, so the implied rate is never too high.
            Cadence::Month => civil(CivilPeriod::Month, 31),
            Cadence::Fixed(period) => {
                let (counter, rate) = FixedWindow::new(Rate::new(self.limit, period)).offset_micros(-shift).kernel()?;
                Ok((Cut::Fixed(counter), rate))
            }
            Cadence::Rolling(period) => {
                let (portions, rate) = IntervalBucket::new(self.limit).refill(self.limit, period).quota().kernel()?;
                Ok((Cut::Rolling(portions), rate))
            }
        }
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(variant: u8, numbers: &[i64]) -> Option<Self> {
        let &[limit, shift] = numbers else { return None };
        let cadence = match variant {
            b'd' => Cadence::Day,
            b'w' => Cadence::Week,
            b'm' => Cadence::Month,
            _ => return None,
        };
        let offset = i32::try_from(shift / 60_000_000).ok()?;
        Some(Self::new(limit.try_into().ok()?, cadence).utc_offset_minutes(offset))
    }
}

/// A quota by the way its periods are cut; two of the ways are those of other algorithms.
pub(super) enum Cut {
    Civil(Counter<Civil>),
    Fixed(Counter<Fixed>),
    Rolling(Portions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Civil {
    cadence: CivilPeriod,
    /// Local time minus UTC, µs.
    shift: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CivilPeriod {
    Day,
    Week,
    Month,
}

impl Windows for Civil {
    const LETTER: u8 = b'c';
    const PARAMETERS: usize = 2;

    fn window(&self, at: i64) -> (i64, i64) {
        let day = (at + self.shift).div_euclid(DAY_US);
        let (first, after) = match self.cadence {
            CivilPeriod::Day => (day, day + 1),
            CivilPeriod::Week => {
                // 1970-01-01 was a Thursday.
                let monday = day - (day + 3).rem_euclid(7);
                (monday, monday + 7)
            }
            CivilPeriod::Month => {
                let (year, month, of_month) = date_of(day);
                (day - (of_month - 1), first_of_month(year, month + 1))
            }
        };
        (first * DAY_US - self.shift, after * DAY_US - self.shift)
    }

    #[inline]
    fn shortest(&self) -> i64 {
        match self.cadence {
            CivilPeriod::Day => DAY_US,
            CivilPeriod::Week => 7 * DAY_US,
            CivilPeriod::Month => 28 * DAY_US,
        }
    }

    fn variant(&self) -> u8 {
        match self.cadence {
            CivilPeriod::Day => b'd',
            CivilPeriod::Week => b'w',
            CivilPeriod::Month => b'm',
        }
    }

    fn parameters(&self) -> Numbers {
        Numbers::from_slice(&[self.shift])
    }
}
