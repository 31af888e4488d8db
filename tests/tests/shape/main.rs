//! Delayed calls: the schedule, its bounds, what is given back, and what an upstream sees.

#[path = "../../../throttle-core/tests/support/golden.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod golden_vectors;

mod bounds;
mod cancelling;
mod contract;
mod failing;
mod fairness;
mod golden;
mod obeying;
mod pacing;
mod pausing;
mod sharing;
mod slowing;
mod stats;
mod support;
mod units;
mod units_laws;
mod units_over_redis;
mod upstream;
