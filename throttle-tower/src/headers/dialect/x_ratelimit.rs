//! `X-RateLimit-Limit`, `-Remaining` and `-Reset`, with either meaning of the reset.

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

use crate::headers::form::DialectForm;
use crate::headers::header_content::HeaderContent;
use crate::headers::header_schema::HeaderSchema;
use crate::headers::standing::Standing;
use crate::headers::structured::single_count;
use crate::headers::value_text::{integer_value, seconds};

static NAMES: [HeaderName; 4] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    RETRY_AFTER,
];

pub(super) static SECONDS: DialectForm = DialectForm {
    word: "x-ratelimit",
    exposed: &NAMES,
    schemas: &[
        HeaderSchema::LIMIT,
        HeaderSchema::REMAINING,
        HeaderSchema::RESET,
    ],
    policies: |_| None,
    write: |headers, decision, _| write(headers, decision, 0),
    states_instants: false,
};

pub(super) static EPOCH: DialectForm = DialectForm {
    word: "x-ratelimit-epoch",
    exposed: &NAMES,
    schemas: &[
        HeaderSchema::LIMIT,
        HeaderSchema::REMAINING,
        HeaderSchema::integer("When all is left again, in seconds since 1970."),
    ],
    policies: |_| None,
    write: |headers, decision, _| write(headers, decision, decision.now_unix_us),
    states_instants: true,
};

/// The reset counts seconds from an instant in µs: from now, or since 1970 if that is now. No
/// standard names its instant, only the custom that it is the end of the window.
///
/// A reset that is no number, such as a date, may be later than ours.
fn write(headers: &mut HeaderMap, decision: &HeaderContent<'_>, now_us: u64) {
    let Some(policy) = decision.binding(|_| true) else {
        return;
    };
    let [trio @ .., _] = &NAMES;
    let reset = seconds(now_us.saturating_add(policy.full_after_us()));
    Standing::without_window(policy, reset).write(
        headers,
        trio,
        |reset| single_count(reset).or(Some(u64::MAX)),
        integer_value(policy.terms.quota.most),
        integer_value(reset),
    );
}
