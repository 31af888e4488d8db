//! Reads the headers about a single policy that a response already has.

use http::{HeaderMap, HeaderName};

use super::names::{RATELIMIT, Trio};
use super::structured;

/// Where the client stands, as the response states it.
pub(super) struct Existing {
    pub(super) remaining: u64,
    /// In the dialect's own measure. `None` if it is in another one.
    pub(super) reset: Option<u64>,
}

/// `None` unless all three headers are there once, and what remains is a number. The reset is read
/// by the given function.
pub(super) fn trio(
    headers: &HeaderMap,
    [limit, remaining, reset]: &Trio,
    read_reset: impl Fn(&[u8]) -> Option<u64>,
) -> Option<Existing> {
    single(headers, limit)?;
    let remaining = structured::single_count(single(headers, remaining)?)?;
    Some(Existing {
        remaining,
        reset: read_reset(single(headers, reset)?),
    })
}

/// `None` unless limit, remaining and reset are there and well-formed.
pub(super) fn dictionary(headers: &HeaderMap) -> Option<Existing> {
    let keys = [&b"limit"[..], b"remaining", b"reset"];
    let [limit, remaining, reset] = structured::dictionary_counts(headers, &RATELIMIT, keys)?;
    limit?;
    Some(Existing {
        remaining: remaining?,
        reset: Some(reset?),
    })
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut lines = headers.get_all(name).into_iter();
    let line = lines.next()?;
    lines.next().is_none().then_some(line.as_bytes())
}
