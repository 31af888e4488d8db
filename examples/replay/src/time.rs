//! Times as logs write them, in microseconds since 1970, and whether they say more than the second.

use jiff::Timestamp;
use jiff::fmt::strtime;

use crate::entry::SECOND;

/// `10/Oct/2000:13:55:36 -0700`
pub fn common(text: &[u8]) -> Option<i64> {
    let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", text)
        .ok()?
        .to_timestamp()
        .ok()?;
    Some(time.as_microsecond())
}

/// RFC 3339, the form of [`common`], or a number since 1970. Its digits say whether it counts
/// seconds, milli-, micro- or nanoseconds.
pub fn any(text: &str) -> Option<(i64, bool)> {
    let digits = text.split('.').next().unwrap_or(text);
    // From 1973 on and for thousands of years, seconds have 9 to 11 digits, and each of the finer
    // units has three more.
    let number = match digits.len() {
        0..=11 => decimal(text, SECOND),
        12..=14 => decimal(text, 1_000).map(|(micros, _)| (micros, true)),
        15..=17 => decimal(text, 1).map(|(micros, _)| (micros, true)),
        // What is below a microsecond is left out.
        _ => decimal(digits.get(..digits.len() - 3)?, 1).map(|(micros, _)| (micros, true)),
    };
    number.or_else(|| {
        let Ok(time) = text.parse::<Timestamp>() else {
            return Some((common(text.as_bytes())?, false));
        };
        Some((time.as_microsecond(), text.contains(['.', ','])))
    })
}

/// A decimal number of units of so many microseconds, without floating point. What is below a
/// microsecond is left out.
pub fn decimal(text: &str, micros: i64) -> Option<(i64, bool)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    // Nine digits more than a microsecond shows.
    let digits = &fraction[..fraction.len().min(15)];
    let scale = 10_i128.pow(u32::try_from(digits.len()).ok()?);
    let part = if digits.is_empty() {
        0
    } else {
        digits.parse::<i128>().ok()? * i128::from(micros) / scale
    };
    let whole = whole
        .parse::<i128>()
        .ok()?
        .checked_mul(i128::from(micros))?;
    // Ten thousand years, so that sums stay far below the largest number.
    let sum = whole
        .checked_add(part)
        .filter(|sum| *sum < 315_576_000_000 * i128::from(SECOND))?;
    Some((i64::try_from(sum).ok()?, !fraction.is_empty()))
}

/// A time for people, to the second.
pub fn shown(micros: i64) -> String {
    Timestamp::from_second(micros.div_euclid(SECOND))
        .map_or_else(|_| format!("{micros} us"), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_all_their_forms() {
        assert_eq!(
            common(b"10/Oct/2000:13:55:36 -0700"),
            Some(971_211_336 * SECOND)
        );
        for (text, time) in [
            ("2000-10-10T20:55:36Z", Some((971_211_336_000_000, false))),
            (
                "2000-10-10T13:55:36.5-07:00",
                Some((971_211_336_500_000, true)),
            ),
            (
                "10/Oct/2000:13:55:36 -0700",
                Some((971_211_336_000_000, false)),
            ),
            ("971211336", Some((971_211_336_000_000, false))),
            ("971211336.000250999", Some((971_211_336_000_250, true))),
            ("-1", None),
            ("1e9", None),
            ("", None),
            (".5", None),
            ("99999999999999999999999999999999999999999999", None),
            ("971211336000", Some((971_211_336_000_000, true))),
            ("971211336250.5", Some((971_211_336_250_500, true))),
            ("971211336250125", Some((971_211_336_250_125, true))),
            ("971211336250125999", Some((971_211_336_250_125, true))),
            ("9712113362501259999999", None),
            ("yesterday", None),
        ] {
            assert_eq!(any(text), time, "{text}");
        }
        assert_eq!(decimal("12.5", 1_000), Some((12_500, true)));
        for hostile in [
            "",
            "10/Oct/2000",
            "99/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:13:55:36",
            "\u{0}\u{fffd}",
        ] {
            assert_eq!(common(hostile.as_bytes()), None, "{hostile:?}");
        }
    }
}
