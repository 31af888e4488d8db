//! The middleware that refuses: its layer, its service and its future; and in [`steps`] what
//! happens to a request.
//!
//! What a user sets is in `builder` and `builder_settings`. `build` makes layers of it, and their
//! next versions by `version`. What responses say about the policies is in `announcement`, and what
//! clones of a layer share in `shared_layer`. If the limits are replaced, a request finds the new
//! ones through `current`. `peek` states what would happen to a request; `status` writes it for
//! clients that ask what they have left. `corrections` changes single keys.

// Before the others that add methods to the layer: docs list methods in the order of modules.
mod build;
mod layer;

// The setters of a layer follow it.
mod builder;

mod announcement;
mod body;
mod builder_settings;
mod corrections;
mod current;
mod forecast;
mod future;
mod limit_report;
mod line;
mod local_shares;
mod openapi;
mod optional_steps;
mod options;
mod peek;
mod peek_states;
mod permit;
mod permits;
mod queues;
mod refusal;
mod request_guard;
mod response_body;
mod response_builder;
mod response_options;
mod selection_table;
mod service;
mod shared_layer;
#[cfg(feature = "axum")]
mod status;
mod steps;
mod unknown_client;
mod version;
mod warning;
mod without_layer;

pub use body::ThrottleBody;
pub use builder::ThrottleBuilder;
pub use future::ResponseFuture;
pub use layer::ThrottleLayer;
pub use limit_report::LimitReport;
#[cfg(feature = "axum")]
pub use limit_report::MissingLimitReport;
#[cfg(feature = "axum")]
pub use permit::MissingPermit;
pub use permit::Permit;
pub use refusal::{Reason, Refusal};
pub use response_body::ResponseBody;
pub(crate) use response_body::{passed, refused};
pub use response_options::ReportIn;
pub use service::Throttle;
pub(crate) use shared_layer::ErasedLayer;
pub(crate) use steps::optional::{CHARGE_STEPS, ChargeSteps, PERMIT_STEPS, PermitSteps};
pub(crate) use steps::trial::Ruling;
pub(crate) use steps::wait_queue::{QUEUE_STEPS, QueueSteps};
pub(crate) use steps::write_headers::write_settled;
pub use warning::Warning;
