//! The proleptic Gregorian calendar in integers, by days since 1970-01-01. After Howard Hinnant,
//! "chrono-compatible low-level date algorithms".

const DAYS_PER_ERA: i64 = 146_097;
/// From 0000-03-01, where an era begins, to 1970-01-01.
const EPOCH_SHIFT: i64 = 719_468;

/// Year, month (1–12) and day (1–31) of a day number.
pub(crate) fn date_of(day: i64) -> (i64, i64, i64) {
    let shifted = day + EPOCH_SHIFT;
    let (era, day_of_era) = (
        shifted.div_euclid(DAYS_PER_ERA),
        shifted.rem_euclid(DAYS_PER_ERA),
    );
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months counted from March, so that the leap day is the last of its year.
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

/// Day number of the first of a month; month 13 is January of the next year.
pub(crate) fn first_of_month(year: i64, month: i64) -> i64 {
    // A year from March ends with its months 13 and 14.
    let (year, from_march) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_era =
        year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * from_march + 2) / 5;
    era * DAYS_PER_ERA + day_of_era - EPOCH_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts days one by one from a known date, by the leap-year rule alone.
    #[test]
    fn every_day_of_eight_centuries() {
        let leap = |y: i64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
        let length = |y, m| match m {
            2 if leap(y) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        // 1600-01-01 is 135 140 days before the epoch.
        let (mut year, mut month, mut day) = (1600, 1, 1);
        for number in -135_140..157_054 {
            assert_eq!(date_of(number), (year, month, day), "day {number}");
            if day == 1 {
                assert_eq!(first_of_month(year, month), number);
            }
            day += 1;
            if day > length(year, month) {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!((year, month, day), (2400, 1, 1));
    }
}
