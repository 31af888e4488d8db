//! What the layer promises to tower, axum, hyper and its observers, in memory and with a store that
//! fails.

#[path = "../common/mod.rs"]
mod common;

mod body;
mod bounds;
mod builder;
mod cancelling;
mod candidates;
mod charging;
mod composing;
mod conditions;
mod correcting;
mod deadlines;
mod events;
mod failure;
mod hosts;
mod house_style;
mod keying;
mod local;
mod looked_up;
mod metrics;
mod metrics_shared;
mod names;
mod observers;
mod peeking;
mod plans;
mod public_paths;
mod random_layers;
mod readiness;
mod refusing;
mod replacing;
mod routers;
mod servers;
mod sharing;
mod showing;
mod status;
