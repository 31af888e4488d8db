//! Reads the one date format that HTTP servers generate (RFC 9110 §5.6.7), to compare it with a wait. Its two obsolete
//! relatives are not read: nothing would be gained but the century that one of them leaves out.

/// Seconds since the Unix epoch of `Sun, 06 Nov 1994 08:49:37 GMT`. The day of the week is not checked.
pub(super) fn unix_seconds(date: &[u8]) -> Option<u64> {
    let (day_name, rest) = date.split_first_chunk::<5>()?;
    matches!(day_name, [_, _, _, b',', b' ']).then_some(())?;
    let (rest, zone) = rest.split_last_chunk::<4>()?;
    let [d, dd, b' ', month @ .., y, yy, yyy, yyyy, b' ', h, hh, b':', m, mm, b':', s, ss] = rest else { return None };
    (zone == b" GMT").then_some(())?;

    let month = MONTHS.iter().position(|name| name.as_slice() == month)? as u64;
    let year = number(&[*y, *yy, *yyy, *yyyy])?;
    let day = number(&[*d, *dd])?;
    let (hour, minute, second) = (number(&[*h, *hh])?, number(&[*m, *mm])?, number(&[*s, *ss])?);
    // Sixty is a leap second.
    let valid = year >= 1970 && (1..=31).contains(&day) && hour < 24 && minute < 60 && second <= 60;
    valid.then_some(())?;

    let days = days_before_year(year) - days_before_year(1970) + days_before_month(year, month) + day - 1;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

const MONTHS: [&[u8; 4]; 12] =
    [b"Jan ", b"Feb ", b"Mar ", b"Apr ", b"May ", b"Jun ", b"Jul ", b"Aug ", b"Sep ", b"Oct ", b"Nov ", b"Dec "];

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |n, digit| digit.is_ascii_digit().then(|| n * 10 + u64::from(digit - b'0')))
}

/// Days from the first of January of year 1, for years from 1.
fn days_before_year(year: u64) -> u64 {
    let past = year - 1;
    past * 365 + past / 4 - past / 100 + past / 400
}

/// Days from the first of January of that year; January is month 0.
fn days_before_month(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let ordinary = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    ordinary.get(month as usize).map_or(0, |days| days + u64::from(leap && month > 1))
}

#[cfg(test)]
mod tests {
    use super::unix_seconds;

    #[test]
    fn dates_are_read_to_the_second() {
        assert_eq!(unix_seconds(b"Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(unix_seconds(b"Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(unix_seconds(b"Thu, 29 Feb 2024 12:00:00 GMT"), Some(1_709_208_000));
        assert_eq!(unix_seconds(b"Fri, 01 Mar 2024 00:00:00 GMT"), Some(1_709_251_200));
        assert_eq!(unix_seconds(b"Mon, 01 Mar 2100 00:00:00 GMT"), Some(4_107_542_400));
        assert_eq!(unix_seconds(b"Fri, 31 Dec 9999 23:59:59 GMT"), Some(253_402_300_799));
    }

    #[test]
    fn anything_else_is_no_date() {
        let wrong: [&[u8]; 9] = [
            b"",
            b"Sun",
            b"Sunday, 06-Nov-94 08:49:37 GMT",
            b"Sun Nov  6 08:49:37 1994",
            b"Sun, 06 Nov 1994 08:49:37 UTC",
            b"Sun, 06 Nov 1994 24:00:00 GMT",
            b"Sun, 00 Nov 1994 08:49:37 GMT",
            b"Sun, 06 Foo 1994 08:49:37 GMT",
            b"Sun, 06 Nov 0000 08:49:37 GMT",
        ];
        for date in wrong {
            assert_eq!(unix_seconds(date), None, "{}", date.escape_ascii());
        }
    }
}
