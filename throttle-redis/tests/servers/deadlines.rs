//! Law 12: a decision returns within its deadline, whatever the store does.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{LimitTree, policy};
use throttle_core::backend::Call;
use throttle_core::{Backend, BackendError, BackendErrorKind, FixedWindow, Key, PolicyTree, Rate};
use throttle_redis::{Cluster, Pool, RedisBackend, RedisBuilder, Single};
use throttle_test_servers::{Cluster as Servers, Server};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const DEADLINE: Duration = Duration::from_millis(250);

/// The time by which a decision may be later than a timer of the same task: its own 5 ms, and what
/// a loaded machine adds.
const GRACE: Duration = Duration::from_millis(5 + 245);

fn window(name: &str) -> PolicyTree {
    policy(
        name,
        FixedWindow::new(Rate::new(1_000_000, Duration::from_secs(3650 * 86_400))),
    )
    .into()
}

fn limits(builder: RedisBuilder) -> Arc<LimitTree> {
    Arc::new(LimitTree::new(
        &builder.deadline(DEADLINE).build().unwrap(),
        window("p"),
    ))
}

/// Starts `at_once` decisions, several times over. Each returns within its time, and none is
/// decided.
async fn check_that_all_return(limits: &Arc<LimitTree>, at_once: usize) -> Vec<BackendError> {
    let mut errors = Vec::new();
    for _ in 0..3 {
        let mut deciding = JoinSet::new();
        for place in 0..at_once {
            let limits = Arc::clone(limits);
            deciding.spawn(async move {
                // Keys of their own, which a cluster keeps in different slots.
                let calls = limits.prepared_calls(place);
                let started = Instant::now();
                let timer = async {
                    sleep(DEADLINE).await;
                    started.elapsed()
                };
                let deciding = async {
                    let decided = limits.backend.decide(&limits.prepared, &calls).await;
                    (started.elapsed(), decided)
                };
                tokio::join!(deciding, timer)
            });
        }
        while let Some(decided) = deciding.join_next().await {
            let ((took, decided), timer) = decided.unwrap();
            assert!(
                took <= timer + GRACE,
                "{decided:?} after {took:?}, and a timer of {DEADLINE:?} after {timer:?}"
            );
            errors.push(decided.expect_err("the store does not answer"));
        }
    }
    errors
}

trait PreparedCalls {
    fn prepared_calls(&self, place: usize) -> Vec<Call>;
}

impl PreparedCalls for LimitTree {
    fn prepared_calls(&self, place: usize) -> Vec<Call> {
        let each = 0..RedisBackend::set(&self.prepared).policies().len();
        each.map(|policy| Call::from(Key::from(format!("key-{place}-{policy}"))))
            .collect()
    }
}

async fn until_decided(limits: &LimitTree) {
    let start = Instant::now();
    while limits
        .backend
        .decide(&limits.prepared, &limits.prepared_calls(0))
        .await
        .is_err()
    {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the store does not decide"
        );
        sleep(Duration::from_millis(20)).await;
    }
}

/// Many more decisions than the backend has under way at once.
const AT_ONCE: usize = 300;

fn unopened(builder: RedisBuilder) -> RedisBuilder {
    builder.breaker_threshold(u32::MAX)
}

/// Connections are open, but the server does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_12_a_store_that_stops_answering() {
    let server = Server::start();
    let single = || RedisBackend::builder(Single::new(&server.url()).unwrap());
    for builder in [
        single(),
        single().max_batch(1),
        unopened(single()),
        unopened(single().max_batch(1)),
        unopened(RedisBackend::builder(Pool::new(&server.url(), 2).unwrap())),
    ] {
        let limits = limits(builder);
        until_decided(&limits).await;
        server.stop();
        check_that_all_return(&limits, AT_ONCE).await;
        server.cont();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_12_a_cluster_that_stops_answering() {
    let servers = Servers::start();
    let urls = servers.urls();
    let builder = || {
        unopened(RedisBackend::builder(
            Cluster::new(urls.iter().map(String::as_str)).unwrap(),
        ))
    };
    let two = PolicyTree::All(vec![window("one"), window("two")]);
    for (builder, rule) in [
        (builder().single_slot("x"), window("p")),
        (builder().prefix("spread").per_key_slot(), window("p")),
        (builder().prefix("apart").per_key_slot(), two),
    ] {
        let limits = Arc::new(LimitTree::new(
            &builder.deadline(DEADLINE).build().unwrap(),
            rule,
        ));
        until_decided(&limits).await;
        servers.nodes().for_each(Server::stop);
        check_that_all_return(&limits, AT_ONCE).await;
        servers.nodes().for_each(Server::cont);
        servers.wait_until_well();
    }
}

/// The connection never opens: connecting hangs.
async fn check_unconnected(port: u16) {
    let url = format!("redis://127.0.0.1:{port}");
    let single = || RedisBackend::builder(Single::new(&url).unwrap());
    for builder in [
        single(),
        single().max_batch(1),
        unopened(single()),
        unopened(single().max_batch(1)),
        RedisBackend::builder(Pool::new(&url, 2).unwrap()),
        RedisBackend::builder(Cluster::new([url.as_str()]).unwrap()).single_slot("x"),
    ] {
        let errors = check_that_all_return(&limits(builder), AT_ONCE).await;
        assert!(
            errors.iter().all(BackendError::is_uncharged),
            "nothing was sent"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_12_a_store_that_accepts_and_never_answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the process.
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    check_unconnected(port).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_12_a_store_that_never_accepts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    check_unconnected(listener.local_addr().unwrap().port()).await;
}

/// Although its deadline is hours away, a decision that finds the queue full does not wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_12_a_full_queue_returns_at_once() {
    let server = Server::start();
    for (max_batch, under_way) in [(64, 6), (1, 0)] {
        let single = RedisBackend::builder(Single::new(&server.url()).unwrap());
        let backend = unopened(single)
            .max_batch(max_batch)
            .queue(10)
            .deadline(Duration::from_secs(10))
            .build()
            .unwrap();
        let limits = Arc::new(LimitTree::new(&backend, window("p")));
        until_decided(&limits).await;
        server.stop();
        let mut waiting = JoinSet::new();
        for place in 0..under_way + 10 {
            let limits = Arc::clone(&limits);
            waiting.spawn(async move { limits.take(&format!("waits {place}"), 1).await });
        }
        sleep(Duration::from_millis(100)).await;
        let started = Instant::now();
        for _ in 0..100 {
            let error = limits
                .backend
                .decide(&limits.prepared, &limits.calls("full", 1))
                .await
                .unwrap_err();
            assert_eq!(
                (error.kind(), error.is_uncharged()),
                (BackendErrorKind::Saturated, true)
            );
        }
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "{:?}",
            started.elapsed()
        );
        server.cont();
        assert_eq!(
            waiting.join_all().await.len(),
            under_way + 10,
            "those that were in the queue are decided"
        );
        assert_eq!(limits.left("full").await, 1_000_000);
    }
}
