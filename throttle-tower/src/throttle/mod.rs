//! The middleware that refuses: its layer, its service, and the future it answers with.

mod answers;
mod body;
mod event;
mod future;
mod layer;
mod local_shares;
mod permits;
mod refusal;
mod report;
mod service;
mod shared;
mod slow;
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
