//! What one decision meets at a server that cannot answer it, and what becomes of the connection.

#[path = "../common/mod.rs"]
mod common;

mod lost;
mod not_now;
mod read_only;

use std::future::Future;
use std::time::{Duration, Instant};

use throttle_core::{FixedWindow, Policy, Rate};

use crate::common::policy;

/// Far more than any of these faults takes.
const PATIENCE: Duration = Duration::from_secs(10);

const LIMIT: u64 = 1_000_000;

/// A policy whose window does not end during a test.
fn window(name: &str) -> Policy {
    policy(name, FixedWindow::new(Rate::new(LIMIT, Duration::from_secs(3650 * 86_400))))
}

/// Asks again and again.
async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let start = Instant::now();
    while !ask().await {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
