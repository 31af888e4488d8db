//! What a backend reports to a recorder, against what a real server and its clients did.

mod counts;
mod faults;
mod recorded;
mod recorders;
mod table;

use std::time::Duration;

use throttle_core::{FixedWindow, Policy, Rate};
use throttle_redis::{RedisBackend, RedisBuilder, Single};
use throttle_test_servers::Server;

use crate::common::{LONGEST_DEADLINE, policy};

/// Options of a backend that reports as `api`.
fn builder(server: &Server) -> RedisBuilder {
    RedisBackend::builder(Single::new(&server.url()).expect("a URL"))
        .deadline(LONGEST_DEADLINE)
        .metrics("api")
}

/// A policy whose window does not end during a test.
fn window(limit: u64) -> Policy {
    policy(
        "p",
        FixedWindow::new(Rate::new(limit, Duration::from_secs(3650 * 86_400))),
    )
}
