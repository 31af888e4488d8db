//! The middleware that refuses: its layer, its service, and the future it answers with.

mod announced;
mod body;
mod build;
mod event;
mod future;
mod held;
mod layer;
mod local_shares;
mod options;
mod permits;
mod refusal;
mod report;
mod service;
mod shared;
mod steps;
mod warning;

pub use body::ThrottleBody;
pub use event::{Event, Outcome};
pub use future::ResponseFuture;
pub use layer::ThrottleLayer;
pub use permits::InFlight;
pub use refusal::{Reason, Refusal};
pub use report::LimitReport;
#[cfg(feature = "axum")]
pub use report::MissingLimitReport;
pub use service::Throttle;
pub use warning::Warning;
