//! Observers of a layer: metrics, events, the keys refused most, the page. Open this to add one.
//! Each is a feature, and a layer reports to those that it is given.
//!
//! An observer changes no decision, calls no store, and holds no lock that a request waits for.
//! Without one, a request pays for a single look at an empty list. What a layer tells its observers
//! is in [`event`](crate::event): this folder names the layer only to give it the methods that add
//! an observer.

#![cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "observers are features")
)]

#[cfg(feature = "dashboard")]
mod dashboard;
mod decider;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "offenders")]
mod offenders;
#[cfg(feature = "tracing")]
pub(crate) mod trace;

#[cfg(feature = "offenders")]
pub use offenders::Offender;
