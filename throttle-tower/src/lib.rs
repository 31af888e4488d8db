//! Rate limiting for tower and axum: exact limits, composed with [`all`] and [`any`], answered with true fields.
//!
//! ```
//! use throttle_tower::client_ip::ClientIp;
//! use throttle_tower::{Gcra, Rate, ThrottleLayer, limit};
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
//! | estimates, settled by the handler | [`Charge`] |
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
//! | `axum` | no | the route's template and the peer's address from axum's extensions; [`LimitReport`], [`Charge`] and [`InFlight`] as extractors |
//! | `unicode` | no | `Header::normalize_identity` |

mod charge;
pub mod client_ip;
pub mod headers;
mod key;
mod limit;
mod lock;
mod log;
mod plans;
mod shape;
mod throttle;
mod time;

#[cfg(feature = "axum")]
pub use charge::MissingCharge;
pub use charge::{Charge, ChargeError, Settlements};
pub use headers::Dialect;
pub use key::{
    Constant, Extension, FromFn, Header, KeyExtractor, Masked, MatchedRoute, Method, Or, PeerAddr, Route, from_fn,
};
pub use limit::{
    Concurrency, IntoCost, IntoLimits, IntoMembers, Limit, Limits, OnError, OnMissing, Unkeyed, all, any, is_preflight,
    limit,
};
pub use plans::{IntoTier, LookupFailed, Plans, PlansUnkeyed, PlansWithoutDefault, PlansWithoutLookup, plans};
pub use shape::{
    Bound, HeadOf, Heed, HttpHead, HttpShape, HttpShapeFuture, HttpShapeLayer, IntoShaper, QueueFull, Shape,
    ShapeError, ShapeFuture, ShapeLayer, ShapeStats, Shaper, ShaperBuilder, Slot, TokioClock, Turn, Unheeding,
};
#[cfg(feature = "axum")]
pub use throttle::MissingLimitReport;
pub use throttle::{
    Event, InFlight, LimitReport, Outcome, Reason, Refusal, ResponseFuture, Throttle, ThrottleBody, ThrottleLayer,
    Warning,
};
#[doc(no_inline)]
pub use throttle_core::{
    Algorithm, Backend, BackendError, BackendErrorKind, BoxBackend, CalendarQuota, Call, Carry, Clock, ConfigError,
    Cost, Decision, FixedWindow, Gcra, IntervalBucket, Key, LeakyBucket, LeakyMeter, LimitSet, Limiter, LocalShare,
    ManualClock, MemoryBackend, Policy, PolicyName, Rate, Rule, Rung, SlidingLog, SlidingWindow, Status, SystemClock,
    Timestamp, TokenBucket,
};
