//! The dialects that can report only one policy: drafts -03 to -07 and `X-RateLimit-*`.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::dialect::{Dialect, ResetFormat};
use super::names::{self, Trio};
use super::policy_status::{PolicyStatus, PolicyTerms};
use super::report::Report;
use super::scanner::Bare;
use super::strictness::gives_way;
use super::structured;
use super::value_text::{self, Text};

/// `10;w=1, 1000;w=86400`
///
/// The drafts forbid two policies with one quota in this list, since clients tell the policies apart by it. Of such a
/// pair the one with the longer window stays: it is the stricter one.
pub(super) fn quota_list(policies: &[PolicyTerms<'_>]) -> Option<HeaderValue> {
    let mut text = Text::new();
    for (index, terms) in policies.iter().enumerate() {
        if gives_way(policies, index, |a, b| a.quota.q == b.quota.q, |a, b| b.quota.w.cmp(&a.quota.w)) {
            continue;
        }
        text.next_member().integer(terms.quota.q).bytes(b";w=").integer(terms.quota.w);
    }
    text.value()
}

/// Writes the policy that binds the client most, unless what is there already binds it more.
///
/// The fields only make sense together, so they are kept or replaced together. Ours are dropped if theirs are complete,
/// readable and leave less; at equal remainders, if theirs reset later or do not say when in a number.
pub(super) fn write(headers: &mut HeaderMap, dialect: Dialect, policies: Option<&HeaderValue>, report: &Report<'_>) {
    let Some(line) = reported(report) else { return };
    let ours = Standing { limit: line.terms.quota.q, remaining: line.r(), reset: reset(line, dialect, report) };
    if existing(headers, dialect).is_some_and(|theirs| theirs.stands(&ours)) {
        return;
    }
    match dialect {
        Dialect::XRateLimit(_) => ours.write_trio(headers, &names::X, value_text::integer_value(ours.limit)),
        Dialect::Draft03 => ours.write_trio(headers, &names::IETF, limit_with_quotas(ours.limit, policies)),
        Dialect::Draft06 => {
            ours.write_trio(headers, &names::IETF, value_text::integer_value(ours.limit));
            replace(headers, &names::POLICY, policies.cloned());
        }
        Dialect::Draft07 => {
            replace(headers, &names::RATELIMIT, ours.dictionary());
            replace(headers, &names::POLICY, policies.cloned());
        }
        Dialect::Draft11 | Dialect::None => {}
    }
}

struct Standing {
    limit: u64,
    remaining: u64,
    reset: u64,
}

impl Standing {
    fn write_trio(&self, headers: &mut HeaderMap, trio: &Trio, limit: Option<HeaderValue>) {
        replace(headers, &trio.limit, limit);
        replace(headers, &trio.remaining, value_text::integer_value(self.remaining));
        replace(headers, &trio.reset, value_text::integer_value(self.reset));
    }

    fn dictionary(&self) -> Option<HeaderValue> {
        let mut text = Text::new();
        text.bytes(b"limit=").integer(self.limit);
        text.bytes(b", remaining=").integer(self.remaining);
        text.bytes(b", reset=").integer(self.reset);
        text.value()
    }
}

/// `10, 10;w=1, 1000;w=86400`: draft -03 has no field of its own for the policies.
fn limit_with_quotas(limit: u64, policies: Option<&HeaderValue>) -> Option<HeaderValue> {
    let mut text = Text::new();
    text.integer(limit);
    if let Some(policies) = policies {
        text.next_member().bytes(policies.as_bytes());
    }
    text.value()
}

/// The one policy to report: the drafts demand the one with the lowest remainder. On a refusal it is the violated one
/// that keeps the client waiting longest, for a client that waits out any other is refused again.
fn reported<'a>(report: &'a Report<'a>) -> Option<&'a PolicyStatus<'a>> {
    if report.admitted {
        report.policies.iter().min_by_key(|line| (line.r(), Reverse(line.reset_us)))
    } else {
        let violated = report.policies.iter().filter(|line| line.violated);
        violated.min_by_key(|line| (Reverse(line.retry_us.unwrap_or(u64::MAX)), line.r()))
    }
}

/// When the policy is as good as new, never earlier than the wait.
///
/// A refusal in the words of an IETF draft is an exception: there Reset should name the same time as `Retry-After`.
/// `X-RateLimit-Reset` is bound by no document, only by the habit that it names the end of the window.
fn reset(line: &PolicyStatus<'_>, dialect: Dialect, report: &Report<'_>) -> u64 {
    let wait_us = if line.violated { line.retry_us.unwrap_or(0) } else { 0 };
    let reset_us = line.reset_us.max(wait_us);
    match dialect {
        Dialect::XRateLimit(ResetFormat::EpochSeconds) => {
            value_text::seconds(report.now_unix_us.saturating_add(reset_us))
        }
        Dialect::XRateLimit(ResetFormat::DeltaSeconds) => value_text::seconds(reset_us),
        _ if report.admitted => value_text::seconds(reset_us),
        _ => report.retry_after.map_or(value_text::seconds(reset_us), |wait| wait.seconds()),
    }
}

/// What somebody else already reported.
pub(super) struct Existing {
    pub(super) remaining: u64,
    /// `None` for an `X-RateLimit-Reset` in a format of its own.
    pub(super) reset: Option<u64>,
}

impl Existing {
    fn stands(&self, ours: &Standing) -> bool {
        let later = self.reset.is_none_or(|reset| reset >= ours.reset);
        self.remaining < ours.remaining || (self.remaining == ours.remaining && later)
    }
}

/// `None` unless all that the dialect requires is there, once and well-formed.
fn existing(headers: &HeaderMap, dialect: Dialect) -> Option<Existing> {
    match dialect {
        Dialect::Draft07 => existing_dictionary(headers),
        Dialect::Draft06 | Dialect::Draft03 => {
            let theirs = existing_trio(headers, &names::IETF)?;
            theirs.reset.is_some().then_some(theirs)
        }
        Dialect::XRateLimit(_) => existing_trio(headers, &names::X),
        Dialect::Draft11 | Dialect::None => None,
    }
}

pub(super) fn existing_trio(headers: &HeaderMap, trio: &Trio) -> Option<Existing> {
    single(headers, &trio.limit)?;
    let remaining = structured::single_count(single(headers, &trio.remaining)?)?;
    Some(Existing { remaining, reset: structured::single_count(single(headers, &trio.reset)?) })
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

/// A field of theirs must not survive beside fields of ours, so no value means no field.
fn replace(headers: &mut HeaderMap, name: &HeaderName, value: Option<HeaderValue>) {
    let placed = value.is_some_and(|value| headers.try_insert(name.clone(), value).is_ok());
    if !placed {
        headers.remove(name);
    }
}
