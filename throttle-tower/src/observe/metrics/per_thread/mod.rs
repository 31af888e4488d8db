//! What a thread has of its own, so that a request counts without an atomic step and hardly ever
//! reads the clock.

pub(super) mod counts;
pub(super) mod own_place;
pub(super) mod turns;
