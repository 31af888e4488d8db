//! `RateLimit` and `RateLimit-Policy` in the syntax of the IETF drafts -08 to -11.

use std::cmp::Reverse;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::described_decision::DescribedDecision;
use super::form::Form;
use super::header_schema::HeaderSchema;
use super::names::{LISTS, POLICY, RATELIMIT};
use super::policy_status::PolicyStatus;
use super::retry_after::RetryAfter;
use super::structured::{self, Member};
use super::value_text::Text;

pub(super) static DRAFT11: Form = Form {
    word: "draft-11",
    exposed: &LISTS,
    schemas: &[
        HeaderSchema::string("Of each policy what is left: `r` units within `t` seconds."),
        HeaderSchema::string("Of each policy the quota: `q` units in `w` seconds."),
    ],
    policies,
    write,
    states_instants: false,
};

/// `"per-ip";q=10;w=1, "uploads";q=1000000;qu="content-bytes";w=60`
fn policies(policies: &[PolicyStatus<'_>]) -> Option<HeaderValue> {
    let mut text = Text::new();
    for PolicyStatus { terms, .. } in policies {
        text.next_member()
            .bytes(&terms.name)
            .bytes(b";q=")
            .integer(terms.quota.q);
        if let Some(unit) = &terms.unit {
            structured::string(text.bytes(b";qu="), unit);
        }
        text.bytes(b";w=").integer(terms.quota.w);
    }
    text.value()
}

fn write(headers: &mut HeaderMap, decision: &DescribedDecision<'_>, policies: Option<HeaderValue>) {
    if let Some(policies) = policies {
        add(headers, &POLICY, policies, their_policy_stands);
    }
    if let Some(status) = status(decision) {
        add(headers, &RATELIMIT, status, their_status_stands);
    }
}

/// `"per-ip";r=7;t=1, "per-user";r=640;t=55296`
fn status(decision: &DescribedDecision<'_>) -> Option<HeaderValue> {
    let DescribedDecision {
        policies,
        admitted,
        retry_after,
        ..
    } = *decision;
    let mut text = Text::new();
    // `Retry-After` should not be earlier than any window listed beside it, and it is the exact one
    // of the two.
    let longest = retry_after
        .filter(|_| !admitted)
        .map_or(u64::MAX, RetryAfter::seconds);
    for policy in policies.iter().filter(|policy| admitted || policy.violated) {
        text.next_member().bytes(&policy.terms.name);
        text.bytes(b";r=")
            .integer(policy.r())
            .bytes(b";t=")
            .integer(policy.t().min(longest));
    }
    text.value()
}

/// Of two policies of one name the slower is announced: a client that keeps to it breaks neither.
/// This does not depend on the request, so the list stays the same from one response to the next.
fn their_policy_stands(theirs: &Member<'_>, ours: &Member<'_>) -> bool {
    let Some(their_quota) = theirs.count(b"q") else {
        return false;
    };
    let our_quota = ours.count(b"q").unwrap_or(u64::MAX);
    // By the rate that they amount to. A member may leave out its window; then the quotas are all
    // there is to compare.
    match (theirs.count(b"w"), ours.count(b"w")) {
        (Some(their_window), Some(our_window)) => {
            u128::from(their_quota) * u128::from(our_window)
                <= u128::from(our_quota) * u128::from(their_window)
        }
        _ => their_quota <= our_quota,
    }
}

/// Of two statuses of one name the one that leaves less is written, with both numbers from the same
/// source: an intermediary must not make a limit look looser than the server behind it does, and
/// the client must pass both anyway. A member without `r` states nothing (draft -09 and later
/// require it) and gives way.
fn their_status_stands(theirs: &Member<'_>, ours: &Member<'_>) -> bool {
    let of = |member: &Member<'_>| {
        member
            .count(b"r")
            .map(|r| (r, Reverse(member.count(b"t").unwrap_or(0))))
    };
    of(theirs).is_some_and(|theirs| of(ours).is_none_or(|ours| theirs <= ours))
}

/// Sets a header, or joins our list to the existing one. A response that has no room for another
/// header stays without it.
#[inline(always)]
fn add(
    headers: &mut HeaderMap,
    name: &HeaderName,
    ours: HeaderValue,
    stands: fn(&Member<'_>, &Member<'_>) -> bool,
) {
    // Appended first: few responses have the header already, and for the others this is one search
    // instead of two.
    if let Ok(true) = headers.try_append(name, ours) {
        join_last(headers, name, stands);
    }
}

/// Joins the last of a header's values, which is ours, to the ones before it.
#[cold]
fn join_last(
    headers: &mut HeaderMap,
    name: &HeaderName,
    stands: fn(&Member<'_>, &Member<'_>) -> bool,
) {
    let mut values = headers.get_all(name).iter();
    let Some(ours) = values.next_back() else {
        return;
    };
    if let Some(joined) =
        structured::join(values.map(HeaderValue::as_bytes), ours.as_bytes(), stands)
    {
        let _ = headers.try_insert(name, joined);
    }
}
