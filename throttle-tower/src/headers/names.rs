//! Names of headers that several files read or write. They are statics, because a `HeaderName` from
//! a static string is cloned without allocating.

use http::HeaderName;
use http::header::RETRY_AFTER;

pub(super) static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The headers of the drafts that state everything in two.
pub(super) static LISTS: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
    RETRY_AFTER,
];
