//! The middleware that refuses: its layer, its service and its future; and in [`steps`] what happens to a request.
//!
//! What a user sets is in `options`, what responses say about the policies in `announced`, and what clones of a layer
//! share in `shared`.

mod announced;
mod body;
mod build;
mod event;
mod forecast;
mod future;
mod in_progress;
mod layer;
mod limit_report;
mod local_shares;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
mod observed;
mod options;
mod permits;
mod queues;
mod refusal;
mod response_options;
mod service;
mod shared;
mod steps;
mod uses;
mod warning;

pub use body::ThrottleBody;
#[cfg(any(feature = "metrics", feature = "dashboard"))]
pub(crate) use event::OUTCOMES;
pub use event::{Event, Outcome};
pub use future::ResponseFuture;
pub use layer::ThrottleLayer;
pub use limit_report::LimitReport;
#[cfg(feature = "axum")]
pub use limit_report::MissingLimitReport;
pub use permits::InFlight;
#[cfg(feature = "axum")]
pub use permits::MissingInFlight;
pub use refusal::{Reason, Refusal};
pub use service::Throttle;
pub use warning::Warning;
