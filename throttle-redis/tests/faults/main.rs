//! Faults of a server that cannot answer a decision, and what happens to the connection then.

#[path = "../common/mod.rs"]
mod common;

mod lost;
mod not_now;
mod one_server;
mod read_only;
mod refusing;

use std::future::Future;
use std::time::{Duration, Instant};

use throttle_core::{FixedWindow, Policy, Rate};

use crate::common::policy;

/// Much longer than any of these faults takes.
const PATIENCE: Duration = Duration::from_secs(10);

const LIMIT: u64 = 1_000_000;

/// A policy whose window does not end during a test.
fn window(name: &str) -> Policy {
    policy(
        name,
        FixedWindow::new(Rate::new(LIMIT, Duration::from_secs(3650 * 86_400))),
    )
}

/// Calls `ask` until it returns true.
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
