//! Law 8, one answer: what a real server decides is what the algorithms, the memory backend and the reference decide,
//! in every field of every decision.

#[path = "../../../throttle-core/tests/support/mod.rs"]
mod support;

mod golden;
mod random;
mod remote;
mod tiers;
