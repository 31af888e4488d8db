use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::ConfigError;
use crate::time::{EXACT_MAX, micros_ceil};

/// A count per period: 100 per minute. Never an interval: `per_second(4000)` is four thousand each
/// second.
///
/// The rate is kept exactly as the fraction count/period; `3/s` is one each 333 333⅓ µs and never
/// drifts. Counts and periods (in µs) are 1 to 2^53 − 1; building a policy with any other fails.
///
/// ```
/// use std::time::Duration;
/// use throttle_core::Rate;
///
/// let rate: Rate = "100/15m".parse()?;
/// assert_eq!(rate, Rate::new(100, Duration::from_secs(15 * 60)));
/// assert_eq!(rate.to_string(), "100/15m");
/// assert_eq!("10/minute".parse::<Rate>()?, Rate::per_minute(10));
/// assert_eq!("5/s".parse::<Rate>()?, Rate::per_second(5));
/// assert_eq!("1000 per hour".parse::<Rate>()?, Rate::per_hour(1000));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u64,
    period_us: u64,
}

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Long name, short name, microseconds; longest first, so that printing finds the largest that
/// divides.
const UNITS: [(&str, &str, u64); 6] = [
    ("day", "d", DAY),
    ("hour", "h", HOUR),
    ("minute", "m", MINUTE),
    ("second", "s", SECOND),
    ("millisecond", "ms", 1_000),
    ("microsecond", "us", 1),
];

impl Rate {
    /// `count` each second.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self {
            count,
            period_us: SECOND,
        }
    }

    /// `count` each minute.
    #[must_use]
    pub const fn per_minute(count: u64) -> Self {
        Self {
            count,
            period_us: MINUTE,
        }
    }

    /// `count` each hour.
    #[must_use]
    pub const fn per_hour(count: u64) -> Self {
        Self {
            count,
            period_us: HOUR,
        }
    }

    /// `count` each day of 24 hours.
    #[must_use]
    pub const fn per_day(count: u64) -> Self {
        Self {
            count,
            period_us: DAY,
        }
    }

    /// `count` each `period`, which is taken in whole microseconds, rounded up.
    #[must_use]
    pub fn new(count: u64, period: Duration) -> Self {
        Self {
            count,
            period_us: micros_ceil(period),
        }
    }

    /// How many, in units.
    #[must_use]
    pub const fn count(self) -> u64 {
        self.count
    }

    /// In how long.
    #[must_use]
    pub const fn period(self) -> Duration {
        Duration::from_micros(self.period_us)
    }

    /// In how long, in microseconds.
    #[must_use]
    pub const fn period_micros(self) -> u64 {
        self.period_us
    }

    /// The nth part, exactly, if that can be written in numbers below 2^53.
    pub(crate) fn share(self, n: u64) -> Option<Self> {
        // In the units it was written in, if they can tell it; else in lowest terms.
        let common = gcd(self.count, self.period_us);
        [1, common].into_iter().find_map(|common| {
            let (count, period_us) = (self.count / common, self.period_us / common);
            let divisor = gcd(count, n);
            let period_us = period_us.checked_mul(n / divisor)?;
            Self {
                count: count / divisor,
                period_us,
            }
            .validate()
            .ok()
        })
    }

    /// The nth part as one unit each so many whole microseconds, rounded down: rarer, and at most
    /// `most` apart.
    pub(crate) fn spaced_share(self, n: u64, most: u64) -> Self {
        let apart = (u128::from(self.period_us) * u128::from(n)).div_ceil(u128::from(self.count));
        Self {
            count: 1,
            period_us: u64::try_from(apart).map_or(most, |apart| apart.min(most)),
        }
    }

    pub(crate) fn validate(self) -> Result<Self, ConfigError> {
        in_range("rate count", self.count)?;
        in_range("rate period in microseconds", self.period_us)?;
        Ok(self)
    }
}

/// 1/n of whole units, and at least one.
pub(crate) fn part(units: u64, n: u64) -> u64 {
    (units / n).max(1)
}

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Refuses 0 and what a double cannot hold.
pub(crate) fn in_range(field: &'static str, value: u64) -> Result<u64, ConfigError> {
    if (1..=EXACT_MAX).contains(&value) {
        Ok(value)
    } else {
        Err(ConfigError::new(
            field,
            value,
            "it must lie between 1 and 9007199254740991 (2^53 - 1)",
        ))
    }
}

impl fmt::Display for Rate {
    /// The shortest form that parses back: `10/minute`, `100/15m`, `7/1500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |unit: &&(&str, &str, u64)| {
            self.period_us != 0 && self.period_us.is_multiple_of(unit.2)
        };
        let (long, short, micros) = UNITS.iter().find(divides).unwrap_or(&UNITS[5]);
        match self.period_us / micros {
            1 => write!(f, "{}/{long}", self.count),
            many => write!(f, "{}/{many}{short}", self.count),
        }
    }
}

impl FromStr for Rate {
    type Err = ConfigError;

    /// Reads `count/period` or `count per period`, where a period is a unit with or without a whole
    /// number before it: `10/minute`, `5/s`, `1000 per hour`, `100/15m`, `2 / 500 ms`.
    ///
    /// # Errors
    ///
    /// If the text has another form, or a number is out of range; the error names the part.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |rule: &'static str| ConfigError::new("rate", format_args!("{text:?}"), rule);
        let (count, period) = text
            .split_once('/')
            .or_else(|| text.split_once(" per "))
            .ok_or_else(|| {
                wrong("it must be written count/period, as in \"10/minute\" or \"100 per 15m\"")
            })?;
        let count = digits(count.trim()).ok_or_else(|| {
            wrong("the count must be a whole number up to 2^53 - 1, as in \"10/minute\"")
        })?;
        let period_us = period_micros(period.trim()).ok_or_else(|| {
            wrong(
                "the period must be a number of us, ms, s, m, h or d, or second, minute, hour or \
                    day, \
                 as in \"10/minute\" or \"100/15m\"",
            )
        })?;
        Self { count, period_us }.validate()
    }
}

