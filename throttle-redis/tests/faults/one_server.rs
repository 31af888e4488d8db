//! One server of a cluster is lost. The slots of its servers lie between one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::{Backend, DecidedBy};
use throttle_redis::{Cluster, RedisBackend, RedisBuilder};
use throttle_test_servers::{Cluster as Servers, Server};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use crate::common::LimitTree;
use crate::{until, window};

/// The server that is lost.
const LOST: usize = 1;
const KEYS: usize = 60;

fn spread(servers: &Servers) -> RedisBuilder {
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    RedisBackend::builder(cluster)
        .per_key_slot()
        .readable_keys()
        // Longer than this machine stands still.
        .deadline(Duration::from_millis(100))
}

fn limited(servers: &Servers) -> Arc<LimitTree> {
    let backend = spread(servers).build().expect("valid options");
    Arc::new(LimitTree::new(&backend, window("one")))
}

/// So many keys of a master.
fn keys_of(servers: &Servers, master: usize, count: usize) -> Vec<String> {
    let owned = servers.slots_of(master);
    let is_owned = |key: &String| {
        let slot = throttle_test_servers::slot_of(format!("throttle{{t{key}}}one:"));
        owned.iter().any(|range| range.contains(&slot))
    };
    let keys = (0..).map(|number| format!("key-{number}"));
    keys.filter(is_owned).take(count).collect()
}

/// Decides about a key every 20 ms, for four seconds. Returns how many decisions failed.
async fn failures(limits: Arc<LimitTree>, key: String) -> usize {
    let (mut turn, mut failed) = (interval(Duration::from_millis(20)), 0);
    for _ in 0..200 {
        turn.tick().await;
        let calls = limits.calls(&key, 1);
        match limits.backend.decide(&limits.prepared, &calls).await {
            Ok(decision) => assert_eq!(decision.decided_by(), DecidedBy::Store),
            Err(_) => failed += 1,
        }
    }
    failed
}

/// Loses a server under a load on the keys of all.
async fn loses(servers: Servers, what: &str, lose: impl FnOnce(&Servers)) {
    let limits = limited(&servers);
    let [healthy, lost] = [vec![0, 2], vec![LOST]].map(|masters| {
        let keys = masters
            .iter()
            .map(|master| keys_of(&servers, *master, KEYS / 2));
        keys.flatten().collect::<Vec<_>>()
    });
    for key in healthy.iter().chain(&lost) {
        assert!(limits.take(key, 1).await.is_admitted());
    }
    let load = |keys: Vec<String>| {
        let one = |key| failures(Arc::clone(&limits), key);
        keys.into_iter().map(one).collect::<JoinSet<usize>>()
    };
    let (healthy, lost) = (load(healthy), load(lost));
    sleep(Duration::from_millis(300)).await;
    lose(&servers);
    let failed: usize = healthy.join_all().await.into_iter().sum();
    let of_lost: usize = lost.join_all().await.into_iter().sum();
    assert!(
        of_lost > 100,
        "{what}: {of_lost} decisions about its keys failed"
    );
    assert_eq!(failed, 0, "{what}: decisions about the keys of the others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_killed_server_takes_no_key_of_the_others_with_it() {
    let servers = Servers::builder().interleaved().start();
    loses(servers, "killed", |servers| servers.node(LOST).kill()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_hung_server_takes_no_key_of_the_others_with_it() {
    let servers = Servers::builder().interleaved().start();
    loses(servers, "hung", |servers| servers.node(LOST).stop()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_server_that_is_cut_off_takes_no_key_of_the_others_with_it() {
    let servers = Servers::builder().interleaved().proxied().start();
    loses(servers, "cut off", |servers| {
        servers.proxy(LOST).blackhole(true);
    })
    .await;
}

const PROCESSES: u64 = 200;

/// How often a server was asked for the slots.
fn asked(server: &Server) -> u64 {
    let info: String = server.query(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        let counted = line.strip_prefix("cmdstat_cluster|slots:calls=")?;
        counted.split(',').next()?.parse().ok()
    };
    info.lines().find_map(calls).unwrap_or(0)
}

/// How often each healthy master is asked for the slots in a stretch of time.
async fn asked_within(servers: &Servers, time: Duration) -> [u64; 2] {
    let count = || [0, 2].map(|master| asked(servers.node(master)));
    let before = count();
    sleep(time).await;
    let after = count();
    [after[0] - before[0], after[1] - before[1]]
}

/// Each of 200 processes has a request about the lost server five times a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_while_a_server_is_away_the_others_are_rarely_asked_for_slots() {
    let servers = Servers::start();
    let lost = keys_of(&servers, LOST, 1).remove(0);
    let decided = Arc::<AtomicU64>::default();
    let mut processes = JoinSet::new();
    for _ in 0..PROCESSES {
        let (limits, key, decided) = (limited(&servers), lost.clone(), Arc::clone(&decided));
        processes.spawn(async move {
            let mut turn = interval(Duration::from_millis(200));
            loop {
                turn.tick().await;
                let calls = limits.calls(&key, 1);
                if limits
                    .backend
                    .decide(&limits.prepared, &calls)
                    .await
                    .is_ok()
                {
                    decided.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    until("the processes to be at work", || async {
        decided.load(Ordering::Relaxed) > 5 * PROCESSES
    })
    .await;
    servers.node(LOST).kill();
    let second = Duration::from_secs(1);
    let first = asked_within(&servers, second).await;
    let next = asked_within(&servers, second).await;
    for (first, next) in first.into_iter().zip(next) {
        assert!(first <= 2 * PROCESSES, "{first} in the first second");
        assert!(next <= PROCESSES, "{next} in the second second");
    }
    assert!(first[0] + first[1] > 0, "each process asks one of them");
}
