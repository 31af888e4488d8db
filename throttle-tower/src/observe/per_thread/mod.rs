//! What a thread has of its own, so that a request counts without an atomic step and hardly ever reads the clock. Open
//! this to add an observer that counts.

pub(super) mod chance;
#[cfg(feature = "metrics")]
pub(super) mod counts;
pub(super) mod own_place;
pub(super) mod report;
pub(super) mod schedule;
pub(super) mod turns;
