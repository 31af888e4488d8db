use std::num::NonZeroU32;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue};

use super::read_upstream::time_text;
use super::value_text;
use crate::time::wall_micros;

/// A wait in whole seconds, as `Retry-After` states it: at least one, rounded up, at most
/// [`RetryAfter::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RetryAfter(NonZeroU32);

impl RetryAfter {
    /// A billion seconds, some 31 years. It is less than half of 2³¹, where caches and 32-bit
    /// clients overflow, and longer than any client waits. Only a wait beyond it is stated shorter
    /// than it is.
    pub(crate) const MAX: Self = Self(NonZeroU32::new(1_000_000_000).expect("is not zero"));

    pub(crate) fn from_micros(us: u64) -> Self {
        let seconds = u32::try_from(value_text::seconds(us)).unwrap_or(u32::MAX);
        Self(NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN)).min(Self::MAX)
    }

    pub(crate) fn seconds(self) -> u64 {
        u64::from(self.0.get())
    }
}

/// Sets the header to the later of `ours` and the existing values. It may occur only once, so the
/// latest replaces all.
///
/// An existing value keeps its wording, and only if it is provably later: as seconds, or as a date.
/// Anything else cannot be compared and is replaced. The clock is read for that only, unless
/// `now_unix_us` is more than 0.
pub(crate) fn write(headers: &mut HeaderMap, ours: RetryAfter, now_unix_us: u64) {
    let Some(value) = value_text::integer_value(ours.seconds()) else {
        return;
    };
    // Appended first: few responses have the header already, and for the others this is one search
    // instead of two.
    if let Ok(true) = headers.try_append(RETRY_AFTER, value) {
        keep_latest(headers, now_unix_us);
    }
}

/// Keeps one value: ours, which is the last, or a later one of the others.
fn keep_latest(headers: &mut HeaderMap, now_unix_us: u64) {
    // They may be dates. Nearly all responses have none, so the clock was not read before.
    let now_unix_us = if now_unix_us == 0 {
        wall_micros()
    } else {
        now_unix_us
    };
    let wait = |value: &HeaderValue| wait(value, now_unix_us);
    let mut values = headers.get_all(RETRY_AFTER).iter();
    let Some(ours) = values.next_back() else {
        return;
    };
    let theirs = values.filter_map(|value| Some((wait(value)?, value)));
    let latest = match theirs.max_by_key(|(theirs, _)| *theirs) {
        Some((theirs, value)) if wait(ours).is_none_or(|ours| theirs >= ours) => value.clone(),
        _ => ours.clone(),
    };
    let _ = headers.try_insert(RETRY_AFTER, latest);
}

/// How long a value asks to wait.
pub(super) fn wait(value: &HeaderValue, now_unix_us: u64) -> Option<Duration> {
    let value = value.as_bytes().trim_ascii();
    match time_text::whole(value).filter(|_| !value.is_empty()) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => time_text::http_date(value)
            .map(|date_us| Duration::from_micros(date_us.saturating_sub(now_unix_us))),
    }
}
