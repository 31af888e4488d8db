//! The response fields that tell a client where it stands: `RateLimit`, `RateLimit-Policy`, `Retry-After` and their
//! older relatives.
//!
//! There is no RFC yet, only drafts whose field names change, so the words on the wire are chosen by a [`Dialect`]:
//!
//! | dialect | what a response carries |
//! |---|---|
//! | [`Dialect::Draft11`] (default) | `RateLimit-Policy: "per-ip";q=10;w=1`, `RateLimit: "per-ip";r=7;t=1` |
//! | [`Dialect::Draft07`] | `RateLimit-Policy: 10;w=1`, `RateLimit: limit=10, remaining=7, reset=1` |
//! | [`Dialect::Draft06`] | `RateLimit-Policy: 10;w=1`, `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` |
//! | [`Dialect::Draft03`] | `RateLimit-Limit: 10, 10;w=1`, `RateLimit-Remaining`, `RateLimit-Reset` |
//! | [`Dialect::XRateLimit`] | `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` |
//! | [`Dialect::None`] | nothing but `Retry-After` on a refusal |
//!
//! # What a client may rely on
//!
//! - **The quota holds the burst.** `q` units in `w` seconds (the `limit` of the older dialects is the same `q`) are the
//!   policy's rate, scaled up to whole seconds in which at least the burst fits: 10 a second with a burst of 20 are
//!   announced as `q=20;w=2`. So what remains is never above the quota.
//! - **Every rounding is conservative.** Quotas and what remains are rounded down, windows and waits up; a refusal
//!   never carries `Retry-After: 0`. All of it is integer arithmetic.
//! - **A refusal lists in `RateLimit` only the policies that refused**, because `Retry-After` should not be earlier
//!   than the effective window of anything listed; `RateLimit-Policy` stays complete.
//!   A layer outside the one that refused adds where its own policies stand.
//! - **`Retry-After` appears on refusals only**, and not at all when waiting cannot help.
//!
//! # What is already in the response
//!
//! An inner layer or an upstream may have written the same fields. Removing or loosening what it said would mislead the
//! client, and a name that occurs twice tells it nothing, so per dialect one rule decides: lists are joined and the
//! stricter of two members of one name stays; fields that can only speak of one policy are kept or replaced as a set,
//! whichever leaves the client less. What does not parse is replaced, since one broken member makes a client ignore
//! the whole field.
//!
//! # Browsers
//!
//! A page of another origin can read none of these fields unless the response lists them in
//! `Access-Control-Expose-Headers`: see [`Dialect::exposed_names`].
//!
//! # Shared caches
//!
//! What a response says about one client is wrong for every other client that a shared cache serves it to:
//! see [`is_public`].

mod cache;
mod dialect;
mod digits;
mod draft11;
mod http_date;
mod legacy;
pub(crate) mod line;
mod names;
pub(crate) mod policy_field;
mod problem;
pub(crate) mod quota;
pub(crate) mod reading;
pub(crate) mod retry_after;
mod scanner;
mod structured;
#[cfg(test)]
mod tests;

pub use self::cache::is_public;
pub use self::dialect::{Dialect, ResetFormat};
pub use self::problem::Problem;

use http::HeaderMap;

use self::line::Line;
use self::policy_field::PolicyField;
use self::retry_after::RetryAfter;

/// What one merged decision has to say to the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) lines: &'a [Line<'a>],
    pub(crate) admitted: bool,
    /// Written on a refusal only. `None` leaves a `Retry-After` alone that somebody else set: we have no better one.
    pub(crate) retry_after: Option<RetryAfter>,
    /// Read only where a field or an existing `Retry-After` speaks of wall-clock time.
    pub(crate) now_unix_us: u64,
}

/// Sets the fields of one decision, in the dialect that `policies` was built for.
///
/// Call it once per response with every policy in `report`: the dialects that can name only one policy must choose it
/// among all. Calling it again, as stacked layers do, only ever tightens what the response says.
pub(crate) fn write(headers: &mut HeaderMap, policies: &PolicyField, report: &Report<'_>) {
    match policies.dialect() {
        Dialect::None => {}
        Dialect::Draft11 => draft11::write(headers, policies.value(), report),
        older => legacy::write(headers, older, policies.value(), report),
    }
    if let (false, Some(wait)) = (report.admitted, report.retry_after) {
        retry_after::write(headers, wait, report.now_unix_us);
    }
}
