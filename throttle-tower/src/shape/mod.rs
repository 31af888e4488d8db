//! The middleware that delays: its layer, its service, the shaper inside, and what it learns from an upstream.
//!
//! ```text
//! request ──► how: key, cost, deadline ──► pace: asks the backend for a place in the schedule
//!                                             │ refused at once │ now │ later
//!                                             │                 │     └► slot: sleeps until its time ──┐
//!                                             ▼                 └──────────────────────────────────────┤
//!                                           error                                                      ▼
//!            pauses ◄── obey: what the upstream says ◄── response ◄─────────────────────── the service is called
//! ```

mod asking;
mod builder;
mod clock;
mod counters;
mod error;
mod future;
mod heed;
mod how;
mod http;
mod lane;
mod layer;
mod obey;
mod pace;
mod pauses;
mod service;
mod shaper;
mod slot;

pub use self::builder::{IntoShaper, ShaperBuilder};
pub use self::clock::TokioClock;
pub use self::counters::ShapeStats;
pub use self::error::{Bound, QueueFull, ShapeError};
pub use self::future::ShapeFuture;
pub use self::heed::{HeadOf, HttpHead, IgnoreUpstream, UpstreamHead};
pub use self::http::{HttpShape, HttpShapeFuture, HttpShapeLayer};
pub use self::layer::ShapeLayer;
pub use self::service::Shape;
pub use self::shaper::Shaper;
pub use self::slot::{Slot, Turn};
