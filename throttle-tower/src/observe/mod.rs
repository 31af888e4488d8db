//! Observers of a layer: metrics, events, the keys refused most, the page. Open this to add one.
//! Each is a feature, and a value that the program hands to the layers that it observes.
//!
//! An observer changes no decision, calls no store, and holds no lock that a request waits for.
//! Without one, a request tests once that a list is empty. What a layer reports is in
//! [`event`](crate::event). This folder names no layer.

#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(any(feature = "dashboard", feature = "metrics", feature = "tracing"))]
mod decider;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "offenders")]
mod offenders;
#[cfg(feature = "tracing")]
pub(crate) mod trace;

#[cfg(feature = "dashboard")]
pub use dashboard::Page;
#[cfg(feature = "offenders")]
pub use offenders::{Offender, Offenders};
#[cfg(feature = "tracing")]
pub use trace::Traces;
