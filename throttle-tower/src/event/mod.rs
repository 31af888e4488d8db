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

mod backends;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
mod observed;
mod observer;
mod outcome;

#[cfg(any(feature = "metrics", feature = "dashboard"))]
pub(crate) use backends::Backends;
pub(crate) use backends::BuiltOn;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
pub(crate) use observed::Observed;
pub(crate) use observer::{Correction, Observer, Observers};
#[cfg(any(feature = "metrics", feature = "dashboard"))]
pub(crate) use outcome::OUTCOMES;
pub use outcome::{Event, Outcome};
