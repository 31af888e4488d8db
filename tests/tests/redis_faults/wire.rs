//! The wire between the service and one server: slow, cut, or silent.

use std::sync::Arc;
use std::time::Duration;

use throttle_test_servers::{Proxy, Server};

use crate::course::Course;
use crate::server::single;
use crate::{DEADLINE, alone, aside};

/// A server behind a wire.
async fn wired() -> (Arc<Server>, Arc<Proxy>) {
    aside(|| {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        (Arc::new(server), Arc::new(proxy))
    })
    .await
}

/// Slow answers within the deadline are answers; later ones are not, and nobody else gets them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_delayed() {
    let _alone = alone().await;
    for delay in [10, 30, 100].map(Duration::from_millis) {
        let (server, proxy) = wired().await;
        let url = proxy.url();
        let mut course = Course::start(|| single(&url)).await;
        course.fault_begins();
        proxy.delay_replies(delay);
        course.run_for(Duration::from_secs(2)).await;
        proxy.delay_replies(Duration::ZERO);
        course.fault_ends();
        course.run_for(Duration::from_millis(800)).await;
        let report = course.finish().await;
        let fault = format!("replies delayed by {delay:?}");
        report.check(&fault);
        report.check_return(&fault);
        report.check_charges(&[&server], 0, true);
        if delay < DEADLINE {
            // A stall of the machine makes some of them late, and may open the breaker for a moment. Were they taken for
            // failures, nearly all 1,200 would be degraded.
            assert!(report.degraded() <= 120, "{} degraded, though all answers came in time", report.degraded());
        } else {
            report.check_breaker(&fault);
        }
    }
}

/// The server has charged, and its answer is lost: such a decision is neither repeated nor charged twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_lost_after_execution() {
    let _alone = alone().await;
    let (server, proxy) = wired().await;
    let url = proxy.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    const TIMES: u32 = 10;
    for _ in 0..TIMES {
        proxy.cut_replies(1);
        course.run_for(Duration::from_millis(150)).await;
    }
    course.fault_ends();
    course.run_for(Duration::from_millis(600)).await;
    let report = course.finish().await;
    report.check("replies lost after execution");
    report.check_return("replies lost");
    report.check_charges(&[&server], 0, true);
    let unknown: u64 = report.runs.iter().map(|run| run.app.backend.stats().unknown).sum();
    assert!(unknown >= u64::from(TIMES - proxy.cuts_left()) / 2, "{unknown} were told to be unknown");
}

/// Connections stay open, and nothing comes through. What was held arrives in the end, and is charged late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open() {
    let _alone = alone().await;
    let (server, proxy) = wired().await;
    let url = proxy.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    proxy.blackhole(true);
    course.run_for(Duration::from_secs(4)).await;
    proxy.blackhole(false);
    course.fault_ends();
    course.run_for(Duration::from_millis(1200)).await;
    let report = course.finish().await;
    report.check("half-open for 4 s");
    report.check_breaker("half-open");
    report.check_return("half-open");
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        let unknown = run.app.backend.stats().unknown;
        assert!(unknown <= 20, "{unknown} decisions were sent into a wire that swallows them");
    }
}

/// The old connections are dead for good, as behind a firewall that forgot them: new ones must be made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_connections_swallowed() {
    let _alone = alone().await;
    let (server, silent) = wired().await;
    let url = silent.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    silent.drop_replies(true);
    course.run_for(Duration::from_secs(2)).await;
    silent.drop_replies(false);
    course.fault_ends();
    course.run_for(Duration::from_millis(1200)).await;
    let report = course.finish().await;
    report.check("replies swallowed for 2 s");
    report.check_breaker("replies swallowed");
    report.check_return("replies swallowed");
    report.check_charges(&[&server], 0, true);
}

/// Nobody connects as often as it decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_refused() {
    let _alone = alone().await;
    let (server, proxy) = wired().await;
    let url = proxy.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    proxy.refuse(true);
    proxy.reset_all();
    course.run_for(Duration::from_secs(3)).await;
    proxy.refuse(false);
    course.fault_ends();
    course.run_for(Duration::from_secs(1)).await;
    let report = course.finish().await;
    report.check("refused for 3 s");
    report.check_breaker("refused");
    report.check_return("refused");
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        let failed = run.app.backend.stats().failed_connections;
        // 100 ms doubled up to 350 ms, and up to half as long by chance.
        assert!((6..=18).contains(&failed), "{failed} attempts to connect in 3 s");
    }
}
