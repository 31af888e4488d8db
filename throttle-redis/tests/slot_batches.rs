//! Decisions that share calls on a cluster: those of one hash slot.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{LimitTree, policy};
use throttle_core::{FixedWindow, Policy, Rate};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder};
use throttle_test_servers::Cluster as Servers;
use tokio::task::JoinSet;

const TASKS: u64 = 64;
/// Much longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the tests of this binary one at a time: some count the calls that reach the servers.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}

fn clustered(servers: &Servers) -> RedisBuilder {
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    RedisBackend::builder(cluster).deadline(PATIENCE)
}

/// A window that does not end during a test.
fn window(name: &str, units: u64) -> Policy {
    policy(
        name,
        FixedWindow::new(Rate::new(units, Duration::from_secs(3650 * 86_400))),
    )
}

fn limited(builder: RedisBuilder, units: u64) -> Arc<LimitTree> {
    Arc::new(LimitTree::new(
        &builder.build().expect("valid options"),
        window("p", units),
    ))
}

/// Each of 64 tasks takes `each` units of a key, one after the other. Returns how many were
/// admitted.
async fn race(limits: &Arc<LimitTree>, each: u64, key_of: fn(u64) -> String) -> u64 {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limits, key) = (Arc::clone(limits), key_of(task));
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..each {
                admitted += u64::from(limits.take(&key, 1).await.is_admitted());
            }
            admitted
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// The sum of a counter over all servers.
fn counted(servers: &Servers, section: &str, counter: &str) -> u64 {
    let of_one = |info: String| {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(counter).map(str::to_owned))?;
        line.split([',', '=']).nth(1)?.parse::<u64>().ok()
    };
    servers
        .nodes()
        .filter_map(|node| of_one(node.query(&["INFO", section])))
        .sum()
}

fn script_calls(servers: &Servers) -> u64 {
    counted(servers, "commandstats", "cmdstat_evalsha:calls")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_decisions_of_one_slot_share_calls_and_admit_exactly_the_limit() {
    let _alone = alone().await;
    let servers = Servers::shared();
    for (prefix, max_batch) in [("batched", 64), ("unbatched", 1)] {
        let limits = limited(
            clustered(servers)
                .per_key_slot()
                .prefix(prefix)
                .max_batch(max_batch),
            1_000,
        );
        limits.take("warm", 1).await;
        let (before, sent) = (limits.backend.stats(), script_calls(servers));
        assert_eq!(race(&limits, 50, |_| "hot".to_owned()).await, 1_000);
        let (after, sent) = (limits.backend.stats(), script_calls(servers) - sent);
        let (decisions, calls) = (
            after.decisions - before.decisions,
            after.calls - before.calls,
        );
        assert_eq!((decisions, after.failures), (50 * TASKS, 0), "{prefix}");
        // A server that has not seen the script yet answers the first call without running it.
        assert!(
            calls.abs_diff(sent) <= after.repeated,
            "{prefix}: {calls} calls, of which {sent} arrived"
        );
        let as_due = if max_batch > 1 {
            2 * calls < decisions
        } else {
            calls >= decisions
        };
        assert!(as_due, "{prefix}: {decisions} decisions in {calls} calls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_several_slots_share_no_call() {
    let _alone = alone().await;
    let servers = Servers::shared();
    let limits = limited(clustered(servers).per_key_slot().prefix("several"), 100);
    // Eight tasks for each of eight keys, on all servers.
    let key_of = |task: u64| format!("key-{}", task % 8);
    assert_eq!(race(&limits, 50, key_of).await, 8 * 100);
    let stats = limits.backend.stats();
    assert_eq!(
        (stats.decisions, stats.failures),
        (50 * TASKS, 0),
        "a call that reaches two slots fails"
    );
    assert!(
        stats.calls < stats.decisions,
        "keys of one slot share calls: {stats:?}"
    );
    assert_eq!(
        counted(servers, "errorstats", "errorstat_CROSSSLOT:count"),
        0
    );
}
