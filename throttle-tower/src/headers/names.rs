//! Header names, made once: a `HeaderName` from a static string is cloned without allocating.

use http::HeaderName;
use http::header::RETRY_AFTER;

pub(super) static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// What the dialects write, as pages of another origin have to be shown it.
pub(super) static LISTS: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    RETRY_AFTER,
];
pub(super) static IETF: [HeaderName; 5] = [
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    RETRY_AFTER,
];
pub(super) static X: [HeaderName; 4] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    RETRY_AFTER,
];
pub(super) static OPENAI: [HeaderName; 7] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
    RETRY_AFTER,
];
pub(super) static NONE: [HeaderName; 1] = [RETRY_AFTER];

/// The headers that describe one policy: its limit, what remains and its reset.
pub(super) type Trio = [HeaderName; 3];
