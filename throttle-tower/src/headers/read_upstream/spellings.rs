//! The names under which APIs state their quotas.

use std::time::Duration;

use http::HeaderName;

use self::Refill::{AtReset, Steady, SteadyUsed, Unknown};
use self::Reset::{End, EndMillis, Period, PeriodMillis, PeriodOf, PeriodParameter};

/// How an API spells one quota: the header that states what is left, and those that state when it
/// is whole again.
pub(super) struct Spelling {
    pub(super) remaining: &'static str,
    /// When the quota is whole again: the first that can be read counts. Ends stand before periods.
    pub(super) resets: &'static [Reset],
    pub(super) refill: Refill,
}

/// How the units of a quota come back.
pub(super) enum Refill {
    /// Calls, all of them at the reset.
    AtReset,
    /// Calls, bit by bit; the header that states all of them.
    Steady(&'static str),
    /// The same, and the header states calls used and all of them, as in `32/40`.
    SteadyUsed,
    /// In a way that is not known, or units of which a call takes many, such as tokens.
    Unknown,
}

pub(super) enum Reset {
    /// The end, in any form of [`until_reset`](super::time_text::until_reset).
    End(&'static str),
    /// The end in so many milliseconds.
    EndMillis(&'static str),
    /// So many seconds, which may have just begun.
    Period(&'static str),
    /// So many milliseconds, which may have just begun.
    PeriodMillis(&'static str),
    /// A period that no header states, and which may have just begun.
    PeriodOf(Duration),
    /// Seconds, which may have just begun, in the parameter `w` of what is left.
    PeriodParameter,
}

impl Spelling {
    /// The spelling in which this header states what is left.
    pub(super) fn of(name: &HeaderName) -> Option<&'static Self> {
        let index = SPELLINGS.binary_search_by_key(&name.as_str(), |spelling| spelling.remaining);
        SPELLINGS.get(index.ok()?)
    }
}

const SECOND: Reset = PeriodOf(Duration::from_secs(1));
const MINUTE: Reset = PeriodOf(Duration::from_secs(60));
const HOUR: Reset = PeriodOf(Duration::from_secs(3_600));
const DAY: Reset = PeriodOf(Duration::from_secs(86_400));

const fn row(remaining: &'static str, resets: &'static [Reset], refill: Refill) -> Spelling {
    Spelling {
        remaining,
        resets,
        refill,
    }
}

/// Sorted by name. The tests name the APIs.
#[rustfmt::skip]
const SPELLINGS: &[Spelling] = &[
    row("anthropic-ratelimit-input-tokens-remaining", &[End("anthropic-ratelimit-input-tokens-reset")], Unknown),
    row("anthropic-ratelimit-output-tokens-remaining", &[End("anthropic-ratelimit-output-tokens-reset")], Unknown),
    row("anthropic-ratelimit-requests-remaining", &[End("anthropic-ratelimit-requests-reset")],
        Steady("anthropic-ratelimit-requests-limit")),
    row("anthropic-ratelimit-tokens-remaining", &[End("anthropic-ratelimit-tokens-reset")], Unknown),
    row("fitbit-rate-limit-remaining", &[End("fitbit-rate-limit-reset")], AtReset),
    row("gw-ratelimit-remaining", &[EndMillis("gw-ratelimit-reset")], AtReset),
    row("ratelimit-remaining", &[End("ratelimit-reset"), PeriodParameter], AtReset),
    row("x-appminlimit-remaining", &[MINUTE], AtReset),
    row("x-bapi-limit-status", &[End("x-bapi-limit-reset-timestamp")], AtReset),
    row("x-daylimit-remaining", &[DAY], AtReset),
    row("x-hubspot-ratelimit-remaining", &[PeriodMillis("x-hubspot-ratelimit-interval-milliseconds")], AtReset),
    row("x-minlimit-remaining", &[MINUTE], AtReset),
    row("x-rate-limit-api-key-remaining", &[PeriodMillis("x-rate-limit-api-key-interval-ms")], AtReset),
    row("x-rate-limit-api-token-remaining", &[PeriodMillis("x-rate-limit-api-token-interval-ms")], AtReset),
    row("x-rate-limit-remaining", &[End("x-rate-limit-reset")], AtReset),
    row("x-rate-limit-remaining-day", &[DAY], AtReset),
    row("x-rate-limit-remaining-minute", &[MINUTE], AtReset),
    row("x-rate-limit-requests-left", &[EndMillis("x-rate-limit-time-reset-ms")], AtReset),
    row("x-ratelimit-complexity-remaining", &[End("x-ratelimit-complexity-reset")], Unknown),
    row("x-ratelimit-endpoint-requests-remaining", &[End("x-ratelimit-endpoint-requests-reset")], AtReset),
    row("x-ratelimit-remaining", &[
        End("x-ratelimit-reset-after"), End("x-ratelimit-reset"), End("x-ratelimit-next"),
        Period("x-ratelimit-interval-seconds"),
    ], AtReset),
    row("x-ratelimit-remaining-day", &[DAY], AtReset),
    row("x-ratelimit-remaining-hour", &[HOUR], AtReset),
    row("x-ratelimit-remaining-minute", &[MINUTE], AtReset),
    row("x-ratelimit-remaining-req-minute", &[MINUTE], AtReset),
    row("x-ratelimit-remaining-requests", &[End("x-ratelimit-reset-requests")],
        Steady("x-ratelimit-limit-requests")),
    row("x-ratelimit-remaining-requests-day", &[End("x-ratelimit-reset-requests-day"), DAY], Unknown),
    row("x-ratelimit-remaining-requests-hour", &[End("x-ratelimit-reset-requests-hour"), HOUR], Unknown),
    row("x-ratelimit-remaining-requests-minute", &[End("x-ratelimit-reset-requests-minute"), MINUTE], Unknown),
    row("x-ratelimit-remaining-second", &[SECOND], AtReset),
    row("x-ratelimit-remaining-tokens", &[End("x-ratelimit-reset-tokens")], Unknown),
    row("x-ratelimit-remaining-tokens-day", &[End("x-ratelimit-reset-tokens-day"), DAY], Unknown),
    row("x-ratelimit-remaining-tokens-hour", &[End("x-ratelimit-reset-tokens-hour"), HOUR], Unknown),
    row("x-ratelimit-remaining-tokens-minute", &[End("x-ratelimit-reset-tokens-minute"), MINUTE], Unknown),
    row("x-ratelimit-requests-remaining", &[End("x-ratelimit-requests-reset")], AtReset),
    row("x-remaining-this-second", &[SECOND], AtReset),
    row("x-remaining-today", &[DAY], AtReset),
    row("x-sentry-rate-limit-remaining", &[End("x-sentry-rate-limit-reset")], AtReset),
    row("x-shopify-shop-api-call-limit", &[PeriodOf(Duration::from_secs(20))], SteadyUsed),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_is_found_by_its_name() {
        for spelling in SPELLINGS {
            let found = Spelling::of(&HeaderName::from_static(spelling.remaining))
                .expect(spelling.remaining);
            assert_eq!(found.remaining, spelling.remaining);
        }
        for other in [
            "date",
            "x-ratelimit-limit",
            "x-ratelimit-remaining-",
            "strict-transport-security",
        ] {
            assert!(
                Spelling::of(&HeaderName::from_static(other)).is_none(),
                "{other}"
            );
        }
        assert!(SPELLINGS.is_sorted_by_key(|spelling| spelling.remaining));
    }
}
