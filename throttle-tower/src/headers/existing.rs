//! Reads the headers about a single policy that a response already has.

use http::{HeaderMap, HeaderName};

use super::dialect::Dialect;
use super::names::{self, Trio};
use super::scanner::Bare;
use super::structured;

/// Where the client stands, as the response states it.
pub(super) struct Existing {
    pub(super) remaining: u64,
    /// In the dialect's own measure. `None` for an `X-RateLimit-Reset` in another format than the dialect's.
    pub(super) reset: Option<u64>,
}

/// `None` unless every header that the dialect requires is present, once and well-formed.
pub(super) fn existing(headers: &HeaderMap, dialect: Dialect) -> Option<Existing> {
    match dialect {
        Dialect::Draft07 => existing_dictionary(headers),
        Dialect::Draft06 | Dialect::Draft03 => {
            let theirs = existing_trio(headers, &names::IETF, structured::single_count)?;
            theirs.reset.is_some().then_some(theirs)
        }
        Dialect::XRateLimit(_) => existing_trio(headers, &names::X, structured::single_count),
        Dialect::Draft11 | Dialect::OpenAi | Dialect::None => None,
    }
}

/// `None` unless limit and remaining are there. The reset is read by the given function.
pub(super) fn existing_trio(
    headers: &HeaderMap,
    trio: &Trio,
    read_reset: impl Fn(&[u8]) -> Option<u64>,
) -> Option<Existing> {
    single(headers, &trio.limit)?;
    let remaining = structured::single_count(single(headers, &trio.remaining)?)?;
    Some(Existing { remaining, reset: read_reset(single(headers, &trio.reset)?) })
}

pub(super) fn existing_dictionary(headers: &HeaderMap) -> Option<Existing> {
    let [mut limit, mut remaining, mut reset] = [None; 3];
    for line in headers.get_all(&names::RATELIMIT) {
        structured::dictionary(line.as_bytes(), |key, value| match key {
            b"limit" => limit = Some(value),
            b"remaining" => remaining = Some(value),
            b"reset" => reset = Some(value),
            _ => {}
        })?;
    }
    let count = |value: Option<Bare>| value.and_then(Bare::count);
    count(limit)?;
    Some(Existing { remaining: count(remaining)?, reset: Some(count(reset)?) })
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut lines = headers.get_all(name).into_iter();
    let line = lines.next()?;
    lines.next().is_none().then_some(line.as_bytes())
}
