//! Names of headers that several files read or write. A `HeaderName` from a static string is made
//! and cloned without allocating.

use http::HeaderName;
use http::header::RETRY_AFTER;

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The headers of the drafts that state everything in two.
pub(super) static LISTS: [HeaderName; 3] = [RATELIMIT, POLICY, RETRY_AFTER];
