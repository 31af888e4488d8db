//! LimitTree: a policy, whose budget it is, what a request costs, when it applies; and how several are composed.

mod compose;
mod concurrency;
mod cost;
mod outcome;
mod single;

use http::request::Parts;

pub(crate) use compose::Compiled;
pub use compose::{IntoLimitTree, IntoMembers, LimitTree, all, any};
pub use concurrency::Concurrency;
pub use cost::IntoCost;
pub(crate) use outcome::Outcomes;
pub(crate) use single::{Applied, FutureKey, Keying};
pub use single::{Limit, OnError, OnMissing, Unkeyed, limit};

/// Whether a request is a CORS preflight: OPTIONS with `Origin` and `Access-Control-Request-Method`.
///
/// Preflights are the browser's, not the user's. Put the CORS layer outside the throttle, so that it answers them and
/// adds its fields to refusals; or exempt them with `.when(|parts: &Parts| !is_preflight(parts))`, and give them a cheap
/// limit of their own.
#[must_use]
pub fn is_preflight(parts: &Parts) -> bool {
    parts.method == http::Method::OPTIONS
        && parts.headers.contains_key(http::header::ORIGIN)
        && parts.headers.contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD)
}
