//! Durations as the numbers that decisions and headers count in.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throttle_core::Rate;

/// Some thirty years: longer than any wait, and an `Instant` can always be moved by it.
pub(crate) const FAR: Duration = Duration::from_secs(1_000_000_000);

/// Whole microseconds, at most `u64::MAX`.
#[inline]
pub(crate) fn micros(duration: Duration) -> u64 {
    // Not by `as_micros`, whose 128-bit arithmetic costs more than everything else that is done
    // with the number.
    match duration.as_secs() {
        seconds @ 0..=0xff_ffff_ffff => seconds * 1_000_000 + u64::from(duration.subsec_micros()),
        _ => u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
    }
}

/// µs since the Unix epoch, by the system's clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, micros)
}

/// How long `units` take at a rate, rounded up to nanoseconds.
pub(crate) fn time_for(rate: Rate, units: u64) -> Duration {
    if units == 0 {
        return Duration::ZERO;
    }
    let nanos = rate
        .period()
        .as_nanos()
        .saturating_mul(u128::from(units))
        .div_ceil(u128::from(rate.count().max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_beyond_the_range_are_the_longest() {
        assert_eq!(micros(Duration::from_micros(1_234_567)), 1_234_567);
        assert_eq!(micros(Duration::from_secs(1 << 40)), (1 << 40) * 1_000_000);
        assert_eq!(micros(Duration::MAX), u64::MAX);
        assert_eq!(
            time_for(Rate::per_day(1), u64::MAX),
            Duration::from_nanos(u64::MAX)
        );
    }

    #[test]
    fn time_for_units_is_rounded_up() {
        assert_eq!(
            time_for(Rate::per_second(3), 1),
            Duration::from_nanos(333_333_334)
        );
        assert_eq!(time_for(Rate::per_second(3), 3), Duration::from_secs(1));
        assert_eq!(time_for(Rate::per_second(3), 0), Duration::ZERO);
        assert_eq!(
            time_for(Rate::per_minute(0), 2),
            Duration::from_secs(120),
            "a rate that admits nothing"
        );
    }

    #[test]
    fn parts_of_a_microsecond_are_cut_off() {
        for (nanos, us) in [
            (0, 0),
            (999, 0),
            (1_000, 1),
            (1_999, 1),
            (1_000_000_999, 1_000_000),
        ] {
            assert_eq!(micros(Duration::from_nanos(nanos)), us, "{nanos} ns");
        }
        // From here on the seconds alone are more than the number holds.
        let last = u64::MAX / 1_000_000;
        assert_eq!(micros(Duration::from_secs(last)), last * 1_000_000);
        assert_eq!(micros(Duration::from_secs(last + 1)), u64::MAX);
    }

    #[test]
    fn wall_time_is_counted_in_microseconds_since_1970() {
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .expect("it is later")
                .as_micros()
        };
        let (before, told, after) = (now(), u128::from(wall_micros()), now());
        assert!((before..=after).contains(&told), "{before} {told} {after}");
    }
}
