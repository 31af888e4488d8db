use std::time::Duration;

use super::civil::{date_of, first_of_month};
use super::fixed_window::{Counter, FixedWindow, FixedWindows, Windows};
use super::interval_bucket::{IntervalBucket, Portions};
use super::wire::Numbers;
use crate::error::ConfigError;
use crate::rate::{Rate, in_range};

const MINUTE_US: i64 = 60_000_000;
const HOUR_US: i64 = 60 * MINUTE_US;
const DAY_US: i64 = 24 * HOUR_US;
const MAX_OFFSET_MINUTES: i32 = 14 * 60;

/// Admits a number of units per calendar day, week or month, at a fixed offset from UTC.
///
/// Leap years are handled; Unix time has no leap seconds. Daylight saving is not supported, so that
/// every backend computes the same period boundaries. Weeks start on Monday and months on the 1st,
/// at midnight, unless an [anchor](Self::anchor_day) says otherwise: a customer's billing day, for
/// example. Two periods are not civil: [`fixed`](Self::fixed) ones of equal length, and
/// [`rolling`](Self::rolling) ones that begin with a key's first use.
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
    day: Option<AnchorDay>,
    hour: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnchorDay {
    Number(u8),
    Last,
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
        Self {
            limit,
            cadence,
            offset_minutes: 0,
            day: None,
            hour: 0,
        }
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

    /// `limit` units each period of equal length: a fixed window. Periods start at whole multiples
    /// of `period` since 1970-01-01 00:00 in local time, as set by
    /// [`utc_offset_minutes`](Self::utc_offset_minutes).
    #[must_use]
    pub const fn fixed(limit: u64, period: Duration) -> Self {
        Self::new(limit, Cadence::Fixed(period))
    }

    /// `limit` units in a period that begins with a key's first use. When it has ended, the key's
    /// next use begins another.
    #[must_use]
    pub const fn rolling(limit: u64, period: Duration) -> Self {
        Self::new(limit, Cadence::Rolling(period))
    }

    /// Local time's offset from UTC in minutes, east positive: −840 to 840. Defaults to 0. Rolling
    /// periods ignore it.
    #[must_use]
    pub const fn utc_offset_minutes(mut self, minutes: i32) -> Self {
        self.offset_minutes = minutes;
        self
    }

    /// The day on which each period begins: of a month 1 to 28, which every month has; of a week 1
    /// (Monday) to 7 (Sunday). Defaults to 1.
    ///
    /// ```
    /// use throttle_core::{CalendarQuota, Timestamp};
    ///
    /// // The period begins on the 15th of each month, at 6:00 in UTC+01:00.
    /// let quota = CalendarQuota::monthly(10)
    ///     .anchor_day(15)
    ///     .anchor_hour(6)
    ///     .utc_offset_minutes(60)
    ///     .build()?;
    /// let day = |day: i64, hour: i64| Timestamp::from_micros((day * 24 + hour) * 3_600_000_000);
    /// let (state, _) = quota.decide(quota.fresh(), day(14, 4), 10);
    /// assert_eq!(
    ///     quota.peek(&state, day(14, 4)).remaining(),
    ///     0,
    ///     "1970-01-15, 5 o'clock in Berlin"
    /// );
    /// assert_eq!(quota.peek(&state, day(14, 5)).remaining(), 10);
    /// # Ok::<(), throttle_core::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn anchor_day(mut self, day: u8) -> Self {
        self.day = Some(AnchorDay::Number(day));
        self
    }

    /// Begins each month's period on the last day of the month, whichever number it has.
    #[must_use]
    pub const fn anchor_last_day(mut self) -> Self {
        self.day = Some(AnchorDay::Last);
        self
    }

    /// The hour of local time, 0 to 23, at which a day's, week's or month's period begins. Defaults
    /// to 0.
    #[must_use]
    pub const fn anchor_hour(mut self, hour: u8) -> Self {
        self.hour = hour;
        self
    }

    /// The transition, and the rate that it admits.
    pub(super) fn kernel(self) -> Result<(Cut, Rate), ConfigError> {
        in_range("limit", self.limit)?;
        if !(-MAX_OFFSET_MINUTES..=MAX_OFFSET_MINUTES).contains(&self.offset_minutes) {
            let rule = "it must lie between -840 and 840 (14 hours)";
            return Err(ConfigError::new(
                "UTC offset in minutes",
                self.offset_minutes,
                rule,
            ));
        }
        // A period that begins later is one of a clock that is so much behind: on the 15th, the
        // clock of a quota that is anchored there shows the 1st. On a month's last day it is one
        // day ahead.
        let offset = i64::from(self.offset_minutes) * MINUTE_US;
        let shift = offset - self.days_behind()? * DAY_US - i64::from(self.hour) * HOUR_US;
        let civil = |cadence, days: u64| {
            let rate = Rate::new(self.limit, Duration::from_secs(days * 86_400));
            let counter = Counter {
                limit: self.limit,
                window: Civil { cadence, shift },
            };
            Ok((Cut::Civil(counter), rate))
        };
        match self.cadence {
            Cadence::Day => civil(CivilPeriod::Day, 1),
            Cadence::Week => civil(CivilPeriod::Week, 7),
            // What is advertised as the window: never shorter than the period, so the implied rate
            // is never too high.
            Cadence::Month => civil(CivilPeriod::Month, 31),
            Cadence::Fixed(period) => {
                let (counter, rate) = FixedWindow::new(Rate::new(self.limit, period))
                    .offset_micros(-offset)
                    .kernel()?;
                Ok((Cut::Fixed(counter), rate))
            }
            Cadence::Rolling(period) => {
                let (portions, rate) = IntervalBucket::new(self.limit)
                    .refill(self.limit, period)
                    .quota()
                    .kernel()?;
                Ok((Cut::Rolling(portions), rate))
            }
        }
    }

    /// The builder of such parameters.
    pub(super) fn of_parameters(variant: u8, numbers: &[i64]) -> Option<Self> {
        let &[limit, shift] = numbers else {
            return None;
        };
        let (cadence, latest_day) = match variant {
            b'd' => (Cadence::Day, 1),
            b'w' => (Cadence::Week, 7),
            b'm' => (Cadence::Month, 28),
            _ => return None,
        };
        // Any day, hour and offset that give the same shift do.
        let behind = i32::try_from(-shift / MINUTE_US).ok()?;
        let days = (behind + MAX_OFFSET_MINUTES)
            .div_euclid(24 * 60)
            .min(latest_day - 1);
        let behind = behind - days * 24 * 60;
        let hour = (behind - MAX_OFFSET_MINUTES)
            .max(0)
            .unsigned_abs()
            .div_ceil(60);
        let quota = Self::new(limit.try_into().ok()?, cadence).anchor_hour(hour.try_into().ok()?);
        let quota = quota.utc_offset_minutes(hour.cast_signed() * 60 - behind);
        Some(match days {
            0 => quota,
            -1 => quota.anchor_last_day(),
            days => quota.anchor_day(u8::try_from(days + 1).ok()?),
        })
    }

    /// Days by which the quota's clock is behind local time.
    fn days_behind(&self) -> Result<i64, ConfigError> {
        let (most, remedy) = match self.cadence {
            Cadence::Day => (1, "a day has no other"),
            Cadence::Week => (7, "1 is Monday and 7 is Sunday"),
            Cadence::Month => (
                28,
                "every month has these; use anchor_last_day for the last day of each month",
            ),
            Cadence::Fixed(_) | Cadence::Rolling(_) if self.day.is_some() || self.hour != 0 => {
                let rule = "only days, weeks and months have an anchor; leave it out, or use \
                    daily, weekly or monthly";
                return Err(ConfigError::new(
                    "anchor",
                    "of a fixed or rolling period",
                    rule,
                ));
            }
            Cadence::Fixed(_) | Cadence::Rolling(_) => return Ok(0),
        };
        if self.hour > 23 {
            return Err(ConfigError::new(
                "anchor hour",
                self.hour,
                "it must lie between 0 and 23",
            ));
        }
        match self.day {
            None => Ok(0),
            Some(AnchorDay::Last) if self.cadence == Cadence::Month => Ok(-1),
            Some(AnchorDay::Number(day)) if (1..=most).contains(&day) => Ok(i64::from(day) - 1),
            Some(day) => {
                let day = if let AnchorDay::Number(day) = day {
                    day.to_string()
                } else {
                    "last".to_owned()
                };
                Err(ConfigError::new(
                    "anchor day",
                    day,
                    format!("it must lie between 1 and {most}: {remedy}"),
                ))
            }
        }
    }
}

/// A quota by the way its periods are cut; two of the ways are those of other algorithms.
pub(super) enum Cut {
    Civil(Counter<Civil>),
    Fixed(Counter<FixedWindows>),
    Rolling(Portions),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Civil {
    cadence: CivilPeriod,
    /// The quota's clock minus UTC, µs.
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
