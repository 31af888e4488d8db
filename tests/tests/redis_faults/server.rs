//! One server that dies, hangs, loses its data, or is full.

use std::time::Duration;

use throttle_redis::{Pool, RedisBackend, RedisBuilder, Single};
use throttle_test_servers::Server;

use crate::course::Course;
use crate::place;

/// A server that keeps its answered charges across a kill, so that they can be counted afterwards.
pub(crate) fn lasting() -> Server {
    Server::builder()
        .arg("--appendonly", "yes")
        .arg("--appendfsync", "no")
        .start()
}

pub(crate) fn single(url: &str) -> RedisBuilder {
    RedisBackend::builder(Single::new(url).expect("a URL"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted() {
    let _place = place().await;
    let server = lasting();
    let report = Course::changed(
        || single(&server.url()),
        Duration::from_secs(2),
        || server.kill(),
        || server.restart(),
    )
    .await;
    report.check_all("killed, restarted after 2 s", &server);
}

/// Each of several connections breaks, and is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted_behind_a_pool() {
    let _place = place().await;
    let server = lasting();
    let pool = || RedisBackend::builder(Pool::new(&server.url(), 4).expect("a URL"));
    let report = Course::changed(
        pool,
        Duration::from_secs(1),
        || server.kill(),
        || server.restart(),
    )
    .await;
    report.check_all("killed behind a pool, restarted after 1 s", &server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_for_five_seconds() {
    let _place = place().await;
    let server = Server::start();
    let report = Course::changed(
        || single(&server.url()),
        Duration::from_secs(5),
        || server.stop(),
        || server.cont(),
    )
    .await;
    report.check_all("stopped for 5 s", &server);
    for run in &report.runs {
        // Requests that were sent are executed late: at most those that opened the breaker, and
        // those under way at that time. Without a breaker it would be all 1,000.
        let unknown = report.unknown_during(run);
        assert!(
            unknown <= 100,
            "{unknown} decisions were sent to a server that hung"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed() {
    let _place = place().await;
    let server = Server::start();
    const TIMES: u64 = 10;
    let fault = async |course: &Course| {
        for _ in 0..TIMES {
            server.command(&["SCRIPT", "FLUSH", "SYNC"]);
            course.run_for(Duration::from_millis(100)).await;
        }
    };
    // The deadline is long enough that a stall of the machine makes no answer late.
    let backend = || single(&server.url()).deadline(Duration::from_secs(2));
    let report = Course::through(backend, fault, Duration::from_millis(300)).await;
    report.check_answers("scripts flushed");
    assert_eq!(report.degraded(), 0, "a flush degrades no request");
    report.check_charges(&[&server], 0);
    for run in &report.runs {
        let stats = run.app.backend.stats();
        // Only a call that met a server without its script carries the text.
        assert!(stats.scripts_loaded <= stats.repeated, "{stats:?}");
    }
}

/// Writing scripts fail without partial effect; the breaker holds back most of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let _place = place().await;
    let server = Server::builder()
        .arg("--maxmemory-policy", "noeviction")
        .start();
    let memory = |bytes| server.config_set("maxmemory", bytes);
    let report = Course::changed(
        || single(&server.url()),
        Duration::from_secs(2),
        || memory("1"),
        || memory("0"),
    )
    .await;
    report.check_all("out of memory for 2 s", &server);
    for run in &report.runs {
        let stats = run.app.backend.stats();
        assert_eq!(
            run.unknown_though_answered(),
            0,
            "decisions that the server refused count as perhaps charged"
        );
        // Trials are rare, not one with every request.
        assert!(
            stats.breaker_openings <= 20,
            "the breaker opened {} times",
            stats.breaker_openings
        );
        assert!(
            stats.connections <= 10,
            "{} connections in 4 s",
            stats.connections
        );
    }
}

/// A replica answers that it does not write. The connection is replaced, in case the name leads to
/// another server now, but not with every request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turned_into_a_replica() {
    let _place = place().await;
    let server = Server::start();
    // Nothing listens on that port: the server keeps its data, and waits for a master.
    let replica_of = |host, port| drop(server.command(&["REPLICAOF", host, port]));
    let report = Course::changed(
        || single(&server.url()),
        Duration::from_secs(2),
        || replica_of("127.0.0.1", "1"),
        || replica_of("NO", "ONE"),
    )
    .await;
    report.check("a replica for 2 s");
    report.check_return("a replica");
    report.check_charges(&[&server], 0);
    for run in &report.runs {
        let stats = run.app.backend.stats();
        assert_eq!(
            run.unknown_though_answered(),
            0,
            "the server said that nothing was charged"
        );
        assert!(
            stats.connections <= 16,
            "{} connections in 4 s",
            stats.connections
        );
    }
}
