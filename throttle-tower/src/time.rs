//! Durations as the numbers that decisions and headers count in.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use throttle_core::Rate;

/// Some thirty years: longer than any wait, and an `Instant` can always be moved by it.
pub(crate) const FAR: Duration = Duration::from_secs(1_000_000_000);

/// Whole microseconds, at most `u64::MAX`.
#[inline]
pub(crate) fn micros(duration: Duration) -> u64 {
    // Not by `as_micros`, whose 128-bit arithmetic costs more than everything else that is done with the number.
    match duration.as_secs() {
        seconds @ 0..=0xff_ffff_ffff => seconds * 1_000_000 + u64::from(duration.subsec_micros()),
        _ => u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
    }
}

/// µs since the Unix epoch, by the system's clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// How long `units` take at a rate, rounded up to nanoseconds.
pub(crate) fn time_for(rate: Rate, units: u64) -> Duration {
    let nanos = rate.period().as_nanos().saturating_mul(u128::from(units)).div_ceil(u128::from(rate.count().max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
