//! The connection between the service and one server: slow, cut, or silent.

use std::time::Duration;

use throttle_redis::{Pool, RedisBackend, RedisBuilder};
use throttle_test_servers::{Cluster, Proxy, Server};

use crate::cluster::{check_charges, clustered};
use crate::course::Course;
use crate::report::Report;
use crate::server::single;
use crate::{DEADLINE, place};

/// A server behind a proxy.
fn wired() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

/// Answers within the deadline count, however slow they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_delayed_within_the_deadline() {
    let _place = place().await;
    let (server, proxy) = wired();
    const DELAY: Duration = Duration::from_millis(100);
    // The longest deadline, so that a stall of the machine makes no answer late.
    let backend = || single(&proxy.url()).deadline(Duration::from_secs(10));
    let delay = |by| proxy.delay_replies(by);
    let report = Course::changed(
        backend,
        Duration::from_secs(2),
        || delay(DELAY),
        || delay(Duration::ZERO),
    )
    .await;
    report.check_answers("replies delayed within the deadline");
    report.check_charges(&[&server], 0);
    for run in &report.runs {
        let slow = run
            .samples
            .iter()
            .filter(|sample| sample.added >= DELAY)
            .count();
        assert!(slow >= 100, "{slow} of 400 answers were delayed");
    }
    assert_eq!(report.degraded(), 0, "all answers came in time");
}

/// Answers after the deadline do not count, and no other request gets them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_delayed_beyond_the_deadline() {
    let _place = place().await;
    for delay in [30, 200].map(Duration::from_millis) {
        let (server, proxy) = wired();
        let backend = || single(&proxy.url());
        let delayed = |by| proxy.delay_replies(by);
        let report = Course::changed(
            backend,
            Duration::from_secs(2),
            || delayed(delay),
            || delayed(Duration::ZERO),
        )
        .await;
        let fault = format!("replies delayed by {delay:?}");
        report.check(&fault);
        report.check_return(&fault);
        report.check_charges(&[&server], 0);
        // A process that reads its sockets late blames the store only for answers that are later
        // than four deadlines.
        if delay > 4 * DEADLINE {
            report.check_breaker(&fault);
        }
    }
}

/// Answers lost at each proxy.
const LOST: u32 = 10;

/// The server has charged, and its answer is lost: such a decision is neither repeated nor charged
/// twice.
async fn answers_lost(
    fault: &str,
    backend: impl Fn() -> RedisBuilder,
    proxies: &[&Proxy],
) -> Report {
    let lose = async |course: &Course| {
        for proxy in proxies {
            course.lose_answers(proxy, LOST).await;
        }
    };
    let report = Course::through(backend, lose, Duration::from_millis(600)).await;
    report.check(fault);
    report.check_return(fault);
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_lost_after_execution() {
    let _place = place().await;
    let (server, proxy) = wired();
    let pool = || RedisBackend::builder(Pool::new(&proxy.url(), 4).expect("a URL"));
    answers_lost("replies lost", || single(&proxy.url()), &[&proxy])
        .await
        .check_charges(&[&server], 0);
    server.command(&["FLUSHALL"]);
    answers_lost("replies lost behind a pool", pool, &[&proxy])
        .await
        .check_charges(&[&server], 0);
}

/// With keys in slots of their own, a decision is not repeated either if one half of its answer is
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_lost_of_a_cluster() {
    let _place = place().await;
    let cluster = Cluster::builder().proxied().start();
    let proxies = [0, 1, 2].map(|master| cluster.proxy(master));
    let report = answers_lost(
        "replies lost of a cluster",
        || clustered(&cluster).per_key_slot(),
        &proxies,
    )
    .await;
    check_charges(&report, &cluster, 0);
}

/// Connections stay open, and nothing passes. The held requests arrive in the end, and are charged
/// late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open() {
    let _place = place().await;
    let (server, proxy) = wired();
    let report = Course::changed(
        || single(&proxy.url()),
        Duration::from_secs(4),
        || proxy.blackhole(true),
        || proxy.blackhole(false),
    )
    .await;
    report.check_all("half-open for 4 s", &server);
    for run in &report.runs {
        let unknown = report.unknown_during(run);
        // Of 800 requests.
        assert!(
            unknown <= 80,
            "{unknown} decisions were sent into a wire that swallows them"
        );
    }
}

/// The old connections are dead, as behind a firewall that has lost their state: new ones must be
/// opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_connections_swallowed() {
    let _place = place().await;
    let (server, silent) = wired();
    let report = Course::changed(
        || single(&silent.url()),
        Duration::from_secs(2),
        || silent.drop_replies(true),
        || silent.drop_replies(false),
    )
    .await;
    report.check_all("replies swallowed for 2 s", &server);
}

/// Attempts to connect are far fewer than decisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_refused() {
    let _place = place().await;
    let (server, proxy) = wired();
    let refuse = || {
        proxy.refuse(true);
        proxy.reset_all();
    };
    let report = Course::changed(
        || single(&proxy.url()),
        Duration::from_secs(3),
        refuse,
        || proxy.refuse(false),
    )
    .await;
    report.check_all("refused for 3 s", &server);
    for run in &report.runs {
        let failed = run.app.backend.stats().failed_connections;
        // 100 ms doubled up to 350 ms, and up to half of that at random. On a busy machine each of
        // them takes longer.
        assert!(
            (1..=18).contains(&failed),
            "{failed} attempts to connect in 3 s"
        );
    }
}
