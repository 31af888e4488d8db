//! Values that are written as text: rates, durations, offsets.

use std::time::Duration;

use throttle_core::Rate;

use super::file_value::FileValue;
use super::form::*;

pub(super) const RATE: ValueForm = Parsed(
    "rate",
    "it must be text with a count and a period, as in \"10/second\" or \"100/15m\"",
    |text| {
        let error = text.parse::<Rate>().err()?;
        let whole = error.to_string();
        // The error repeats what was written only where the form is wrong.
        let repeated = format!("{} is {text:?}: ", error.field());
        Some(whole.strip_prefix(&repeated).unwrap_or(&whole).to_owned())
    },
);

/// A duration from 1 microsecond.
pub(super) const DURATION: ValueForm = Parsed(
    "duration",
    "it must be text with a number from 1 and us, ms, s, m, h or d, as in \"500ms\" or \"15m\"",
    |text| read_duration(text).is_none().then(String::new),
);

/// How much later the boundaries of a window are, or earlier.
pub(super) const SHIFT: ValueForm = Parsed(
    "shift",
    "it must be a duration, with a minus sign for earlier, as in \"6h\" or \"-30m\"",
    |text| read_shift(text).is_none().then(String::new),
);

/// An offset from UTC. Whether it is in range is checked with the quota.
pub(super) const UTC_OFFSET: ValueForm = Parsed(
    "utc-offset",
    "it must be a sign, hours and minutes, as in \"+01:00\" or \"-03:30\"",
    |text| read_offset(text).is_none().then(String::new),
);

impl FileValue<'_> {
    pub(super) fn rate(&self) -> Option<Rate> {
        self.text()?.parse().ok()
    }

    pub(super) fn duration(&self) -> Option<Duration> {
        read_duration(self.text()?)
    }

    /// In microseconds.
    pub(super) fn shift(&self) -> Option<i64> {
        read_shift(self.text()?)
    }

    /// In minutes.
    pub(super) fn utc_offset(&self) -> Option<i32> {
        read_offset(self.text()?)
    }
}

/// What a rate has for its period, so that durations are spelled in one way.
pub(super) fn read_duration(text: &str) -> Option<Duration> {
    let starts_with_a_number = text.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let rate: Rate = format!("1/{text}")
        .parse()
        .ok()
        .filter(|_| starts_with_a_number)?;
    Some(rate.period())
}

fn read_shift(text: &str) -> Option<i64> {
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |text| (-1, text));
    let micros = i64::try_from(read_duration(text)?.as_micros()).ok()?;
    Some(sign * micros)
}

fn read_offset(text: &str) -> Option<i32> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let two_digits = |text: &str| {
        (text.len() == 2)
            .then(|| text.parse::<u8>().ok())?
            .map(i32::from)
    };
    let is_plain = hours
        .bytes()
        .chain(minutes.bytes())
        .all(|b| b.is_ascii_digit());
    let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
    (is_plain && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_spelled_like_periods() {
        for (text, micros) in [
            ("500ms", 500_000),
            ("15m", 900_000_000),
            ("1 day", 86_400_000_000),
            ("2 hours", 7_200_000_000),
            ("1us", 1),
            (" 500ms", 500_000),
            ("500 ms ", 500_000),
        ] {
            assert_eq!(
                read_duration(text),
                Some(Duration::from_micros(micros)),
                "{text}"
            );
        }
        for text in [
            "",
            "5",
            "s",
            "0s",
            "-1s",
            "1.5s",
            "1/s",
            "1 fortnight",
            "99999999999999999999s",
            "1s2m",
        ] {
            assert_eq!(read_duration(text), None, "{text}");
        }
    }

    #[test]
    fn offsets_have_a_sign_and_two_numbers() {
        for (text, minutes) in [
            ("+01:00", 60),
            ("-03:30", -210),
            ("+00:00", 0),
            ("+14:00", 840),
            ("-99:59", -5_999),
        ] {
            assert_eq!(read_offset(text), Some(minutes), "{text}");
        }
        for text in [
            "", "+", "01:00", "+1:00", "+01:60", "+01", "+01:0", "++1:00", "+01:+1", "é1:00",
            "+é:00",
        ] {
            assert_eq!(read_offset(text), None, "{text}");
        }
    }

    #[test]
    fn duration_has_at_least_a_microsecond_and_one_sign_at_most() {
        for (text, micros) in [
            ("6h", 21_600_000_000),
            ("-30m", -1_800_000_000),
            ("1us", 1),
            ("-1us", -1),
        ] {
            assert_eq!(read_shift(text), Some(micros), "{text}");
        }
        for text in ["--1s", "+1s", "0s", "-0s", "-", "- 1"] {
            assert_eq!(read_shift(text), None, "{text}");
        }
    }
}
