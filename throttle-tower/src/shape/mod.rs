//! Delays outbound calls so that they stay within an upstream's rate: the layer, its service, and
//! the shaper inside.
//!
//! Use [`ShapeLayer`] around the client of an API, and [`Shaper`] to pace work that is not a
//! service.

// request ──► request_fields: key, costs, deadline ──► start: may it leave now? ── yes ──────────────────┐
//                                                        │ no       ▲                                  │
//                                            ask: one decision of the backend                          │
//                                                        ▼                                             ▼
//                                     queue: the calls of a key ──► waits: takes its turn ──► the service is called
//                                        ▲           ▲                                                 │
//                       driver: offers turns    pauses ◄── obey_upstream: what the upstream allows ◄── response

// Before the others that add methods to the layer: docs list methods in the order of modules.
mod layer;

mod answer;
mod builder;
mod classes;
mod clock;
mod driver;
mod error;
mod future;
mod http;
mod leave;
#[cfg(feature = "metrics")]
mod metrics;
mod obey_upstream;
mod offers;
mod one_key;
mod pauses;
mod queue;
mod queues;
mod report;
mod request_fields;
mod schedule;
mod schedule_future;
mod service;
mod shaper;
mod start;
mod stats;
mod units;
mod upstream_head;
mod waits;
mod wanted;

pub use self::builder::ShaperBuilder;
pub use self::clock::TokioClock;
pub use self::error::{Bound, Paused, PausedBy, QueueFull, ShapeError};
pub use self::future::ShapeFuture;
pub use self::http::{HttpShape, HttpShapeFuture, HttpShapeLayer};
pub use self::layer::ShapeLayer;
pub use self::schedule_future::ScheduleFuture;
pub use self::service::Shape;
pub use self::shaper::Shaper;
pub use self::stats::ShapeStats;
pub use self::units::ShapeUsage;
pub use self::upstream_head::{HeadOf, HttpHead, IgnoreUpstream, SettleWith, UpstreamHead};
