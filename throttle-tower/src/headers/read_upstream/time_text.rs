//! Times as providers write them.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderMap;
use http::header::{AGE, DATE};

use crate::headers::structured;
use crate::time::{micros, wall_micros};

/// Numbers from here on are instants in seconds since 1970, those below are seconds from now: some
/// thirty years.
const FIRST_INSTANT: u64 = 1_000_000_000;
/// Numbers from here on are instants in milliseconds since 1970.
const FIRST_IN_MILLIS: u64 = 1_000_000_000_000;

/// The longest of all lines of a header that can be read.
pub(super) fn longest(
    headers: &HeaderMap,
    name: &str,
    read: impl Fn(&[u8]) -> Option<Duration>,
) -> Option<Duration> {
    let lines = headers.get_all(name).into_iter();
    lines.filter_map(|value| read(value.as_bytes())).max()
}

/// How long until a reset, in each form that APIs write: a number, a duration of Go, an instant of
/// RFC 3339, a date of HTTP.
///
/// A number, with or without a fraction, is seconds from now, or an instant in seconds or
/// milliseconds since 1970. No standard says which, so a number that is too large for a wait is an
/// instant.
pub(super) fn until_reset(text: &[u8], headers: &HeaderMap) -> Option<Duration> {
    let at_us = match structured::single_number(text, |_, _| {}) {
        Some(number) => match seconds(number)? {
            wait if wait.as_secs() < FIRST_INSTANT => return Some(wait),
            at if at.as_secs() < FIRST_IN_MILLIS => micros(at),
            at_millis => at_millis.as_secs().saturating_mul(1_000),
        },
        None => match go_duration(text) {
            Some(duration) => return Some(duration),
            None => rfc3339(text).or_else(|| http_date(text))?,
        },
    };
    Some(Duration::from_micros(at_us.saturating_sub(clock(headers))))
}

/// The clock that instants in a response are compared with, in µs since 1970: the response's own
/// date, unless it comes from a cache. `Date` has whole seconds, so a wait is never too short.
fn clock(headers: &HeaderMap) -> u64 {
    let date = headers.get(DATE).filter(|_| !headers.contains_key(AGE));
    date.and_then(|date| http_date(date.as_bytes()))
        .unwrap_or_else(wall_micros)
}

/// How long a refusal asks to wait, in each form of [`until_reset`]. A billion seconds is also the
/// longest wait that servers state, so an instant that has passed is none.
pub(super) fn retry_after(text: &[u8], headers: &HeaderMap) -> Option<Duration> {
    let wait = until_reset(text, headers)?;
    Some(if wait.is_zero() {
        seconds(text).unwrap_or(wait)
    } else {
        wait
    })
}

/// Seconds with or without a fraction, rounded up to nanoseconds.
pub(super) fn seconds(text: &[u8]) -> Option<Duration> {
    nanos(text.trim_ascii(), 1_000_000_000)
}

/// Milliseconds with or without a fraction, as in `retry-after-ms: 250.5`; rounded up to
/// nanoseconds.
pub(crate) fn millis(text: &[u8]) -> Option<Duration> {
    nanos(text.trim_ascii(), 1_000_000)
}

/// In µs since 1970.
pub(in crate::headers) fn http_date(text: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(text.trim_ascii()).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(micros)
}

/// A duration as Go writes it: `6m0s`, `17ms`, `2m59.56s`.
///
/// Source: the documentation of Go's `time.ParseDuration`. A sign is not read, because no wait is
/// negative.
pub(crate) fn go_duration(text: &[u8]) -> Option<Duration> {
    let is_number = |char: char| char.is_ascii_digit() || char == '.';
    let mut rest = std::str::from_utf8(text.trim_ascii()).ok()?;
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (number, units) = rest.split_at(rest.find(|char| !is_number(char))?);
        let (unit, next) = units.split_at(units.find(is_number).unwrap_or(units.len()));
        let unit_nanos = match unit {
            "ns" => 1,
            // Both of Unicode's letters for micro.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total = total.saturating_add(nanos(number.as_bytes(), unit_nanos)?);
        rest = next;
    }
    Some(total)
}

