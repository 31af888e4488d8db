//! Drafts -03 to -07, which can describe only one policy, and list the quotas of all.

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::headers::form::DialectForm;
use crate::headers::header_content::HeaderContent;
use crate::headers::header_schema::HeaderSchema;
use crate::headers::names::{LISTS, POLICY, RATELIMIT};
use crate::headers::policy_status::PolicyStatus;
use crate::headers::retry_after::RetryAfter;
use crate::headers::standing::{Standing, replace};
use crate::headers::structured::{self, single_count};
use crate::headers::value_text::{ValueText, integer_value, seconds};

static NAMES: [HeaderName; 5] = [
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    RETRY_AFTER,
];

const QUOTAS: HeaderSchema =
    HeaderSchema::string("The quotas, each with its window `w` in seconds.");

pub(super) static DRAFT07: DialectForm = DialectForm {
    word: "draft-07",
    exposed: &LISTS,
    schemas: &[
        HeaderSchema::string("The limit, what remains, and the seconds until the reset."),
        QUOTAS,
    ],
    policies: quotas,
    write: write_dictionary,
    states_instants: false,
};

pub(super) static DRAFT06: DialectForm = DialectForm {
    word: "draft-06",
    exposed: &NAMES,
    schemas: &[
        QUOTAS,
        HeaderSchema::LIMIT,
        HeaderSchema::REMAINING,
        HeaderSchema::RESET,
    ],
    policies: quotas,
    write: |headers, decision, policies| {
        if write_trio(headers, decision, integer_value) {
            replace(headers, &POLICY, policies);
        }
    },
    states_instants: false,
};

/// It has no separate header for the policies: `10, 10;w=1, 1000;w=86400`.
pub(super) static DRAFT03: DialectForm = DialectForm {
    word: "draft-03",
    exposed: {
        let [_, exposed @ ..] = &NAMES;
        exposed
    },
    schemas: &[
        HeaderSchema::string("The limit, and the quotas, each with its window `w`."),
        HeaderSchema::REMAINING,
        HeaderSchema::RESET,
    ],
    policies: quotas,
    write: |headers, decision, policies| {
        write_trio(headers, decision, |limit| {
            let mut text = ValueText::default();
            text.integer(limit);
            if let Some(policies) = policies {
                text.next_member().bytes(policies.as_bytes());
            }
            text.value()
        });
    },
    states_instants: false,
};

/// `10;w=1, 1000;w=86400`
///
/// The drafts forbid two policies with one quota in this list, because clients distinguish the
/// policies by it. If two have the same quota, the longer window wins: it is the stricter one. If
/// the windows are equal too, the first policy wins.
fn quotas(policies: &[PolicyStatus<'_>]) -> Option<HeaderValue> {
    let mut text = ValueText::default();
    for (index, policy) in policies.iter().enumerate() {
        let quota = policy.terms.quota;
        let loses = policies.iter().enumerate().any(|(at, other)| {
            let other = other.terms.quota;
            other.q == quota.q && (other.w, index) > (quota.w, at)
        });
        if !loses {
            text.next_member()
                .integer(quota.q)
                .bytes(b";w=")
                .integer(quota.w);
        }
    }
    text.value()
}

/// `limit=10, remaining=7, reset=1`
fn write_dictionary(
    headers: &mut HeaderMap,
    decision: &HeaderContent<'_>,
    policies: Option<HeaderValue>,
) {
    let Some(policy) = decision.binding(|_| true) else {
        return;
    };
    let ours = standing(policy, decision.wait());
    if existing_dictionary(headers).is_none_or(|theirs| !theirs.is_as_strict_as(&ours)) {
        let mut text = ValueText::default();
        text.bytes(b"limit=").integer(policy.terms.quota.q);
        text.bytes(b", remaining=").integer(ours.remaining);
        text.bytes(b", reset=").integer(ours.reset);
        replace(headers, &RATELIMIT, text.value());
        replace(headers, &POLICY, policies);
    }
}

/// `None` unless limit, remaining and reset are there and well-formed.
fn existing_dictionary(headers: &HeaderMap) -> Option<Standing> {
    let keys = [&b"limit"[..], b"remaining", b"reset"];
    let [limit, remaining, reset] = structured::dictionary_counts(headers, &RATELIMIT, keys)?;
    limit?;
    Some(Standing {
        remaining: remaining?,
        reset: reset?,
    })
}

/// Writes the three headers of drafts -06 and -03, and returns whether it did. `write_limit` makes
/// the value of the first.
fn write_trio(
    headers: &mut HeaderMap,
    decision: &HeaderContent<'_>,
    write_limit: impl FnOnce(u64) -> Option<HeaderValue>,
) -> bool {
    let [_, trio @ .., _] = &NAMES;
    let Some(policy) = decision.binding(|_| true) else {
        return false;
    };
    let ours = standing(policy, decision.wait());
    let limit = write_limit(policy.terms.quota.q);
    ours.write(
        headers,
        trio,
        single_count,
        limit,
        integer_value(ours.reset),
    )
}

/// The reset is when the key equals an unused one, or on a refusal the same time as in
/// `Retry-After`, as the drafts ask for.
fn standing(policy: &PolicyStatus<'_>, wait: Option<RetryAfter>) -> Standing {
    let wait = wait.map(RetryAfter::seconds);
    Standing {
        remaining: policy.r(),
        reset: wait.unwrap_or_else(|| seconds(policy.full_after_us())),
    }
}
