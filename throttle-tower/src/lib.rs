//! Rate limiting for tower and axum: exact limits, composed with [`all`] and [`any`], answered with true fields.
//!
//! ```
//! use throttle_tower::{ClientIp, Gcra, Rate, ThrottleLayer, limit};
//!
//! let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10)).burst(20)).by(ClientIp::peer());
//! let throttle = ThrottleLayer::new(per_ip)?;
//! // axum: Router::new().route("/", get(hello)).layer(throttle)
//! # Ok::<(), throttle_tower::ConfigError>(())
//! ```
//!
//! # Words
//!
//! A [`limit`] is a policy (a public name and an algorithm) applied by a key: whose budget it is. A [`KeyExtractor`] makes
//! the key from the request's head. A [`ThrottleLayer`] asks a [`Backend`] about all limits at once and passes the request
//! on, or refuses it with 429. The decision is in the extensions as a [`LimitReport`].
//!
//! # Where things are
//!
//! | looking for | see |
//! |---|---|
//! | the algorithms and how they differ | [`throttle_core::algorithm`] |
//! | keys: address, header, route, method, your own | [`KeyExtractor`] |
//! | the client's address behind proxies | [`client_ip`] |
//! | cost, conditions, missing keys, refunds by outcome | [`Limit`] |
//! | estimates, settled by the handler | [`Usage`] |
//! | limits that depend on who asks | [`plans`] |
//! | response fields and their dialects | [`headers`] |
//! | custom refusals, hooks, failing stores | [`ThrottleLayer`] |
//! | calls to others that are to wait for their turn | [`ShapeLayer`]; without a service, [`Shaper`] |
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `tracing` | yes | [warnings](Warning) are logged, unless [`on_warning`](ThrottleLayer::on_warning) takes them; so is why an extractor answers 500 |
//! | `axum` | no | the route's template and the peer's address from axum's extensions; [`LimitReport`], [`Usage`] and [`InFlight`] as extractors |
//! | `unicode` | no | `Header::normalize_identity` |

pub mod client_ip;
pub mod extract;
pub mod headers;
mod inner_service;
mod jitter;
pub mod limit;
mod lock;
mod log;
pub mod plans;
pub mod shape;
mod throttle;
mod time;
pub mod usage;

pub use client_ip::ClientIp;
pub use extract::{Constant, Header, KeyExtractor, Route};
pub use headers::Dialect;
pub use limit::{Concurrency, Limit, LimitTree, OnError, OnMissing, all, any, is_preflight, limit};
pub use plans::plans;
pub use shape::ShapeLayer;
#[cfg(feature = "axum")]
pub use throttle::MissingLimitReport;
pub use throttle::{
    Event, InFlight, LimitReport, Outcome, Reason, Refusal, ResponseFuture, Throttle, ThrottleBody, ThrottleLayer,
    Warning,
};
/// The crate of the algorithms and of the in-memory backend, for names that are not at this root.
pub use throttle_core;
#[doc(no_inline)]
pub use throttle_core::{
    CalendarQuota, Carry, ConfigError, DecidedBy, Decision, FixedWindow, Gcra, IntervalBucket, Key, LeakyBucket,
    LeakyMeter, MemoryBackend, Rate, SlidingLog, SlidingWindow, TokenBucket,
};
pub use usage::Usage;
