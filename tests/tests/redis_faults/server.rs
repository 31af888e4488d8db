//! One server that dies, hangs, loses its data, or is full.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::BackendErrorKind;
use throttle_redis::{Pool, RedisBackend, RedisBuilder, Single};
use throttle_test_servers::Server;

use crate::app::{Heard, Sample};
use crate::course::Course;
use crate::{aside, place};

/// A server that keeps its answered charges across a kill, so that they can be counted afterwards.
pub(crate) fn lasting() -> Arc<Server> {
    Arc::new(Server::builder().arg("--appendonly", "yes").arg("--appendfsync", "no").start())
}

pub(crate) fn single(url: &str) -> RedisBuilder {
    RedisBackend::builder(Single::new(url).expect("a URL"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted() {
    let _place = place().await;
    let server = aside(lasting).await;
    let url = server.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    let dying = Arc::clone(&server);
    aside(move || dying.kill()).await;
    course.run_for(Duration::from_secs(2)).await;
    let rising = Arc::clone(&server);
    aside(move || rising.restart()).await;
    course.fault_ends();
    course.run_for(Duration::from_millis(1200)).await;
    let report = course.finish().await;
    report.check("killed, restarted after 2 s");
    report.check_breaker("killed");
    report.check_return("killed");
    report.check_charges(&[&server], 0, true);
}

/// Each of several connections breaks, and is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_restarted_behind_a_pool() {
    let _place = place().await;
    let server = Arc::new(aside(lasting).await);
    let url = server.url();
    let mut course = Course::start(|| RedisBackend::builder(Pool::new(&url, 4).expect("a URL"))).await;
    course.fault_begins();
    let dying = Arc::clone(&server);
    aside(move || dying.kill()).await;
    course.run_for(Duration::from_secs(1)).await;
    let rising = Arc::clone(&server);
    aside(move || rising.restart()).await;
    course.fault_ends();
    course.run_for(Duration::from_secs(1)).await;
    let report = course.finish().await;
    report.check("killed behind a pool, restarted after 1 s");
    report.check_breaker("killed behind a pool");
    report.check_return("killed behind a pool");
    report.check_charges(&[&server], 0, true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_for_five_seconds() {
    let _place = place().await;
    let server = Arc::new(aside(Server::start).await);
    let url = server.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    let hanging = Arc::clone(&server);
    aside(move || hanging.stop()).await;
    course.run_for(Duration::from_secs(5)).await;
    course.fault_ends();
    let waking = Arc::clone(&server);
    aside(move || waking.cont()).await;
    course.run_for(Duration::from_millis(1200)).await;
    let report = course.finish().await;
    report.check("stopped for 5 s");
    report.check_breaker("stopped");
    report.check_return("stopped");
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        // Requests that were sent are executed late: at most those that opened the breaker, and those under way at that
        // time. Without a breaker it would be all 1,000.
        let unknown = run.app.backend.stats().unknown;
        assert!(unknown <= 100, "{unknown} decisions were sent to a server that hung");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed() {
    let _place = place().await;
    let server = Arc::new(aside(Server::start).await);
    let url = server.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    const TIMES: u64 = 10;
    for _ in 0..TIMES {
        let forgetful = Arc::clone(&server);
        aside(move || forgetful.command(&["SCRIPT", "FLUSH", "SYNC"])).await;
        course.run_for(Duration::from_millis(100)).await;
    }
    course.fault_ends();
    course.run_for(Duration::from_millis(300)).await;
    let report = course.finish().await;
    report.check("scripts flushed");
    // Except for answers that a stall of the machine makes late. Without the second attempt, each of thirty flushes
    // would degrade one request at least.
    assert!(report.degraded() <= 8, "{} degraded, though a flush should degrade none", report.degraded());
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        let loaded = run.app.backend.stats().scripts_loaded;
        // Three scripts: one for a single policy, and two for pairs; each is loaded at most once each time it was lost.
        assert!(loaded <= 3 * (TIMES + 1), "{loaded} scripts were loaded");
    }
}

/// Writing scripts fail without partial effect; the breaker holds back most of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let _place = place().await;
    let server = Arc::new(aside(|| Server::builder().arg("--maxmemory-policy", "noeviction").start()).await);
    let url = server.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    let full = Arc::clone(&server);
    aside(move || full.config_set("maxmemory", "1")).await;
    course.run_for(Duration::from_secs(2)).await;
    let emptied = Arc::clone(&server);
    aside(move || emptied.config_set("maxmemory", "0")).await;
    course.fault_ends();
    course.run_for(Duration::from_secs(1)).await;
    let report = course.finish().await;
    report.check("out of memory for 2 s");
    report.check_breaker("out of memory");
    report.check_return("out of memory");
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        let stats = run.app.backend.stats();
        // The server answered that nothing was charged; a request that the machine makes late may have been.
        let unknown = |sample: &Sample| match sample.heard {
            Heard::Degraded { kind, uncharged, .. } => !uncharged && kind != BackendErrorKind::Timeout,
            _ => false,
        };
        assert_eq!(run.degraded(unknown), 0, "decisions that the server refused count as perhaps charged");
        assert!(stats.unknown <= 50, "{} decisions were late on a server that answers", stats.unknown);
        // Trials are rare, not one with every request.
        assert!(stats.breaker_openings <= 20, "the breaker opened {} times", stats.breaker_openings);
        assert!(stats.connections <= 10, "{} connections in 4 s", stats.connections);
    }
}

/// A replica answers that it does not write. The connection is replaced, in case the name leads to another server now,
/// but not with every request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turned_into_a_replica() {
    let _place = place().await;
    let server = Arc::new(aside(Server::start).await);
    let url = server.url();
    let mut course = Course::start(|| single(&url)).await;
    course.fault_begins();
    let demoted = Arc::clone(&server);
    // Nothing listens on that port: the server keeps its data, and waits for a master.
    aside(move || demoted.command(&["REPLICAOF", "127.0.0.1", "1"])).await;
    course.run_for(Duration::from_secs(2)).await;
    let promoted = Arc::clone(&server);
    aside(move || promoted.command(&["REPLICAOF", "NO", "ONE"])).await;
    course.fault_ends();
    course.run_for(Duration::from_secs(1)).await;
    let report = course.finish().await;
    report.check("a replica for 2 s");
    report.check_return("a replica");
    report.check_charges(&[&server], 0, true);
    for run in &report.runs {
        let stats = run.app.backend.stats();
        assert_eq!(stats.unknown, 0, "the server said that nothing was charged");
        assert!(stats.connections <= 16, "{} connections in 4 s", stats.connections);
    }
}
