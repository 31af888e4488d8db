//! What remains of one policy, as the dialects state it that can describe only one.
//!
//! The headers are only meaningful together, so they are kept or replaced together. Those of the
//! response stay if they are complete, readable and leave less; or, if they leave as much, if they
//! reset no earlier.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::policy_status::PolicyStatus;
use super::structured::single_count;
use super::value_text::integer_value;

/// The headers that describe one policy: its limit, what remains and its reset.
pub(super) type Trio = [HeaderName; 3];

/// How much remains, and until when.
pub(super) struct Standing {
    pub(super) remaining: u64,
    /// In the dialect's own measure.
    pub(super) reset: u64,
}

impl Standing {
    /// In a dialect without windows, which states the most that can remain as the limit.
    pub(super) fn without_window(policy: &PolicyStatus<'_>, reset: u64) -> Self {
        Self {
            remaining: policy.r().min(policy.terms.quota.most),
            reset,
        }
    }

    pub(super) fn is_as_strict_as(&self, other: &Self) -> bool {
        (self.remaining, Reverse(self.reset)) <= (other.remaining, Reverse(other.reset))
    }

    /// Writes the three headers, unless those of the response are as strict. Returns whether it
    /// wrote them. Without the reset that `read_reset` returns, those of the response are replaced.
    pub(super) fn write(
        &self,
        headers: &mut HeaderMap,
        trio: &Trio,
        read_reset: impl FnOnce(&[u8]) -> Option<u64>,
        limit: Option<HeaderValue>,
        reset: Option<HeaderValue>,
    ) -> bool {
        let theirs = Self::read(headers, trio, read_reset);
        if theirs.is_some_and(|theirs| theirs.is_as_strict_as(self)) {
            return false;
        }
        let values = [limit, integer_value(self.remaining), reset];
        for (name, value) in trio.iter().zip(values) {
            replace(headers, name, value);
        }
        true
    }

    /// `None` unless all three headers are there once and can be read.
    fn read(
        headers: &HeaderMap,
        [limit, remaining, reset]: &Trio,
        read_reset: impl FnOnce(&[u8]) -> Option<u64>,
    ) -> Option<Self> {
        single(headers, limit)?;
        Some(Self {
            remaining: single_count(single(headers, remaining)?)?,
            reset: read_reset(single(headers, reset)?)?,
        })
    }
}

fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut lines = headers.get_all(name).into_iter();
    let line = lines.next()?;
    lines.next().is_none().then_some(line.as_bytes())
}

/// Sets a header. Without a value the header is removed: the response's own belongs to headers that
/// are replaced.
pub(super) fn replace(headers: &mut HeaderMap, name: &HeaderName, value: Option<HeaderValue>) {
    let is_set = value.is_some_and(|value| headers.try_insert(name.clone(), value).is_ok());
    if !is_set {
        headers.remove(name);
    }
}
