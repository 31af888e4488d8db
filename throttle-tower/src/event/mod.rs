//! What happens to requests, as a layer tells it: the [`Event`] of each request, the [`Observer`]
//! that learns of it, and what an observer knows of the layer. Open this to let observers learn
//! more.
//!
//! It lies below the layer, which calls observers (`throttle`), and below the observers
//! (`observe`), so that neither needs the other.

#![cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "observers are features")
)]

mod activity;
mod backends;
mod layer_info;
mod limit_status;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
mod observed;
mod observer;
mod observers;
mod outcome;

pub use activity::Activity;
#[cfg(any(feature = "metrics", feature = "dashboard"))]
pub(crate) use backends::Backends;
pub(crate) use backends::BuiltOn;
pub(crate) use layer_info::LayerVersion;
pub use layer_info::{LayerInfo, LimitInfo};
pub(crate) use limit_status::RequestSet;
pub use limit_status::{LimitState, LimitStatus};
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
pub(crate) use observed::Observed;
pub use observer::Observer;
pub(crate) use observers::{BuiltInObserver, Observers};
pub use outcome::{Event, Outcome};
