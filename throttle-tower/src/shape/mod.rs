//! Delays outbound calls so that they stay within an upstream's rate: the layer, its service, and the shaper inside.
//!
//! Use [`ShapeLayer`] around the client of an API, and [`Shaper`] to pace work that is not a service.

// request ──► request_fields: key, cost, deadline ──► reserve: one decision of the backend
//          of several units: units │                     │ refused │ leaves now │ leaves later
//                                                        │         │            └► slot: sleeps until its time ─┐
//                                                        ▼         └────────────────────────────────────────────┤
//                                                      error                                                    ▼
//  paused_keys ◄── obey_upstream: what the upstream allows ◄── response ◄───────────────── the service is called

mod backoff;
mod builder;
mod clock;
mod error;
mod fleet_pauses;
mod future;
mod http;
mod into_shaper;
mod layer;
mod obey_upstream;
mod one_key;
mod pause_queue;
mod paused_keys;
mod pauses_known;
mod pending_reservation;
mod request_fields;
mod reserve;
mod schedule;
mod schedule_future;
mod service;
mod shaper;
mod shared_pauses;
mod slot;
mod slot_charge;
mod slot_request;
mod stats;
mod units;
mod upstream_head;
mod waiting;
mod waiting_permit;

pub use self::builder::ShaperBuilder;
pub use self::clock::TokioClock;
pub use self::error::{Bound, QueueFull, ShapeError};
pub use self::future::ShapeFuture;
pub use self::http::{HttpShape, HttpShapeFuture, HttpShapeLayer};
pub use self::into_shaper::IntoShaper;
pub use self::layer::ShapeLayer;
pub use self::schedule_future::ScheduleFuture;
pub use self::service::Shape;
pub use self::shaper::Shaper;
pub use self::slot::{Slot, SlotFuture};
pub use self::stats::ShapeStats;
pub use self::units::ShapeUsage;
pub use self::upstream_head::{HeadOf, HttpHead, IgnoreUpstream, SettleWith, UpstreamHead};
