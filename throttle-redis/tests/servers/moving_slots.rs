//! Slots that move to another server of a cluster and back, under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LimitTree, policy};
use throttle_core::{Backend, BackendErrorKind, FixedWindow, Rate};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder};
use throttle_test_servers::{Cluster as Servers, Server, slot_of};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Much longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(10);
const TAG: &str = "moving";
const KEYS: usize = 40;
const UNITS: u64 = 400;

/// Keys that are all in one slot.
fn in_one_slot(servers: &Servers) -> RedisBuilder {
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    RedisBackend::builder(cluster)
        .single_slot(TAG)
        .deadline(PATIENCE)
        .queue(4_096)
}

fn limited(builder: RedisBuilder) -> Arc<LimitTree> {
    // A window that does not end during a test.
    let window = FixedWindow::new(Rate::new(UNITS, Duration::from_secs(3650 * 86_400)));
    Arc::new(LimitTree::new(
        &builder.build().expect("valid options"),
        policy("p", window),
    ))
}

fn key(place: usize) -> String {
    format!("key-{place}")
}

/// A load on one slot, until it is stopped.
struct Load {
    limits: Arc<LimitTree>,
    stop: Arc<AtomicBool>,
    decided: Arc<AtomicU64>,
    tasks: JoinSet<Vec<Taken>>,
}

/// What was taken of a key.
#[derive(Clone, Copy, Default)]
struct Taken {
    /// Units that were admitted.
    admitted: u64,
    /// Decisions whose answer did not come within the second that the client waits: the machine may
    /// have other work. They may be charged.
    late: u64,
}

impl Load {
    fn start(limits: &Arc<LimitTree>, tasks: usize) -> Self {
        let (stop, decided) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let one = |task: usize| {
            let (limits, stop, decided) =
                (Arc::clone(limits), Arc::clone(&stop), Arc::clone(&decided));
            async move {
                let mut taken = vec![Taken::default(); KEYS];
                for place in (task..).map(|step| step % KEYS) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    match limits
                        .backend
                        .decide(&limits.prepared, &limits.calls(&key(place), 1))
                        .await
                    {
                        Ok(decision) => taken[place].admitted += u64::from(decision.is_admitted()),
                        Err(error) => {
                            assert_eq!(error.kind(), BackendErrorKind::Timeout, "{error}");
                            taken[place].late += 1;
                        }
                    }
                    decided.fetch_add(1, Ordering::Relaxed);
                }
                taken
            }
        };
        let tasks = (0..tasks).map(one).collect();
        Self {
            limits: Arc::clone(limits),
            stop,
            decided,
            tasks,
        }
    }

    /// Waits until so many more decisions were made.
    async fn goes_on(&self, decisions: u64) {
        let (from, start) = (self.decided.load(Ordering::Relaxed), Instant::now());
        while self.decided.load(Ordering::Relaxed) < from + decisions {
            assert!(start.elapsed() < PATIENCE, "the load stands still");
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until decisions share calls.
    async fn is_merged(&self) {
        let start = Instant::now();
        loop {
            let before = self.limits.backend.stats();
            self.goes_on(500).await;
            let after = self.limits.backend.stats();
            if 2 * (after.calls - before.calls) < after.decisions - before.decisions {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "decisions travel alone: {after:?}"
            );
        }
    }

    async fn stop(self) -> Vec<Taken> {
        self.stop.store(true, Ordering::Relaxed);
        let each = self.tasks.join_all().await;
        let sum =
            |place: usize, of: fn(&Taken) -> u64| each.iter().map(|taken| of(&taken[place])).sum();
        let taken = |place| Taken {
            admitted: sum(place, |taken| taken.admitted),
            late: sum(place, |taken| taken.late),
        };
        (0..KEYS).map(taken).collect()
    }
}

async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

/// Moves the slot to another server, back, and away again. Each step waits for the load, so that
/// calls meet a slot whose keys are on both sides. `settles` is awaited after each move.
async fn move_to_and_fro(servers: &Arc<Servers>, load: &Load, settles: impl AsyncFn()) {
    let slot = slot_of(TAG);
    let home = servers.master_of(slot);
    let away = (home + 1) % 3;
    for (from, to) in [(home, away), (away, home), (home, away)] {
        let moving = Arc::clone(servers);
        aside(move || moving.open_slot(from, to, slot)).await;
        loop {
            load.goes_on(200).await;
            let moving = Arc::clone(servers);
            if aside(move || moving.move_keys(from, to, slot, 15)).await == 0 {
                break;
            }
        }
        let moving = Arc::clone(servers);
        aside(move || moving.close_slot(from, to, slot)).await;
        settles().await;
    }
}

/// A client that stands still answers nothing until the breaker opens and its connection is
/// replaced.
async fn assert_exact(limits: &LimitTree, taken: Vec<Taken>) {
    let stats = limits.backend.stats();
    let late: u64 = taken.iter().map(|taken| taken.late).sum();
    assert_eq!(
        (stats.failures, stats.breaker_openings, stats.connections),
        (late, 0, 1),
        "{stats:?}"
    );
    for (place, Taken { admitted, late }) in taken.into_iter().enumerate() {
        let (charged, key) = (UNITS - limits.left(&key(place)).await, key(place));
        assert!(
            (admitted..=admitted + late).contains(&charged),
            "{key}: {charged} charged, {admitted} admitted"
        );
    }
}

/// Each decision has a call of its own, and more calls are asked for at once than the client can
/// process in one turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_law_13_no_call_of_a_crowd_is_lost_while_its_slot_moves() {
    let servers = Arc::new(aside(Servers::start).await);
    let limits = limited(in_one_slot(&servers).max_batch(1));
    let load = Load::start(&limits, 256);
    load.goes_on(1_000).await;
    move_to_and_fro(&servers, &load, async || load.goes_on(500).await).await;
    assert_exact(&limits, load.stop().await).await;
}

/// Keys of one call are on both sides of the slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_06_law_13_decisions_travel_alone_while_their_slot_moves() {
    let servers = Arc::new(aside(Servers::start).await);
    let limits = limited(in_one_slot(&servers));
    let load = Load::start(&limits, 64);
    load.is_merged().await;
    move_to_and_fro(&servers, &load, async || load.is_merged().await).await;
    assert_exact(&limits, load.stop().await).await;
    let refused: u64 = servers.nodes().map(tryagain).sum();
    assert!(
        refused > 0,
        "no call of several decisions met keys on both sides"
    );
}

/// How many calls a server has answered with `TRYAGAIN`.
fn tryagain(node: &Server) -> u64 {
    let info: String = node.query(&["INFO", "errorstats"]);
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_TRYAGAIN:count="));
    line.map_or(0, |count| count.parse().expect("a number"))
}
