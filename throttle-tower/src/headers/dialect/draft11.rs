//! `RateLimit` and `RateLimit-Policy` in the syntax of the IETF drafts -08 to -11.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::headers::form::DialectForm;
use crate::headers::header_content::HeaderContent;
use crate::headers::header_schema::HeaderSchema;
use crate::headers::names::{LISTS, POLICY, RATELIMIT};
use crate::headers::policy_status::PolicyStatus;
use crate::headers::retry_after::RetryAfter;
use crate::headers::structured;
use crate::headers::value_text::ValueText;
use crate::json::quoted;

pub(super) static DRAFT11: DialectForm = DialectForm {
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
    let mut text = ValueText::default();
    for PolicyStatus { terms, .. } in policies {
        text.next_member().bytes(terms.name.as_bytes());
        text.bytes(b";q=").integer(terms.quota.q);
        if let Some(unit) = &terms.unit {
            text.bytes(b";qu=").bytes(quoted(unit).as_bytes());
        }
        text.bytes(b";w=").integer(terms.quota.w);
    }
    text.value()
}

fn write(headers: &mut HeaderMap, decision: &HeaderContent<'_>, policies: Option<HeaderValue>) {
    // Appended first: few responses have the header already, and for the others this is one search
    // instead of two. A response without room for another header stays without it.
    if let Some(policies) = policies
        && let Ok(true) = headers.try_append(POLICY, policies)
    {
        join(headers, &POLICY);
    }
    if let Some(status) = status(decision)
        && let Ok(true) = headers.try_append(RATELIMIT, status)
    {
        join(headers, &RATELIMIT);
    }
}

/// `"per-ip";r=7;t=1, "per-user";r=640;t=55296`
fn status(decision: &HeaderContent<'_>) -> Option<HeaderValue> {
    // By the draft, `Retry-After` is not earlier than any window that is listed, and of the two it
    // is the exact one.
    let longest = decision.wait().map_or(u64::MAX, RetryAfter::seconds);
    let mut text = ValueText::default();
    for policy in decision.policies {
        if decision.admitted || policy.violated {
            text.next_member().bytes(policy.terms.name.as_bytes());
            text.bytes(b";r=").integer(policy.r());
            text.bytes(b";t=").integer(policy.t().min(longest));
        }
    }
    text.value()
}

/// Joins the lists of a response, of which ours is the last. Each member stays as it was written.
///
/// They become one value, because many clients read only the first line of a header. A line that
/// does not parse is dropped: because of it, clients would ignore all of the header.
fn join(headers: &mut HeaderMap, name: &HeaderName) {
    let lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let lists: Vec<_> = lines.filter(|line| is_list(line)).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&lists.join(&b", "[..])) {
        let _ = headers.try_insert(name, joined);
    }
}

fn is_list(line: &[u8]) -> bool {
    structured::list_counts(line, []).is_some()
}
