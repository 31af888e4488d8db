//! The headers of OpenAI's API: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`.
//!
//! Source: OpenAI's documentation, "Rate limits in headers".

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName};

use crate::headers::form::DialectForm;
use crate::headers::header_content::HeaderContent;
use crate::headers::header_schema::HeaderSchema;
use crate::headers::read_upstream::go_duration;
use crate::headers::standing::{Standing, Trio};
use crate::headers::value_text::{ValueText, integer_value};

static NAMES: [HeaderName; 7] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
    RETRY_AFTER,
];

const RESET: HeaderSchema = HeaderSchema::string("How long until all is left again, as `1m30s`.");

pub(super) static OPENAI: DialectForm = DialectForm {
    word: "openai",
    exposed: &NAMES,
    schemas: &[
        HeaderSchema::LIMIT,
        HeaderSchema::REMAINING,
        RESET,
        HeaderSchema::LIMIT,
        HeaderSchema::REMAINING,
        RESET,
    ],
    policies: |_| None,
    write: |headers, decision, _| write(headers, decision),
    states_instants: false,
};

/// Writes what remains by requests, and by tokens. A policy of another unit is left out,
/// because these headers have no name for it.
fn write(headers: &mut HeaderMap, decision: &HeaderContent<'_>) {
    let [requests @ .., _, _, _, _] = &NAMES;
    let [_, _, _, tokens @ .., _] = &NAMES;
    write_unit(headers, requests, decision, |unit| {
        matches!(unit, None | Some("requests"))
    });
    write_unit(headers, tokens, decision, |unit| unit == Some("tokens"));
}

/// The headers of a unit are only meaningful together, so they are kept or replaced together.
fn write_unit(
    headers: &mut HeaderMap,
    trio: &Trio,
    decision: &HeaderContent<'_>,
    is_unit: impl Fn(Option<&str>) -> bool,
) {
    let Some(policy) = decision.binding(|policy| is_unit(policy.terms.unit.as_deref())) else {
        return;
    };
    // Whole milliseconds, rounded up, so that no wait ends early.
    let reset = policy.full_after_us().div_ceil(1_000);
    Standing::without_window(policy, reset).write(
        headers,
        trio,
        |reset| Some(go_duration(reset).map_or(u64::MAX, millis)),
        integer_value(policy.terms.quota.most),
        go_text(reset).value(),
    );
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A duration as Go writes it: `0s`, `17ms`, `1.5s`, `6m0s`, `24h0m0s`.
fn go_text(ms: u64) -> ValueText {
    let mut text = ValueText::default();
    if (1..1_000).contains(&ms) {
        text.integer(ms).bytes(b"ms");
        return text;
    }
    let seconds = ms / 1_000;
    let minutes = seconds / 60;
    let hours = minutes / 60;
    if hours > 0 {
        text.integer(hours).bytes(b"h");
    }
    if minutes > 0 {
        text.integer(minutes % 60).bytes(b"m");
    }
    text.integer(seconds % 60);
    let fraction = format!(".{:03}", ms % 1_000);
    text.bytes(
        fraction
            .trim_end_matches('0')
            .trim_end_matches('.')
            .as_bytes(),
    );
    text.bytes(b"s");
    text
}
