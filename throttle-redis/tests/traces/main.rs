//! Law 8, one answer: a real server decides as the algorithms, the memory backend and the reference
//! do, in every field of every decision.

#[path = "../../../throttle-core/tests/support/mod.rs"]
mod support;

mod random;
mod remote;
mod tiers;
