//! Decisions that share calls on a cluster: those of one hash slot, and none while that slot moves.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{LimitTree, policy};
use throttle_core::{FixedWindow, Policy, Rate};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder};
use throttle_test_servers::{Cluster as Servers, slot_of};
use tokio::task::JoinSet;
use tokio::time::sleep;

const TASKS: u64 = 64;
/// Much longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(10);
const TAG: &str = "moving";

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
    policy(name, FixedWindow::new(Rate::new(units, Duration::from_secs(3650 * 86_400))))
}

fn limited(builder: RedisBuilder, units: u64) -> Arc<LimitTree> {
    Arc::new(LimitTree::new(&builder.build().expect("valid options"), window("p", units)))
}

/// Each of 64 tasks takes `each` units of a key, one after the other. Returns how many were admitted.
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
        let line = info.lines().find_map(|line| line.strip_prefix(counter).map(str::to_owned))?;
        line.split([',', '=']).nth(1)?.parse::<u64>().ok()
    };
    servers.nodes().filter_map(|node| of_one(node.query(&["INFO", section]))).sum()
}

fn script_calls(servers: &Servers) -> u64 {
    counted(servers, "commandstats", "cmdstat_evalsha:calls")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_decisions_of_one_slot_share_calls_and_admit_exactly_the_limit() {
    let _alone = alone().await;
    let servers = Servers::shared();
    for (prefix, max_batch) in [("batched", 64), ("unbatched", 1)] {
        let limits = limited(clustered(servers).per_key_slot().prefix(prefix).max_batch(max_batch), 1_000);
        limits.take("warm", 1).await;
        let (before, sent) = (limits.backend.stats(), script_calls(servers));
        assert_eq!(race(&limits, 50, |_| "hot".to_owned()).await, 1_000);
        let (after, sent) = (limits.backend.stats(), script_calls(servers) - sent);
        let (decisions, calls) = (after.decisions - before.decisions, after.calls - before.calls);
        assert_eq!((decisions, after.failures), (50 * TASKS, 0), "{prefix}");
        // A server that has not seen the script yet answers the first call without running it.
        assert!(calls.abs_diff(sent) <= after.repeated, "{prefix}: {calls} calls, of which {sent} arrived");
        let as_due = if max_batch > 1 { 2 * calls < decisions } else { calls >= decisions };
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
    assert_eq!((stats.decisions, stats.failures), (50 * TASKS, 0), "a call that reaches two slots fails");
    assert!(stats.calls < stats.decisions, "keys of one slot share calls: {stats:?}");
    assert_eq!(counted(servers, "errorstats", "errorstat_CROSSSLOT:count"), 0);
}

/// A load on one slot, until it is stopped.
struct Load {
    limits: Arc<LimitTree>,
    stop: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    tasks: JoinSet<Vec<u64>>,
}

const KEYS: usize = 40;

fn key(place: usize) -> String {
    format!("key-{place}")
}

impl Load {
    fn start(limits: &Arc<LimitTree>) -> Self {
        let (stop, decided) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut tasks = JoinSet::new();
        for task in 0..TASKS as usize {
            let (limits, stop, decided) = (Arc::clone(limits), Arc::clone(&stop), Arc::clone(&decided));
            tasks.spawn(async move {
                let mut admitted = vec![0; KEYS];
                for place in (task..).map(|step| step % KEYS) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // It panics if the store does not decide.
                    admitted[place] += u64::from(limits.take(&key(place), 1).await.is_admitted());
                    decided.fetch_add(1, Ordering::Relaxed);
                }
                admitted
            });
        }
        Self { limits: Arc::clone(limits), stop, decided, tasks }
    }

    /// Waits until so many more decisions were made.
    async fn goes_on(&self, decisions: u64) {
        let (from, start) = (self.decided.load(Ordering::Relaxed), Instant::now());
        while self.decided.load(Ordering::Relaxed) < from + decisions {
            assert!(start.elapsed() < PATIENCE, "the load stands still");
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Units of each key that were admitted.
    async fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let each = self.tasks.join_all().await;
        (0..KEYS).map(|place| each.iter().map(|admitted| admitted[place]).sum()).collect()
    }

    async fn is_merged_again(&self) {
        let start = Instant::now();
        loop {
            let before = self.limits.backend.stats();
            self.goes_on(500).await;
            let after = self.limits.backend.stats();
            if 2 * (after.calls - before.calls) < after.decisions - before.decisions {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "decisions travel alone: {after:?}");
        }
    }
}

async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Each step of the migration waits for the load, so that calls meet a slot whose keys are on both sides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_law_13_a_slot_that_moves_back_and_forth_under_load_admits_exactly_the_limit() {
    const UNITS: u64 = 400;
    let _alone = alone().await;
    let servers = Arc::new(aside(Servers::start).await);
    let limits = limited(clustered(&servers).single_slot(TAG), UNITS);
    let load = Load::start(&limits);
    load.is_merged_again().await;
    let slot = slot_of(TAG);
    let home = servers.master_of(slot);
    let away = (home + 1) % 3;
    for (from, to) in [(home, away), (away, home), (home, away)] {
        let moving = Arc::clone(&servers);
        aside(move || moving.open_slot(from, to, slot)).await;
        loop {
            load.goes_on(200).await;
            let moving = Arc::clone(&servers);
            if aside(move || moving.move_keys(from, to, slot, 15)).await == 0 {
                break;
            }
        }
        let moving = Arc::clone(&servers);
        aside(move || moving.close_slot(from, to, slot)).await;
        load.is_merged_again().await;
    }
    let admitted = load.stop().await;
    let used: u64 = admitted.iter().sum();
    for (place, admitted) in admitted.into_iter().enumerate() {
        assert_eq!(limits.left(&key(place)).await, UNITS - admitted, "{}: what was admitted was charged", key(place));
    }
    let stats = limits.backend.stats();
    assert_eq!((stats.failures, stats.unknown, stats.breaker_openings), (0, 0, 0), "{stats:?}");
    let refused = counted(&servers, "errorstats", "errorstat_TRYAGAIN:count");
    assert!(refused > 0, "no call of several decisions met keys on both sides");
    let last = race(&limits, UNITS, |task| key(task as usize % KEYS)).await;
    assert_eq!(used + last, KEYS as u64 * UNITS);
}
