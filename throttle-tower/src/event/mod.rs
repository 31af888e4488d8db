//! What happens to requests, as a layer reports it: the [`Event`] of each request, the [`Observer`]
//! that receives it, and what an observer knows of the layer. Open this to let observers learn
//! more.
//!
//! It lies below the layer, which calls observers (`throttle`), and below the observers
//! (`observe`), so that neither needs the other.

mod activity;
mod layer_info;
mod limit_status;
mod observer;
mod observers;
mod outcome;

pub use activity::Activity;
pub(crate) use layer_info::LayerVersion;
pub use layer_info::{LayerInfo, LimitInfo};
pub(crate) use limit_status::RequestSet;
pub use limit_status::{LimitState, LimitStatus, LimitUnits};
pub use observer::Observer;
pub(crate) use observers::Observers;
pub use outcome::{Event, Outcome};
