//! One server of a cluster is lost. The slots of its servers lie between one another, and sixty
//! processes ask all three of them.
//!
//! A decision that comes late counts as one that failed, so these tests run one at a time.

#[path = "servers/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{LimitTree, policy, until};
use throttle_core::{Backend, BackendError, DecidedBy, FixedWindow, Rate};
use throttle_redis::{Cluster, RedisBackend};
use throttle_test_servers::{Cluster as Servers, Server};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};

/// The server that is lost, and those that are not.
const LOST: usize = 1;
const HEALTHY: [usize; 2] = [0, 2];

/// Each is a backend with links of its own, as a process has it.
const PROCESSES: usize = 60;

/// Keys of a server that the processes share.
const KEYS: usize = 50;

const SECOND: Duration = Duration::from_secs(1);

/// A process takes a turn in each second.
const TURNS: usize = 6;

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

fn process(servers: &Servers) -> Arc<LimitTree> {
    // It does not end during a test.
    let window = FixedWindow::new(Rate::new(1_000_000, 3_650 * 86_400 * SECOND));
    let urls = servers.urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).expect("URLs");
    let backend = RedisBackend::builder(cluster)
        .per_key_slot()
        .readable_keys()
        .deadline(SECOND)
        .build()
        .expect("valid options");
    Arc::new(LimitTree::new(&backend, policy("one", window)))
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

/// Decides about a key.
async fn decide(process: &LimitTree, key: &str) -> Result<(), BackendError> {
    let calls = process.calls(key, 1);
    let decision = process.backend.decide(&process.prepared, &calls).await?;
    assert_eq!(decision.decided_by(), DecidedBy::Store);
    Ok(())
}

/// Decides about a key in each turn. Returns the errors.
async fn errors(process: Arc<LimitTree>, number: usize, key: String) -> Vec<BackendError> {
    // The processes take their turns one after the other.
    sleep(SECOND * number as u32 / PROCESSES as u32).await;
    let (mut turn, mut errors) = (interval(SECOND), Vec::new());
    for _ in 0..TURNS {
        turn.tick().await;
        errors.extend(decide(&process, &key).await.err());
    }
    errors
}

/// How often a server was asked for the slots.
fn asked(server: &Server) -> usize {
    let info: String = server.query(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        // Redis 6.2 does not count subcommands, and these processes send no other.
        let line = line.strip_prefix("cmdstat_cluster")?;
        let counted = line.strip_prefix("|slots").unwrap_or(line);
        let counted = counted.strip_prefix(":calls=")?;
        counted.split(',').next()?.parse().ok()
    };
    info.lines().find_map(calls).unwrap_or(0)
}

/// How often each healthy server was asked.
fn asked_of_healthy(servers: &Servers) -> [usize; 2] {
    HEALTHY.map(|master| asked(servers.node(master)))
}

/// Loses a server while every process decides about keys of all three.
async fn loses(servers: &Servers, lose: impl FnOnce()) {
    let keys = [0, 1, 2].map(|master| keys_of(servers, master, KEYS));
    let processes: Vec<_> = (0..PROCESSES).map(|_| process(servers)).collect();
    let (mut of_healthy, mut of_lost) = (JoinSet::new(), JoinSet::new());
    for (number, process) in processes.iter().enumerate() {
        for (master, keys) in keys.iter().enumerate() {
            let key = &keys[number % KEYS];
            // Three connections of each process are opened.
            until("a connection", || async {
                decide(process, key).await.is_ok()
            })
            .await;
            let errors = errors(Arc::clone(process), number, key.clone());
            if master == LOST {
                of_lost.spawn(errors);
            } else {
                of_healthy.spawn(errors);
            }
        }
    }
    sleep(SECOND).await;
    let before = asked_of_healthy(servers);
    lose();
    until("the first question", || async {
        asked_of_healthy(servers) != before
    })
    .await;
    let began = Instant::now();
    sleep(2 * SECOND).await;
    let after = asked_of_healthy(servers);
    // Each process may ask a server once, and once more in each second.
    let most = PROCESSES * (1 + began.elapsed().as_secs() as usize);
    let errors = of_healthy.join_all().await.into_iter().flatten().count();
    // A stall of the machine may make some decisions late. A process that waited for the lost
    // server would fail in most turns.
    let decisions = HEALTHY.len() * PROCESSES * TURNS;
    assert!(
        errors <= decisions / 20,
        "{errors} of {decisions} decisions of the healthy servers failed"
    );
    let errors = of_lost.join_all().await.into_iter().flatten().count();
    assert!(errors >= PROCESSES, "{errors} decisions of the lost server");
    let questions = [0, 1].map(|server| after[server] - before[server]);
    assert!(
        questions.iter().all(|asked| *asked <= most),
        "{questions:?} questions, at most {most} of each server"
    );
    assert!(
        questions.iter().sum::<usize>() > PROCESSES / 2,
        "{questions:?} questions: the processes look for the slots"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_killed_server_takes_no_key_of_the_others_with_it() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let servers = Servers::builder().interleaved().start();
    loses(&servers, || servers.node(LOST).kill()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_hung_server_takes_no_key_of_the_others_with_it() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let servers = Servers::builder().interleaved().start();
    loses(&servers, || servers.node(LOST).stop()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_server_that_is_cut_off_takes_no_key_of_the_others_with_it() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let servers = Servers::builder().interleaved().proxied().start();
    loses(&servers, || servers.proxy(LOST).blackhole(true)).await;
}
