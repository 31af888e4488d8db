use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::header_schema::HeaderSchema;
use super::read_upstream::millis;
use super::retry_after::{RetryAfter, wait};
use super::value_text;
use crate::time::micros;

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// As long as the longest `Retry-After`.
const MAX_MILLIS: u64 = 1_000_000_000_000;

/// Headers for the SDKs of LLM providers, which no standard defines. Responses to requests beyond a
/// limit carry them in addition to `Retry-After`. Other refusals do not.
///
/// * `retry-after-ms`: the same wait in milliseconds, rounded up. A client that reads it comes back
///   up to a second sooner, and never early.
/// * `x-should-retry: false`: where the wait is longer than [`give_up_after`](Self::give_up_after),
///   or no wait helps. A client that reads it returns the error immediately.
///
/// What clients do at their default settings, as measured in November 2026; tests repeat it for the
/// two headers:
///
/// | client | `retry-after-ms` | a wait of an hour | `x-should-retry: false` |
/// |---|---|---|---|
/// | `openai` 3.54 for Python | is obeyed | returns the error | returns the error |
/// | `openai` 6.49 for Node.js | is obeyed | sleeps for it | returns the error |
/// | `anthropic` 2.12 for Python | is obeyed | sleeps for it | returns the error |
/// | `@anthropic-ai/sdk` 1.12 | is obeyed | sleeps for it | returns the error |
/// | `urllib3` 2.8, `got` 14.6, `ky` 1.14 | is ignored: `Retry-After` counts | sleeps for it | is ignored |
///
/// So no header shortens the wait of a client of the last row: where waits may be long, its users
/// should bound them. None of these clients reads `RateLimit`. gRPC clients read [other
/// headers](crate::Refusal::grpc_response).
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::headers::SdkHints;
/// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, limit};
///
/// let limits =
///     limit("requests", Gcra::new(Rate::per_minute(60))).by(Header::new("authorization"));
/// let hints = SdkHints::default().give_up_after(Duration::from_secs(30));
/// let throttle = ThrottleLayer::builder(limits).sdk_hints(hints).build()?;
/// assert!(throttle.openapi().contains("retry-after-ms"));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct SdkHints {
    pub(crate) give_up_after: Duration,
}

impl Default for SdkHints {
    fn default() -> Self {
        Self {
            give_up_after: Duration::from_secs(60),
        }
    }
}

impl SdkHints {
    /// Sets the longest wait that a client should keep. If the wait is longer,
    /// `x-should-retry: false` tells the client not to retry. Defaults to 60 seconds.
    pub const fn give_up_after(mut self, wait: Duration) -> Self {
        self.give_up_after = wait;
        self
    }

    pub(super) fn headers() -> [(&'static HeaderName, &'static HeaderSchema); 2] {
        const MS: HeaderSchema = HeaderSchema::integer("`retry-after` in milliseconds.");
        const SHOULD: HeaderSchema =
            HeaderSchema::string("`false` if the wait is long, or if no wait helps.");
        [(&RETRY_AFTER_MS, &MS), (&SHOULD_RETRY, &SHOULD)]
    }

    /// Writes them on a refusal that has its `Retry-After` already. `wait_us` is its wait, or
    /// `None` if no wait helps. Of two waits the longer stays, and so does `x-should-retry: false`.
    pub(crate) fn write(self, headers: &mut HeaderMap, wait_us: Option<u64>) {
        let wait_us = wait_us.map(|wait| wait.max(later_retry_after(headers, wait).unwrap_or(0)));
        if wait_us.is_none_or(|wait| wait > micros(self.give_up_after)) {
            headers.insert(&SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        let Some(wait) = wait_us else { return };
        let theirs = headers
            .get(&RETRY_AFTER_MS)
            .and_then(|value| millis(value.as_bytes()));
        if theirs.is_none_or(|theirs| micros(theirs) < wait)
            && let Some(value) =
                value_text::integer_value(wait.div_ceil(1_000).clamp(1, MAX_MILLIS))
        {
            headers.insert(&RETRY_AFTER_MS, value);
        }
    }
}

/// The wait of a `Retry-After` that is later than this layer's own, which is `wait_us` rounded up
/// to seconds.
fn later_retry_after(headers: &HeaderMap, wait_us: u64) -> Option<u64> {
    let value = headers.get(RETRY_AFTER)?;
    let is_own = value.to_str().ok()?.parse() == Ok(RetryAfter::from_micros(wait_us).seconds());
    if is_own {
        None
    } else {
        wait(value, 0).map(micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// The hints of a response that has some headers already: the milliseconds, and whether a retry
    /// is refused.
    fn written(
        existing: &[(&'static str, &'static str)],
        wait_us: Option<u64>,
    ) -> [Option<String>; 2] {
        let lines = existing.iter();
        let mut headers: HeaderMap = lines
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect();
        SdkHints::default().write(&mut headers, wait_us);
        [&RETRY_AFTER_MS, &SHOULD_RETRY]
            .map(|name| Some(headers.get(name)?.to_str().unwrap().to_owned()))
    }

    fn of(millis: &str, should_retry: Option<&str>) -> [Option<String>; 2] {
        [Some(millis.to_owned()), should_retry.map(str::to_owned)]
    }

    #[test]
    fn milliseconds_are_rounded_up_and_a_long_wait_is_given_up() {
        assert_eq!(written(&[], Some(1)), of("1", None));
        assert_eq!(written(&[], Some(0)), of("1", None));
        assert_eq!(written(&[], Some(1_001)), of("2", None));
        assert_eq!(written(&[], Some(60 * SECOND)), of("60000", None));
        assert_eq!(
            written(&[], Some(60 * SECOND + 1)),
            of("60001", Some("false"))
        );
        assert_eq!(
            written(&[], Some(u64::MAX)),
            of("1000000000000", Some("false")),
            "as Retry-After"
        );
        assert_eq!(written(&[], None), [None, Some("false".to_owned())]);
    }

    #[test]
    fn stricter_hint_of_an_inner_service_stays() {
        assert_eq!(
            written(&[("retry-after-ms", "2000")], Some(SECOND)),
            of("2000", None)
        );
        assert_eq!(
            written(&[("retry-after-ms", "900")], Some(SECOND)),
            of("1000", None)
        );
        assert_eq!(
            written(&[("retry-after-ms", "soon")], Some(SECOND)),
            of("1000", None)
        );
        assert_eq!(
            written(&[("retry-after-ms", "1000.5")], Some(SECOND)),
            of("1000.5", None)
        );
        assert_eq!(
            written(&[("retry-after", "1")], Some(SECOND / 4)),
            of("250", None),
            "the layer's own, rounded up"
        );
        assert_eq!(
            written(&[("retry-after", "120")], Some(SECOND)),
            of("120000", Some("false"))
        );
        assert_eq!(
            written(&[("x-should-retry", "false")], Some(SECOND)),
            of("1000", Some("false"))
        );
        assert_eq!(
            written(&[("x-should-retry", "true")], Some(90 * SECOND)),
            of("90000", Some("false"))
        );
    }
}
