//! Rate limiting for tower and axum. [`ThrottleLayer`] refuses requests over their limits, and
//! [`ShapeLayer`] delays outbound calls.
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
//! A [`limit`](limit()) is a policy (a public name and an algorithm) that is applied by key; each
//! key has its own budget. A [`KeyExtractor`] makes the key from the request's head. [`all`] and
//! [`any`] compose limits. For each request, a [`ThrottleLayer`] calls a [`Backend`], which decides
//! all limits in one step. The layer then passes the request on, or refuses it with 429 and headers
//! that state when to retry. The decision is in the extensions of the request as a [`LimitReport`].
//!
#![doc = concat!(
    "<p><img alt=\"A request gives a key for each limit; the store decides both in one step; the \
        service answers, or \
     the layer refuses with 429, RateLimit headers and Retry-After\" src='data:image/svg+xml,",
    include_str!("guide/request.svg"),
    "'></p>"
)]
//!
//! # Where things are
//!
//! | looking for | see |
//! |---|---|
//! | tests with a clock, logins by user name, tenants, proxies, CORS, WebSockets, retries: short programs | [`recipes`] |
//! | outbound calls, plans, charges by outcome, requests in flight, classes, exceptions, responses, observing, changed limits: pages | [`guide`] |
//! | build, decide, peek, observe, replace, correct: one page with a picture | [`guide::how_it_fits_together`] |
//! | the algorithms and how they differ | [`throttle_core::algorithm`] |
//! | keys: address, header, host, route, method, your own | [`extract`] |
//! | the client's address behind proxies | [`client_ip`] |
//! | cost, conditions, missing keys, refunds by outcome | [`Limit`] |
//! | estimates that the handler settles | [`usage`] |
//! | limits that depend on the client's plan | [`mod@plans`] |
//! | classes of requests that share one budget | [`Limit::priority`] |
//! | what other limits would do, before they apply | [`candidate`] |
//! | limits as a file | the crate [`tower-throttle-rules`](https://docs.rs/tower-throttle-rules) |
//! | limits that the program replaces while requests run | [`ThrottleLayer::replace`] |
//! | single keys: unused again, exempt, blocked, used up | [`ThrottleLayer::call_of`] |
//! | limits on requests in flight | [`InFlight`] |
//! | response headers and their dialects | [`headers`] |
//! | how much a client has left, without a charge | `ThrottleLayer::status` (feature `axum`) |
//! | what would happen to a request, without a charge | [`ThrottleLayer::peek`] |
//! | the 429 in an OpenAPI document | [`ThrottleLayer::openapi`] |
//! | refusals for gRPC clients, and for those of OpenAI's API | [`Refusal`] |
//! | settings of a layer: backend, headers, custom refusals, hooks, failing stores | [`ThrottleBuilder`] |
//! | observers of your own: what a layer decides and does, by limit | [`Observer`] |
//! | outbound calls within an upstream's rate | [`ShapeLayer`]; without a service, [`shape::Shaper`] |
//! | jobs, messages and other work without HTTP, also in classes | [`ShapeLayer`] around a service of any request type |
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `tracing` | yes | logs why an axum extractor answers 500, and [warnings](Warning) unless [`on_warning`](ThrottleBuilder::on_warning) is set; `Traces`, which logs refusals |
//! | `axum` | no | the route's template and the peer's address from axum; [`LimitReport`], [`Usage`] and [`Permit`] as extractors; `ThrottleLayer::status`, a route that states what is left |
//! | `tonic` | no | the peer's address from tonic's server. gRPC requests are refused in its words without it |
//! | `unicode` | no | `Header::normalize_identity` |
//! | `metrics` | no | [`metrics`](mod@metrics) of layers and shapers, through the facade of the `metrics` crate |
//! | `offenders` | no | `Offenders`: which keys are refused most |
//! | `dashboard` | no | `Page`: a page that shows what layers do now; brings `axum` and `offenders` |

#![cfg_attr(docsrs, feature(doc_cfg))]

// Before the modules that add methods to the layer: docs list methods in the order of modules.
mod throttle;

#[cfg(feature = "axum")]
mod axum_extractor;
pub mod candidate;
mod caught;
pub mod client_ip;
mod event;
pub mod extract;
#[cfg(test)]
mod failing_backend;
mod grpc;
#[cfg(all(
    feature = "axum",
    feature = "dashboard",
    feature = "metrics",
    any(doc, doctest)
))]
pub mod guide;
pub mod headers;
mod inner_service;
mod jitter;
mod json;
pub mod limit;
mod lock;
mod log;
mod observe;
pub mod plans;
#[doc = include_str!("../RECIPES.md")]
#[cfg(all(feature = "axum", any(doc, doctest)))]
pub mod recipes {}
pub mod shape;
mod time;
mod uncached;
pub mod usage;

#[doc(inline)]
pub use candidate::Candidate;
#[doc(inline)]
pub use client_ip::{ClientIp, TrustedProxies};
pub use event::{
    Activity, Event, LayerInfo, LimitInfo, LimitState, LimitStatus, LimitUnits, Observer, Outcome,
};
#[doc(inline)]
pub use extract::{Constant, Header, Host, KeyExtractor, Route};
#[doc(inline)]
pub use headers::Dialect;
#[doc(inline)]
pub use limit::{
    Audit, InFlight, Limit, LimitTree, OnError, OnMissing, all, any, is_preflight, limit,
};
#[cfg(feature = "dashboard")]
pub use observe::Page;
#[cfg(feature = "tracing")]
pub use observe::Traces;
#[cfg(feature = "metrics")]
pub use observe::metrics::{self, Metrics};
#[cfg(feature = "offenders")]
pub use observe::{Offender, Offenders};
#[doc(inline)]
pub use plans::plans;
#[doc(inline)]
pub use shape::{Pace, ShapeLayer, TokioClock};
pub use throttle::{
    LimitReport, Permit, Reason, Refusal, ReportIn, ResponseBody, ResponseFuture, Throttle,
    ThrottleBody, ThrottleBuilder, ThrottleLayer, Warning,
};
#[cfg(feature = "axum")]
pub use throttle::{MissingLimitReport, MissingPermit};
/// The crate of the algorithms and of the in-memory backend, for names that are not at this root.
pub use throttle_core;
#[doc(inline)]
pub use throttle_core::algorithm::builders::*;
#[doc(inline)]
pub use throttle_core::{
    Backend, Clock, ConfigError, DecidedBy, Decision, Key, ManualClock, MemoryBackend, Rate,
    SystemClock, Timestamp,
};
#[doc(inline)]
pub use usage::Usage;
