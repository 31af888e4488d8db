use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::retry_after::RetryAfter;
use super::value_text;
use crate::time::micros;

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What refusals tell the SDKs of LLM providers beside `Retry-After`, in headers that those read and that no standard
/// defines.
///
/// * `retry-after-ms`: the same wait in milliseconds, rounded up. A client that reads it comes back up to a second
///   sooner, and never early.
/// * `x-should-retry: false`: where the wait is longer than [`give_up_after`](Self::give_up_after), or no wait helps. A
///   client that reads it returns the error at once.
///
/// What clients do at their default settings, as measured in November 2026; tests repeat it for the two headers:
///
/// | client | `retry-after-ms` | a wait of an hour | `x-should-retry: false` |
/// |---|---|---|---|
/// | `openai` 3.54 for Python | is obeyed | returns the error | returns the error |
/// | `openai` 6.49 for Node.js | is obeyed | sleeps for it | returns the error |
/// | `anthropic` 2.12 for Python | is obeyed | sleeps for it | returns the error |
/// | `@anthropic-ai/sdk` 1.12 | is obeyed | sleeps for it | returns the error |
/// | `urllib3` 2.8, `got` 14.6, `ky` 1.14 | is ignored: `Retry-After` counts | sleeps for it | is ignored |
///
/// So nothing in a response wakes a client of the last row: where waits may be long, tell its users to bound them. None
/// of these clients reads `RateLimit`.
///
/// ```
/// use std::time::Duration;
/// use throttle_tower::headers::SdkHints;
/// use throttle_tower::{Gcra, Header, Rate, ThrottleLayer, limit};
///
/// let limits = limit("requests", Gcra::new(Rate::per_minute(60))).by(Header::new("authorization"));
/// let hints = SdkHints::default().give_up_after(Duration::from_secs(30));
/// let throttle = ThrottleLayer::new(limits)?.sdk_hints(hints);
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct SdkHints {
    pub(crate) give_up_after: Duration,
}

impl Default for SdkHints {
    fn default() -> Self {
        Self { give_up_after: Duration::from_secs(60) }
    }
}

impl SdkHints {
    /// Sets the longest wait that a client should keep; of a longer one it is told not to retry. Defaults to 60 seconds.
    pub const fn give_up_after(mut self, wait: Duration) -> Self {
        self.give_up_after = wait;
        self
    }

    /// Writes them on a refusal. `wait_us` is the wait of its `Retry-After`, or `None` if no wait helps. Of two waits the
    /// longer stays, and an inner service's `false`.
    pub(crate) fn write(self, headers: &mut HeaderMap, wait_us: Option<u64>) {
        if wait_us.is_none_or(|wait| wait > micros(self.give_up_after)) {
            headers.insert(&SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        let Some(wait) = wait_us else { return };
        let millis = wait.div_ceil(1_000).clamp(1, RetryAfter::MAX.seconds() * 1_000);
        let theirs = headers.get(&RETRY_AFTER_MS).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        if theirs.is_none_or(|theirs: u64| theirs < millis)
            && let Some(value) = value_text::integer_value(millis)
        {
            headers.insert(&RETRY_AFTER_MS, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// What is written beside what is there already: the milliseconds, and whether a retry is refused.
    fn written(existing: &[(&'static str, &'static str)], wait_us: Option<u64>) -> [Option<String>; 2] {
        let lines = existing.iter();
        let mut headers: HeaderMap =
            lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
        SdkHints::default().write(&mut headers, wait_us);
        [&RETRY_AFTER_MS, &SHOULD_RETRY].map(|name| Some(headers.get(name)?.to_str().unwrap().to_owned()))
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
        assert_eq!(written(&[], Some(60 * SECOND + 1)), of("60001", Some("false")));
        assert_eq!(written(&[], Some(u64::MAX)), of("1000000000000", Some("false")), "as Retry-After");
        assert_eq!(written(&[], None), [None, Some("false".to_owned())]);
    }

    #[test]
    fn stricter_hint_of_an_inner_service_stays() {
        assert_eq!(written(&[("retry-after-ms", "2000")], Some(SECOND)), of("2000", None));
        assert_eq!(written(&[("retry-after-ms", "900")], Some(SECOND)), of("1000", None));
        assert_eq!(written(&[("retry-after-ms", "soon")], Some(SECOND)), of("1000", None));
        assert_eq!(written(&[("x-should-retry", "false")], Some(SECOND)), of("1000", Some("false")));
        assert_eq!(written(&[("x-should-retry", "true")], Some(90 * SECOND)), of("90000", Some("false")));
    }
}
