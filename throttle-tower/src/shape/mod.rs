//! Delays outbound calls so that they stay within an upstream's rate: the layer, its service, and
//! the shaper inside.
//!
//! Use [`ShapeLayer`] around the client of an API, and [`Shaper`] to pace work that is not a
//! service.

// request ──► call_functions: key, costs, class ──► start: may it leave now? ── yes ───────┐
//                                                     │ no    ▲                            │
//                                           ask: one decision of the backend               │
//                                                     ▼                                    ▼
//                              queue: calls of a key ──► waits: takes its turn ──► call the service
//                                 ▲         ▲                                              │
//               driver: offers turns    pauses ◄── obey_upstream: what it allows ◄── response

// Before the others that add methods to the layer: docs list methods in the order of modules.
mod layer;

mod answer;
mod builder;
mod call_functions;
mod classes;
mod clock;
mod demand;
mod driver;
mod error;
mod fleet_pause;
mod fleet_pauses;
mod future;
mod http;
mod leave;
mod obey_upstream;
mod offers;
mod pace;
mod pauses;
mod queue;
mod queues;
mod report;
mod response_reader;
mod schedule;
mod service;
mod shaper;
mod shared_pauses;
mod start;
mod stats;
mod unit_paces;
mod unit_usage;
mod waits;

pub use self::builder::ShaperBuilder;
pub use self::clock::TokioClock;
pub use self::error::{Bound, Pause, PauseCause, QueueFull, ShapeError};
pub use self::future::ShapeFuture;
pub use self::http::{HttpShape, HttpShapeFuture, HttpShapeLayer};
pub use self::layer::ShapeLayer;
pub use self::pace::Pace;
pub use self::service::Shape;
pub use self::shaper::Shaper;
pub use self::stats::ShapeStats;
pub use self::unit_usage::ShapeUsage;
