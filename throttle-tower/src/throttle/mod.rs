//! The middleware that refuses: its layer, its service and its future; and in [`steps`] what
//! happens to a request.
//!
//! What a user sets is in `options`, what responses say about the policies in `announced`, and what
//! clones of a layer share in `shared`. Where a rule file replaces the limits, a request finds them
//! through `followed`. `status` looks at what is left, for clients that ask.

// Before the others that add methods to the layer: docs list methods in the order of modules.
mod layer;

mod announced;
mod body;
mod build;
mod candidates;
mod current;
#[cfg(feature = "rules")]
mod followed;
mod forecast;
mod future;
mod in_progress;
mod limit_report;
mod line;
mod local_shares;
mod narrowed;
#[cfg(feature = "rules")]
mod next;
mod observed;
mod openapi;
mod optional_steps;
mod options;
mod permit;
mod permits;
mod queues;
mod refusal;
mod report_built;
mod response_builder;
mod response_options;
mod service;
mod shared;
#[cfg(feature = "axum")]
mod status;
mod steps;
mod unknown_client;
mod warning;
mod without_layer;

#[cfg(feature = "rules")]
pub(crate) use announced::under;
pub use body::ThrottleBody;
#[cfg(feature = "rules")]
pub(crate) use build::{build_on, make_share, unshared};
#[cfg(feature = "rules")]
pub(crate) use current::Current;
#[cfg(feature = "rules")]
pub(crate) use followed::{Asking, Follower, Followers, KeyChange, Live};
pub use future::ResponseFuture;
pub use layer::ThrottleLayer;
pub use limit_report::LimitReport;
#[cfg(feature = "axum")]
pub use limit_report::MissingLimitReport;
#[cfg(feature = "rules")]
pub(crate) use next::Next;
#[cfg(all(
    feature = "rules",
    any(feature = "metrics", feature = "offenders", feature = "tracing")
))]
pub(crate) use observed::observed;
#[cfg(feature = "rules")]
pub(crate) use options::{Jitter, Options};
#[cfg(feature = "axum")]
pub use permit::MissingPermit;
pub use permit::Permit;
pub use refusal::{Reason, Refusal};
#[cfg(feature = "rules")]
pub(crate) use report_built::report_built;
#[cfg(feature = "rules")]
pub(crate) use response_options::ResponseOptions;
pub use service::Throttle;
#[cfg(feature = "rules")]
pub(crate) use shared::Shared;
#[cfg(feature = "rules")]
pub(crate) use steps::ask_candidate::check_candidate;
#[cfg(feature = "rules")]
pub(crate) use steps::wait_queue::waits as composition_waits;
pub use warning::Warning;
