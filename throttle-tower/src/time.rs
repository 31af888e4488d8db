//! Durations as the numbers that decisions and fields count in.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Some thirty years: longer than anybody waits, and an `Instant` can always be moved by it.
pub(crate) const FAR: Duration = Duration::from_secs(1_000_000_000);

/// Whole microseconds, at most `u64::MAX`.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// µs since the Unix epoch, by the system's clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}
