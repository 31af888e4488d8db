//! What a service sees when its store fails: real servers, real faults, and a steady load through
//! axum and the layer.
//!
//! In every test the same load runs, 200 requests a second in each [`Mode`](app::Mode), before,
//! during and after the fault. The requirements are the same for all of them: see
//! [`Report`](report::Report). `--nocapture` shows the figures.
//!
//! Latencies are asserted, so few tests run at a time: each one holds a [`place`]. A test may block
//! its own thread: the load runs on those of the runtime.

mod app;
mod cluster;
mod course;
mod figures;
mod ledger;
mod liar;
mod report;
mod sentinel;
mod server;
mod starting;
mod wire;
mod witness;

use std::time::Duration;

/// The default deadline of a decision.
const DEADLINE: Duration = Duration::from_millis(25);

/// The store must decide again within this time of its return.
const BACK: Duration = Duration::from_secs(1);

/// Runs the tests of this binary two at a time. Each of them mostly waits; the work of many would
/// show in the latencies.
async fn place() -> tokio::sync::SemaphorePermit<'static> {
    static PLACES: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);
    PLACES.acquire().await.expect("never closed")
}
