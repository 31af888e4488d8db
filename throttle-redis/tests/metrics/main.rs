//! What a backend reports to a recorder, against what a real server and its clients did.

#[path = "../common/mod.rs"]
mod common;

mod counts;
mod faults;
mod recorded;
mod recorders;
mod table;

use std::future::Future;
use std::time::{Duration, Instant};

use throttle_core::{FixedWindow, Policy, Rate};
use throttle_redis::{RedisBackend, RedisBuilder, Single};
use throttle_test_servers::Server;

use crate::common::policy;

/// Much longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Options of a backend that reports as `api`.
fn builder(server: &Server) -> RedisBuilder {
    RedisBackend::builder(Single::new(&server.url()).expect("a URL"))
        .deadline(PATIENCE)
        .metrics("api")
}

/// A policy whose window does not end during a test.
fn window(limit: u64) -> Policy {
    policy(
        "p",
        FixedWindow::new(Rate::new(limit, Duration::from_secs(3650 * 86_400))),
    )
}

/// Waits until `ask` returns true.
async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let start = Instant::now();
    while !ask().await {
        assert!(
            start.elapsed() < PATIENCE,
            "waited {PATIENCE:?} in vain for {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
