//! Faults of a server that cannot answer a decision, and what happens to the connection then.

mod lost;
mod not_now;
mod read_only;
mod refusing;

use std::time::Duration;

use throttle_core::{FixedWindow, Policy, Rate};

use crate::common::policy;

const LIMIT: u64 = 1_000_000;

/// A policy whose window does not end during a test.
fn window(name: &str) -> Policy {
    policy(
        name,
        FixedWindow::new(Rate::new(LIMIT, Duration::from_secs(3650 * 86_400))),
    )
}
