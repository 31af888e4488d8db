use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};

use super::read_upstream::time_text;
use super::value_text::{self, integer_value};
use crate::time::wall_micros;

/// A wait in whole seconds, as `Retry-After` states it: at least one, rounded up, at most
/// [`RetryAfter::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RetryAfter(u64);

impl RetryAfter {
    /// A billion seconds, some 31 years. It is less than half of 2³¹, where caches and 32-bit
    /// clients overflow, and longer than any client waits. Only a longer wait is stated shorter
    /// than it is.
    pub(crate) const MAX: Self = Self(1_000_000_000);

    pub(crate) fn from_micros(us: u64) -> Self {
        Self(value_text::seconds(us).clamp(1, Self::MAX.0))
    }

    pub(crate) fn seconds(self) -> u64 {
        self.0
    }
}

/// Sets the header to the later of `ours` and the existing values. It may occur only once, so the
/// latest replaces all.
///
/// An existing value keeps its wording, and only if it is provably later: as seconds, or as a date.
/// A value of another form cannot be compared, and is replaced.
pub(crate) fn write(headers: &mut HeaderMap, ours: RetryAfter, now_unix_us: u64) {
    // Appended first: few responses have the header already, and for the others this is one search
    // instead of two.
    if let Some(value) = integer_value(ours.seconds())
        && let Ok(true) = headers.try_append(RETRY_AFTER, value)
    {
        keep_latest(headers, now_unix_us);
    }
}

/// Keeps one value, of equal ones the first.
fn keep_latest(headers: &mut HeaderMap, now_unix_us: u64) {
    let lines = headers.get_all(RETRY_AFTER).iter().rev();
    let waits = lines.filter_map(|value| Some((wait(value, now_unix_us)?, value.clone())));
    if let Some((_, latest)) = waits.max_by_key(|(wait, _)| *wait) {
        let _ = headers.try_insert(RETRY_AFTER, latest);
    }
}

/// The wait that a value states. Only a date needs the clock, which is read if `now_unix_us` is 0.
pub(super) fn wait(value: &HeaderValue, now_unix_us: u64) -> Option<Duration> {
    let value = value.as_bytes().trim_ascii();
    if let Some(seconds) = time_text::whole(value)
        && !value.is_empty()
    {
        return Some(Duration::from_secs(seconds));
    }
    let date_us = time_text::http_date(value)?;
    let now_unix_us = match now_unix_us {
        0 => wall_micros(),
        now => now,
    };
    Some(Duration::from_micros(date_us.saturating_sub(now_unix_us)))
}
