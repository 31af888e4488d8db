//! Delayed calls: the schedule, its bounds, what is given back, and what an upstream sees.

mod bounds;
mod classes;
mod contract;
mod counting;
mod failing;
mod fairness;
mod giving_up;
mod giving_up_laws;
mod obeying;
mod obeying_laws;
mod pacing;
mod pausing;
mod sharing;

mod stats;
mod support;
mod units;
mod units_laws;
mod upstream;
mod upstreams;
