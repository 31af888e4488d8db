//! Properties on which tower, axum and hyper rely.

#[path = "../common/mod.rs"]
mod common;

mod body;
mod cancelling;
mod charging;
mod composing;
mod conditions;
mod deadlines;
mod keying;
mod looked_up;
mod readiness;
mod refusing;
mod routers;
mod servers;
mod sharing;
mod showing;
