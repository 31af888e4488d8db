//! The connection between the service and one server: slow, cut, or silent.

use std::sync::Arc;
use std::time::Duration;

use throttle_redis::{Pool, RedisBackend, RedisBuilder};
use throttle_test_servers::{Cluster, Proxy, Server};

use crate::cluster::{check_charges, clustered};
use crate::course::Course;
use crate::report::Report;
use crate::server::single;
use crate::{aside, place};

/// A server behind a proxy.
async fn wired() -> (Arc<Server>, Arc<Proxy>) {
    aside(|| {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        (Arc::new(server), Arc::new(proxy))
    })
    .await
}

/// Answers within the deadline count, however slow they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_delayed_within_the_deadline() {
    let _place = place().await;
    let (server, proxy) = wired().await;
    let url = proxy.url();
    const DELAY: Duration = Duration::from_millis(100);
    // The longest deadline, so that a stall of the machine makes no answer late.
    let mut course = Course::start(|| single(&url).deadline(Duration::from_secs(10))).await;
    course.fault_begins();
    proxy.delay_replies(DELAY);
    course.run_for(Duration::from_secs(2)).await;
    proxy.delay_replies(Duration::ZERO);
    course.fault_ends();
    course.run_for(Duration::from_millis(500)).await;
    let report = course.finish().await;
    report.check_answers("replies delayed within the deadline");
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        let slow = run.samples.iter().filter(|sample| sample.added >= DELAY).count();
        assert!(slow >= 100, "{slow} of 400 answers were delayed");
    }
    assert_eq!(report.degraded(), 0, "all answers came in time");
}

/// Answers after the deadline do not count, and no other request gets them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_delayed_beyond_the_deadline() {
    let _place = place().await;
    for delay in [30, 100].map(Duration::from_millis) {
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
        report.check_breaker(&fault);
    }
}

/// The server has charged, and its answer is lost: such a decision is neither repeated nor charged twice.
async fn answers_lost(fault: &str, backend: impl Fn() -> RedisBuilder, proxies: &[&Proxy]) -> Report {
    let mut course = Course::start(backend).await;
    course.fault_begins();
    for proxy in proxies {
        course.lose_answers(proxy, LOST).await;
    }
    course.fault_ends();
    course.run_for(Duration::from_millis(600)).await;
    let report = course.finish().await;
    report.check(fault);
    report.check_return(fault);
    report
}

/// Answers lost at each proxy.
const LOST: u32 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_lost_after_execution() {
    let _place = place().await;
    let (server, proxy) = wired().await;
    let report = answers_lost("replies lost after execution", || single(&proxy.url()), &[&proxy]).await;
    report.check_charges(&[&server], 0, true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_lost_behind_a_pool() {
    let _place = place().await;
    let (server, proxy) = wired().await;
    let pool = || RedisBackend::builder(Pool::new(&proxy.url(), 4).expect("a URL"));
    let report = answers_lost("replies lost behind a pool", pool, &[&proxy]).await;
    report.check_charges(&[&server], 0, true);
}

/// With keys in slots of their own, a decision is not repeated either if one half of its answer is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_lost_of_a_cluster() {
    let _place = place().await;
    let cluster = Arc::new(aside(|| Cluster::builder().proxied().start()).await);
    let proxies = [0, 1, 2].map(|master| cluster.proxy(master));
    let report = answers_lost("replies lost of a cluster", || clustered(&cluster).per_key_slot(), &proxies).await;
    aside(move || check_charges(&report, &cluster, 0)).await;
}

/// Connections stay open, and nothing passes. The held requests arrive in the end, and are charged late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open() {
    let _place = place().await;
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
        // Of 800 requests.
        assert!(unknown <= 80, "{unknown} decisions were sent into a wire that swallows them");
    }
}

/// The old connections are dead, as behind a firewall that has lost their state: new ones must be opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_connections_swallowed() {
    let _place = place().await;
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

/// Attempts to connect are far fewer than decisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_refused() {
    let _place = place().await;
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
        // 100 ms doubled up to 350 ms, and up to half of that at random.
        assert!((6..=18).contains(&failed), "{failed} attempts to connect in 3 s");
    }
}
