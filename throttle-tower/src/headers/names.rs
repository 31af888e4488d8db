//! Header names, made once: a `HeaderName` from a static string is cloned without allocating.

use http::HeaderName;
use http::header::RETRY_AFTER;

pub(super) static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

pub(super) static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The three headers that describe one policy.
pub(super) struct Trio {
    pub(super) limit: HeaderName,
    pub(super) remaining: HeaderName,
    pub(super) reset: HeaderName,
}

pub(super) static IETF: Trio = Trio {
    limit: HeaderName::from_static("ratelimit-limit"),
    remaining: HeaderName::from_static("ratelimit-remaining"),
    reset: HeaderName::from_static("ratelimit-reset"),
};
pub(super) static X: Trio = Trio {
    limit: HeaderName::from_static("x-ratelimit-limit"),
    remaining: HeaderName::from_static("x-ratelimit-remaining"),
    reset: HeaderName::from_static("x-ratelimit-reset"),
};

pub(super) static OPENAI_REQUESTS: Trio = Trio {
    limit: HeaderName::from_static("x-ratelimit-limit-requests"),
    remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
    reset: HeaderName::from_static("x-ratelimit-reset-requests"),
};
pub(super) static OPENAI_TOKENS: Trio = Trio {
    limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
    remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
    reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
};

pub(super) static EXPOSED_LISTS: [HeaderName; 3] =
    [HeaderName::from_static("ratelimit"), HeaderName::from_static("ratelimit-policy"), RETRY_AFTER];
pub(super) static EXPOSED_DRAFT06: [HeaderName; 5] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    HeaderName::from_static("ratelimit-policy"),
    RETRY_AFTER,
];
pub(super) static EXPOSED_DRAFT03: [HeaderName; 4] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
    RETRY_AFTER,
];
pub(super) static EXPOSED_X: [HeaderName; 4] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    RETRY_AFTER,
];
pub(super) static EXPOSED_OPENAI: [HeaderName; 7] = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
    RETRY_AFTER,
];
pub(super) static EXPOSED_NONE: [HeaderName; 1] = [RETRY_AFTER];
