//! The backend on real servers. Tests whose process must be theirs alone are programs of their own.

mod bans;
mod busy;
mod cancelling;
mod changed_limits;
mod common;
mod connections;
mod deadlines;
mod deny_cache;
mod exceptions;
mod faults;
mod forgetting;
mod golden;
mod idle;
mod metrics;
mod moving_slots;
mod settling;
mod slot_batches;
mod tiers;
mod values;
