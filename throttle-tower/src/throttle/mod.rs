//! The middleware that refuses: its layer, its service and its future; and in [`steps`] what happens to a request.
//!
//! What a user sets is in `options`, what responses say about the policies in `announced`, and what clones of a layer
//! share in `shared`.

mod announced;
mod body;
mod build;
mod condition;
mod current;
#[cfg(feature = "rules")]
mod explain;
#[cfg(feature = "rules")]
mod explained;
#[cfg(feature = "rules")]
mod follow;
mod forecast;
mod future;
mod in_progress;
mod layer;
mod limit_report;
mod line;
#[cfg(feature = "rules")]
mod live;
mod local_shares;
#[cfg(feature = "rules")]
mod next;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
mod observed;
mod options;
mod own_sets;
mod permits;
mod queues;
#[cfg(feature = "rules")]
mod rebuild;
mod refusal;
mod response_builder;
mod response_options;
mod service;
mod shared;
mod steps;
mod unknown_client;
mod uses;
mod warning;
mod with_own;
mod without_layer;

pub use body::ThrottleBody;
#[cfg(feature = "rules")]
pub(crate) use condition::LayerCondition;
#[cfg(feature = "rules")]
pub(crate) use explained::{Asks, Explained, ExplainedLimit, Left};
pub use future::ResponseFuture;
pub use layer::ThrottleLayer;
pub use limit_report::LimitReport;
#[cfg(feature = "axum")]
pub use limit_report::MissingLimitReport;
#[cfg(feature = "rules")]
pub(crate) use live::{Follower, Followers};
#[cfg(feature = "rules")]
pub(crate) use next::Next;
#[cfg(feature = "rules")]
pub(crate) use options::{Jitter, Options};
pub use permits::InFlight;
#[cfg(feature = "axum")]
pub use permits::MissingInFlight;
pub use refusal::{Reason, Refusal};
#[cfg(feature = "rules")]
pub(crate) use response_options::ResponseOptions;
pub use service::Throttle;
pub use warning::Warning;
