//! The middleware that refuses: its layer, its service, and the future it answers with.

mod aborted;
mod answers;
mod attempt;
mod body;
mod event;
mod forecast;
mod future;
mod in_flight;
mod layer;
mod ledger;
mod local;
mod look;
mod patience;
mod refusal;
mod report;
mod rules;
mod service;
mod slow;
mod stamp;
mod warning;

pub use body::ThrottleBody;
pub use event::{Event, Outcome};
pub use future::ResponseFuture;
pub use in_flight::InFlight;
pub(crate) use in_flight::{GateRule, Gates};
pub use layer::ThrottleLayer;
pub use refusal::{Reason, Refusal};
pub use report::LimitReport;
#[cfg(feature = "axum")]
pub use report::MissingLimitReport;
pub use service::Throttle;
pub(crate) use warning::Seen;
pub use warning::Warning;