fn digits(text: &str) -> Option<u64> {
    // `u64::from_str` would also take a leading plus sign.
    if text.bytes().all(|b| b.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

fn period_micros(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number = if number.is_empty() {
        1
    } else {
        digits(number)?
    };
    number.checked_mul(unit_micros(unit.trim_start())?)
}

fn unit_micros(text: &str) -> Option<u64> {
    let singular = text
        .strip_suffix('s')
        .filter(|s| s.len() > 2)
        .unwrap_or(text);
    UNITS.iter().find_map(|(long, short, micros)| {
        let known = singular == *long
            || text == *short
            || matches!(
                (*short, singular),
                ("s", "sec") | ("m", "min") | ("h", "hr")
            )
            || (*short == "us" && text == "µs");
        known.then_some(*micros)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, rate) in [
            ("10/minute", Rate::per_minute(10)),
            ("5/s", Rate::per_second(5)),
            ("1000 per hour", Rate::per_hour(1000)),
            ("100/15m", Rate::new(100, Duration::from_secs(900))),
            ("100 / 15 min", Rate::new(100, Duration::from_secs(900))),
            ("7/1500ms", Rate::new(7, Duration::from_millis(1500))),
            ("3/2 days", Rate::new(3, Duration::from_secs(2 * 86_400))),
            ("9/us", Rate::new(9, Duration::from_micros(1))),
        ] {
            assert_eq!(text.parse(), Ok(rate), "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate), "{rate}");
        }
    }

    #[test]
    fn refuses_what_it_does_not_understand() {
        for text in [
            "",
            "10",
            "/s",
            "10/",
            "-1/s",
            "+1/s",
            "1.5/s",
            "10/0s",
            "0/s",
            "10/month",
            "1/99999999999999999999s",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_unit_is_read_by_its_names() {
        for (names, micros) in [
            (&["us", "µs", "microsecond", "microseconds"][..], 1),
            (&["ms", "millisecond", "milliseconds"], 1_000),
            (&["s", "sec", "secs", "second", "seconds"], 1_000_000),
            (&["m", "min", "mins", "minute", "minutes"], 60_000_000),
            (&["h", "hr", "hour", "hours"], 3_600_000_000),
            (&["d", "day", "days"], 86_400_000_000),
        ] {
            for name in names {
                for (text, periods) in [(format!("3/{name}"), 1), (format!("3 per 7 {name}"), 7)] {
                    let rate: Rate = text.parse().expect("a rate");
                    assert_eq!(
                        (rate.count(), rate.period_micros()),
                        (3, periods * micros),
                        "{text}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_rate_is_written_in_the_largest_unit_that_divides_its_period() {
        for (rate, text) in [
            (Rate::per_second(4_000), "4000/second"),
            (Rate::per_minute(10), "10/minute"),
            (Rate::per_hour(7), "7/hour"),
            (Rate::per_day(1), "1/day"),
            (Rate::new(5, Duration::from_millis(1)), "5/millisecond"),
            (Rate::new(5, Duration::from_micros(1)), "5/microsecond"),
            (Rate::new(5, Duration::from_micros(1_500)), "5/1500us"),
            (Rate::new(7, Duration::from_millis(1_500)), "7/1500ms"),
            (Rate::new(7, Duration::from_secs(90)), "7/90s"),
            (Rate::new(7, Duration::from_secs(90 * 60)), "7/90m"),
            (Rate::new(7, Duration::from_secs(36 * 3_600)), "7/36h"),
            (Rate::new(7, Duration::from_secs(48 * 3_600)), "7/2d"),
        ] {
            assert_eq!(rate.to_string(), text);
        }
    }

    #[test]
    fn a_period_is_whole_microseconds_rounded_up() {
        for (nanos, micros) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2)] {
            let rate = Rate::new(3, Duration::from_nanos(nanos));
            assert_eq!(
                (rate.period_micros(), rate.period()),
                (micros, Duration::from_micros(micros))
            );
        }
        assert_eq!(Rate::per_hour(7).period(), Duration::from_secs(3_600));
    }

    #[test]
    fn an_error_of_a_rate_names_the_part_that_is_wrong() {
        let error = |text: &str| text.parse::<Rate>().expect_err(text).to_string();
        let form = "it must be written count/period, as in \"10/minute\" or \"100 per 15m\"";
        let count = "the count must be a whole number up to 2^53 - 1, as in \"10/minute\"";
        let period = "the period must be a number of us, ms, s, m, h or d, or second, minute, \
            hour or day, \
                      as in \"10/minute\" or \"100/15m\"";
        for (text, rule) in [
            ("10", form),
            ("10 minutes", form),
            ("+1/s", count),
            ("/s", count),
            ("99999999999999999999/s", count),
            ("10/", period),
            ("10/15", period),
            ("10/month", period),
            ("x/month", count),
        ] {
            assert_eq!(error(text), format!("rate is {text:?}: {rule}"));
        }
        let range = "it must lie between 1 and 9007199254740991 (2^53 - 1)";
        assert_eq!(error("0/s"), format!("rate count is 0: {range}"));
        assert_eq!(
            error("9007199254740992/s"),
            format!("rate count is 9007199254740992: {range}")
        );
        assert_eq!(
            error("1/0s"),
            format!("rate period in microseconds is 0: {range}")
        );
        for text in ["1/us", "9007199254740991/s", "1/9007199254740991us"] {
            assert!(text.parse::<Rate>().is_ok(), "{text}");
        }
    }
}
