//! The response headers that describe a client's limits: `RateLimit`, `RateLimit-Policy`,
//! `Retry-After` and their older relatives.
//!
//! There is no RFC yet, only drafts whose header names change, so a [`Dialect`] chooses what is
//! written:
//!
//! | dialect | what a response carries |
//! |---|---|
//! | [`Dialect::Draft11`] (default) | `RateLimit-Policy: "per-ip";q=10;w=1`, `RateLimit: "per-ip";r=7;t=1` |
//! | [`Dialect::Draft07`] | `RateLimit-Policy: 10;w=1`, `RateLimit: limit=10, remaining=7, reset=1` |
//! | [`Dialect::Draft06`] | `RateLimit-Policy: 10;w=1`, `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` |
//! | [`Dialect::Draft03`] | `RateLimit-Limit: 10, 10;w=1`, `RateLimit-Remaining`, `RateLimit-Reset` |
//! | [`Dialect::XRateLimit`] | `X-RateLimit-Limit`, `X-RateLimit-Remaining`, `X-RateLimit-Reset` |
//! | [`Dialect::OpenAi`] | `x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests`; the same for `-tokens` |
//! | [`Dialect::None`] | nothing but `Retry-After` on a refusal |
//!
//! # What a client may rely on
//!
//! - **The quota holds the burst.** `q` units in `w` seconds are the policy's rate. `w` is a whole
//!   number of seconds, so long that `q` is at least the burst: 10 a second with a burst of 20 are
//!   announced as `q=20;w=2`. So `r` never exceeds `q`. The `limit` of the older dialects is the
//!   same `q`.
//! - **Every rounding is conservative.** Quotas and what remains are rounded down, windows and
//!   waits up; a refusal never carries `Retry-After: 0`. All of it is integer arithmetic.
//! - **A refusal lists in `RateLimit` only the policies that refused.** Each member says that the
//!   client has `r` units for the next `t` seconds. By the draft, no `t` in the list should be
//!   longer than `Retry-After`. The `t` of a policy that admitted the request may be longer, so
//!   that policy is left out. `RateLimit-Policy` still lists all policies. When an inner layer
//!   refuses, an outer layer adds its own policies to `RateLimit-Policy` only.
//! - **`Retry-After` appears on refusals only**, and not at all when waiting cannot help.
//!
//! # Headers that the response already has
//!
//! An inner layer or an upstream may have written the same headers. Removing or loosening them
//! would mislead the client.
//!
//! - **Lists are joined** (draft -11). The existing members stay as they are written. The layer's
//!   own follow in the same line, because many clients read only the first line of a header. If
//!   both sides use one name, the list has two members of that name, and both hold.
//! - **Headers that can describe only one policy** (OpenAI's: one of each unit) are kept or
//!   replaced together, because clients ignore a header that occurs twice where one is allowed.
//!   Those that leave the client less stay.
//! - **A header that does not parse is replaced**, because one broken member makes a client ignore
//!   all of it.
//!
//! # Browsers
//!
//! A page of another origin can read none of these headers unless the response lists them in
//! `Access-Control-Expose-Headers`: see [`Dialect::exposed_names`].
//!
//! # Shared caches
//!
//! A shared cache may serve a response to other clients, for which its rate-limit headers are
//! wrong: see [`is_public`].

// A dialect is one `DialectForm` in a file of `dialect`, which finds it. `policy_lists` keeps the
// values that are the same in many responses.

mod dialect;
pub(crate) mod form;
pub(crate) mod header_content;
mod header_schema;
mod names;
pub(crate) mod openai_error;
pub(crate) mod openapi;
pub(crate) mod policy_lists;
pub(crate) mod policy_status;
mod problem;
pub(crate) mod read_upstream;
pub(crate) mod retry_after;
mod scanner;
mod sdk_hints;
mod shared_cache;
mod standing;
pub(crate) mod structured;
#[cfg(test)]
mod tests;
mod value_text;

pub use self::dialect::{Dialect, ResetFormat};
pub use self::problem::Problem;
pub use self::sdk_hints::SdkHints;
pub use self::shared_cache::is_public;
