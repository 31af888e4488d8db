use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::time_text;
use crate::headers::structured;

/// One quota of a provider, as three headers of its own.
struct Quota {
    unit: Unit,
    limit: HeaderName,
    remaining: HeaderName,
    reset: Reset,
}

enum Unit {
    Request,
    /// A call takes many; how many is not known before.
    Token,
}

/// When a quota is whole again.
enum Reset {
    /// In so long: a duration as Go writes it.
    In(HeaderName),
    /// At an instant of RFC 3339.
    At(HeaderName),
    /// Within a minute; no header states when.
    WithinAMinute,
}

const fn name(text: &'static str) -> HeaderName {
    HeaderName::from_static(text)
}

const fn quota(unit: Unit, limit: &'static str, remaining: &'static str, reset: Reset) -> Quota {
    Quota { unit, limit: name(limit), remaining: name(remaining), reset }
}

/// OpenAI's, which Groq and others use too, Anthropic's and Mistral's.
static QUOTAS: [Quota; 8] = [
    quota(
        Unit::Request,
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        Reset::In(name("x-ratelimit-reset-requests")),
    ),
    quota(
        Unit::Token,
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        Reset::In(name("x-ratelimit-reset-tokens")),
    ),
    quota(
        Unit::Request,
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        Reset::At(name("anthropic-ratelimit-requests-reset")),
    ),
    quota(
        Unit::Token,
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        Reset::At(name("anthropic-ratelimit-tokens-reset")),
    ),
    quota(
        Unit::Token,
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        Reset::At(name("anthropic-ratelimit-input-tokens-reset")),
    ),
    quota(
        Unit::Token,
        "anthropic-ratelimit-output-tokens-limit",
        "anthropic-ratelimit-output-tokens-remaining",
        Reset::At(name("anthropic-ratelimit-output-tokens-reset")),
    ),
    quota(Unit::Request, "x-ratelimit-limit-req-minute", "x-ratelimit-remaining-req-minute", Reset::WithinAMinute),
    quota(Unit::Token, "x-ratelimit-limit-tokens-minute", "x-ratelimit-remaining-tokens-minute", Reset::WithinAMinute),
];

/// How long until a call can succeed, if a quota of the provider is used up; the longest wait of several.
///
/// What remains of a quota that is not used up slows no call down. These quotas refill all the time, and their reset is
/// when they are whole again, not when the next unit is there. So a wait that the response states itself is better known.
pub(crate) fn used_up(headers: &HeaderMap, now_unix_us: impl Fn() -> u64) -> Option<Duration> {
    QUOTAS.iter().filter_map(|quota| quota.wait(headers, &now_unix_us)).max().filter(|wait| !wait.is_zero())
}

impl Quota {
    fn wait(&self, headers: &HeaderMap, now_unix_us: &impl Fn() -> u64) -> Option<Duration> {
        let read = |name| headers.get(name).map(|value| value.as_bytes());
        if structured::single_count(read(&self.remaining)?)? > 0 {
            return None;
        }
        let whole_in = match &self.reset {
            Reset::In(name) => time_text::go_duration(read(name)?)?,
            Reset::At(name) => {
                let at_us = time_text::rfc3339(read(name)?)?;
                Duration::from_micros(at_us.saturating_sub(now_unix_us()))
            }
            // A window may have just begun.
            Reset::WithinAMinute => return Some(Duration::from_secs(60)),
        };
        let limit = read(&self.limit).and_then(structured::single_count).unwrap_or(1).max(1);
        Some(match self.unit {
            // All of the quota comes back in that time, so the next request in its part of it.
            Unit::Request => {
                let nanos = whole_in.as_nanos().div_ceil(u128::from(limit));
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            Unit::Token => whole_in,
        })
    }
}
