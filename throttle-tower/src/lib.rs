//! Rate limiting for tower.

pub mod client_ip;
pub mod headers;
mod key;
mod limit;
mod throttle;

pub use key::{
    Constant, Extension, FromFn, Header, KeyExtractor, Masked, MatchedRoute, Method, Or, PeerAddr, Route, from_fn,
};
pub use limit::{
    IntoCost, IntoLimits, IntoMembers, Limit, Limits, OnError, OnMissing, Unkeyed, all, any, is_preflight, limit,
};
#[cfg(feature = "axum")]
pub use throttle::MissingLimitReport;
pub use throttle::{
    Event, LimitReport, Outcome, Reason, Refusal, ResponseFuture, Throttle, ThrottleBody, ThrottleLayer,
};
#[doc(no_inline)]
pub use throttle_core::{
    Algorithm, Backend, BackendError, BackendErrorKind, BoxBackend, CalendarQuota, Clock, ConfigError, Cost, Decision,
    FixedWindow, Gcra, IntervalBucket, Key, LeakyMeter, ManualClock, MemoryBackend, Policy, Rate, SlidingLog,
    SlidingWindow, Status, SystemClock, Timestamp, TokenBucket,
};
