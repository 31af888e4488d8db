//! `RateLimit` and `RateLimit-Policy` in the syntax of the IETF drafts -08 to -11.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::digits::Text;
use super::line::{Line, Terms, compare_rates, gives_way, strictness};
use super::retry_after::RetryAfter;
use super::structured::{self, Member};
use super::{Report, names};

/// `"per-ip";q=10;w=1, "uploads";q=1000000;qu="content-bytes";w=60`
pub(super) fn policy_list(policies: &[Terms<'_>]) -> Option<HeaderValue> {
    let mut text = Text::new();
    // A unit that cannot be told takes its policy along: without it the quota would read as a number of requests.
    let listed = |terms: &Terms<'_>| {
        structured::is_representable(terms.name) && terms.unit.is_none_or(structured::is_representable)
    };
    let rivals = |a: &Terms<'_>, b: &Terms<'_>| a.name == b.name && listed(b);
    let rate = |terms: &Terms<'_>| (terms.q(), Some(terms.w()));
    for (index, terms) in policies.iter().enumerate() {
        if !listed(terms) || gives_way(policies, index, rivals, |a, b| compare_rates(rate(a), rate(b))) {
            continue;
        }
        structured::string(text.next_member(), terms.name);
        text.bytes(b";q=").integer(terms.q());
        if let Some(unit) = terms.unit {
            structured::string(text.bytes(b";qu="), unit);
        }
        text.bytes(b";w=").integer(terms.w());
    }
    text.value()
}

pub(super) fn write(headers: &mut HeaderMap, policies: Option<&HeaderValue>, report: &Report<'_>) {
    if let Some(policies) = policies {
        if headers.contains_key(&names::POLICY) {
            join(headers, &names::POLICY, policies.as_bytes(), policy_stands);
        } else {
            insert(headers, &names::POLICY, policies.clone());
        }
    }
    let text = standing(report);
    if headers.contains_key(&names::RATELIMIT) {
        join(headers, &names::RATELIMIT, text.as_bytes(), standing_stands);
    } else if let Some(value) = text.value() {
        insert(headers, &names::RATELIMIT, value);
    }
}

/// `"per-ip";r=7;t=1, "per-user";r=640;t=55296`
fn standing(report: &Report<'_>) -> Text {
    let listed = |line: &Line<'_>| (report.admitted || line.violated) && structured::is_representable(line.terms.name);
    let rivals = |a: &Line<'_>, b: &Line<'_>| a.terms.name == b.terms.name && listed(b);
    // `Retry-After` should not name an earlier time than any window listed beside it, and it is the exact one.
    let longest = if report.admitted { u64::MAX } else { report.retry_after.map_or(u64::MAX, RetryAfter::seconds) };

    let mut text = Text::new();
    for (index, line) in report.lines.iter().enumerate() {
        let compare = |a: &Line<'_>, b: &Line<'_>| a.strictness().cmp(&b.strictness());
        if !listed(line) || gives_way(report.lines, index, rivals, compare) {
            continue;
        }
        structured::string(text.next_member(), line.terms.name);
        text.bytes(b";r=").integer(line.r()).bytes(b";t=").integer(line.t().min(longest));
    }
    text
}

/// Of two policies of one name the slower is announced: whoever follows it breaks neither. This does not depend on the
/// request, so the list stays stable from one response to the next.
fn policy_stands(theirs: &Member<'_>, ours: &Member<'_>) -> bool {
    let Some(their_quota) = theirs.count(b"q") else { return false };
    let our_quota = ours.count(b"q").unwrap_or(u64::MAX);
    compare_rates((their_quota, theirs.count(b"w")), (our_quota, ours.count(b"w"))).is_le()
}

/// Of two standings of one name the one that leaves less is told, both numbers from the same source: an intermediary
/// must not make a limit look looser than the server behind it, and the client must pass both anyway. A member without
/// `r` says nothing (it is required since draft -09) and gives way.
fn standing_stands(theirs: &Member<'_>, ours: &Member<'_>) -> bool {
    let of = |member: &Member<'_>| member.count(b"r").map(|r| strictness(r, member.count(b"t").unwrap_or(0)));
    of(theirs).is_some_and(|theirs| of(ours).is_none_or(|ours| theirs <= ours))
}

fn join(headers: &mut HeaderMap, name: &HeaderName, ours: &[u8], stands: fn(&Member<'_>, &Member<'_>) -> bool) {
    let existing = headers.get_all(name).into_iter().map(HeaderValue::as_bytes);
    if let Some(value) = structured::join(existing, ours, stands) {
        insert(headers, name, value);
    }
}

/// A response that has no room for another field goes without it.
fn insert(headers: &mut HeaderMap, name: &HeaderName, value: HeaderValue) {
    let _ = headers.try_insert(name.clone(), value);
}
