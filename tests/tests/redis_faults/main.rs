//! What a service sees when its store fails: real servers, real faults, and a steady load through axum and the layer.
//!
//! In every test the same load runs, 200 requests a second in each [`Mode`](app::Mode), before, during and after the fault. What is
//! demanded holds for all of them: see [`Report`](report::Report). `--nocapture` shows the figures.
//!
//! Latencies are asserted, so only one test runs at a time: each one holds [`alone`].

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

/// How long after the store is back the first decision of it is due.
const BACK: Duration = Duration::from_millis(500);

/// Keeps other tests of this binary away: their work would show up in the latencies.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}

/// Does what blocks, and may take long, away from the load.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("the servers do as they are told")
}