/// An instant of RFC 3339, such as `2026-11-21T12:00:00.5-05:00`, in µs since 1970, rounded up. An
/// instant before 1970 is 1970. The seconds may be missing, as in Jira's `2026-11-21T12:00Z`.
fn rfc3339(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let (time, offset) = time.split_at(time.find(['Z', 'z', '+', '-'])?);
    let (time, fraction) = time.split_at(time.find('.').unwrap_or(time.len()));
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let without_seconds = || numbers(time, ':', [2, 2]).map(|[hour, minute]| [hour, minute, 0]);
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2]).or_else(without_seconds)?;
    // A leap second is the sixtieth.
    let is_time = hour < 24 && minute < 60 && second <= 60;
    if !(is_time && (1..=12).contains(&month) && (1..=31).contains(&day)) {
        return None;
    }
    let fraction = match fraction {
        "" => Duration::ZERO,
        _ => seconds(fraction.as_bytes())?,
    };
    let [hours, minutes] = match offset {
        "Z" | "z" => [0, 0],
        _ => numbers(&offset[1..], ':', [2, 2])?,
    };
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let east = sign * (hours * 60 + minutes);
    let since_1970 =
        (days_since_1970(year, month, day) * 24 + hour) * 3_600 + (minute - east) * 60 + second;
    let at_us = u64::try_from(since_1970)
        .unwrap_or(0)
        .saturating_mul(1_000_000);
    Some(at_us.saturating_add(u64::try_from(fraction.as_nanos().div_ceil(1_000)).ok()?))
}

/// Numbers of so many digits, with a separator between them.
fn numbers<const N: usize>(text: &str, separator: char, lengths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, length) in numbers.iter_mut().zip(lengths) {
        let digits = parts.next().filter(|part| part.len() == length)?;
        *number = i64::try_from(whole(digits.as_bytes())?).ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Days of the Gregorian calendar, by counting the years from March on, so that a leap day is a
/// year's last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From 1 March of the year 0 to 1 January 1970 there are 719,468 days.
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// A decimal number of units, at most [`Duration::MAX`]. Digits beyond the ninth after the point
/// count as one more of the ninth.
fn nanos(text: &[u8], unit_nanos: u64) -> Option<Duration> {
    const DIGITS: usize = 9;
    let point = text.iter().position(|byte| *byte == b'.');
    let (units, fraction) = match point {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    if units.is_empty() && fraction.is_empty() {
        return None;
    }
    let (kept, cut) = fraction.split_at(fraction.len().min(DIGITS));
    let mut billionths = whole(kept)?.checked_mul(10_u64.pow((DIGITS - kept.len()) as u32))?;
    if whole(cut)? > 0 {
        billionths += 1;
    }
    let parts = u128::from(whole(units)?) * 1_000_000_000 + u128::from(billionths);
    let nanos = parts
        .saturating_mul(u128::from(unit_nanos))
        .div_ceil(1_000_000_000);
    let whole_seconds = u64::try_from(nanos / 1_000_000_000);
    Some(whole_seconds.map_or(Duration::MAX, |seconds| {
        Duration::new(seconds, (nanos % 1_000_000_000) as u32)
    }))
}

/// The part of a number before the point. A point alone is zero.
pub(super) fn whole_part(number: &[u8]) -> Option<u64> {
    match number.iter().position(|byte| *byte == b'.') {
        Some(point) => whole(&number[point + 1..]).and(whole(&number[..point])),
        None => whole(number),
    }
}

/// Digits alone; the greatest number if there are too many. No digits are zero.
pub(in crate::headers) fn whole(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |n, byte| {
        byte.is_ascii_digit()
            .then(|| n.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read() {
        let us = |text: &str| go_duration(text.as_bytes()).map(|wait| wait.as_nanos() / 1_000);
        for (text, expected) in [
            ("1s", 1_000_000),
            ("6m0s", 360_000_000),
            (" 17ms ", 17_000),
            ("2m59.56s", 179_560_000),
            ("1h2m3.5s", 3_723_500_000),
            (".5s", 500_000),
            ("0s", 0),
            ("12us", 12),
            ("12µs", 12),
            ("12μs", 12),
            ("5000ns", 5),
        ] {
            assert_eq!(us(text), Some(expected), "{text}");
        }
        assert_eq!(
            go_duration(b"0.0000000001s"),
            Some(Duration::from_nanos(1)),
            "rounded up"
        );
        assert_eq!(
            go_duration(b"99999999999999999999999h9h"),
            Some(Duration::MAX)
        );
        for text in ["", "s", "1", "1x", "-1s", "1.2.3s", ".s", "1s2", "one"] {
            assert_eq!(go_duration(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn milliseconds_are_read() {
        assert_eq!(millis(b"250"), Some(Duration::from_millis(250)));
        assert_eq!(millis(b" 0.5 "), Some(Duration::from_micros(500)));
        for (text, nanos) in [
            ("0.000001", 1),
            ("0.0000005", 1),
            ("0.0000011", 2),
            ("7.00000000001", 7_000_001),
        ] {
            assert_eq!(
                millis(text.as_bytes()),
                Some(Duration::from_nanos(nanos)),
                "{text}: rounded up"
            );
        }
        for text in ["", ".", "-1", "1e3", "soon"] {
            assert_eq!(millis(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn instants_of_rfc_3339_are_read() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-21T12:00:00Z", 1_795_262_400_000_000),
            ("2026-11-21t12:00:00.25z", 1_795_262_400_250_000),
            ("2026-11-21 07:00:00-05:00", 1_795_262_400_000_000),
            ("2026-11-21T12:00Z", 1_795_262_400_000_000),
            ("2026-11-21T07:00-05:00", 1_795_262_400_000_000),
            ("2026-11-21T17:30:00+05:30", 1_795_262_400_000_000),
            ("2024-02-29T23:59:60Z", 1_709_251_200_000_000),
            ("2000-03-01T00:00:00.0000001Z", 951_868_800_000_001),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000_000),
            ("1969-12-31T23:59:59Z", 0),
        ] {
            assert_eq!(rfc3339(text.as_bytes()), Some(expected), "{text}");
        }
        for text in [
            "",
            "2026-11-21",
            "2026-11-21T12:00:00",
            "2026-11-21T12:00",
            "2026-11-21T12:0Z",
            "2026-11-21T12:00:",
            "2026-11-21T12:00:0Z",
            "2026-13-21T12:00:00Z",
            "2026-11-32T12:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T12:60:00Z",
            "2026-11-21T12:00:61Z",
            "2026/11/21T12:00:00Z",
            "2026-11-21T12.00.00Z",
            "2026-11-21X12:00:00Z",
            "2026-11-21T12:00:00.Z",
            "2026-11-21T12:00:00+5:30",
            "2026-11-21T12:00:00+05:30x",
            "2026-11-2\u{00e9}12:00:00Z",
        ] {
            assert_eq!(rfc3339(text.as_bytes()), None, "{text:?}");
        }
    }

    /// `httpdate` computes the same days, over all that it knows.
    #[test]
    fn days_are_those_of_another_calendar() {
        for day in (0..2_900_000).step_by(61) {
            let at = std::time::UNIX_EPOCH + Duration::from_secs(day * 86_400);
            let text = httpdate::fmt_http_date(at);
            let months = [
                "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
            ];
            let month = 1 + months
                .iter()
                .position(|month| *month == &text[8..11])
                .unwrap();
            let rfc = format!("{}-{month:02}-{}T00:00:00Z", &text[12..16], &text[5..7]);
            assert_eq!(
                rfc3339(rfc.as_bytes()),
                Some(day * 86_400_000_000),
                "{text}"
            );
        }
    }
}
