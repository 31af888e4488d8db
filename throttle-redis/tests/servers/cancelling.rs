//! Decisions that are dropped before they end, and runtimes that end first.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::{LimitTree, policy};
use throttle_core::{Backend, FixedWindow, PolicyTree, Rate};
use throttle_redis::{
    Cluster, Connection, ConnectionFuture, Connector, Pool, RedisBackend, RedisBuilder, Single,
};
use throttle_test_servers::{Cluster as Servers, Proxy, Server};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

/// A window that does not end during a test.
fn window() -> FixedWindow {
    FixedWindow::new(Rate::new(LIMIT, Duration::from_secs(3650 * 86_400)))
}

const LIMIT: u64 = 1000;

/// More often than any of these futures is ever polled.
const MOST_POLLS: usize = 12;

/// Polls a future `times` times, each time after it was woken, and drops it. Returns whether it was
/// ready before.
async fn poll_times<F: Future>(future: F, times: usize) -> bool {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        if polls == times {
            return Poll::Ready(false);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls == times => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drops a decision at every point. It is charged once or not at all, the next decision gets its
/// own answer, and the dropped one leaves nothing behind that would block others.
async fn drop_at_every_point(limits: &LimitTree, apart: bool, forget: impl Fn()) {
    let mut finished = 0;
    // Keys of their own place the policies in different slots.
    let calls = |key: &str, cost| {
        let mut calls = limits.calls(key, cost);
        if let (true, Some(last)) = (apart, calls.last_mut()) {
            last.clone_from(&limits.calls(&format!("{key}-apart"), cost)[0]);
        }
        calls
    };
    let take = async |key: &str, cost| {
        let decision = limits
            .backend
            .decide(&limits.prepared, &calls(key, cost))
            .await
            .expect("a decision");
        decision
            .statuses()
            .iter()
            .map(|status| status.remaining())
            .collect::<Vec<u64>>()
    };
    for times in 0..=MOST_POLLS {
        // Without the loaded scripts, the decision takes more steps.
        forget();
        let (key, other) = (format!("dropped-{times}"), format!("other-{times}"));
        let dropped = limits.backend.decide(&limits.prepared, &calls(&key, 7));
        let ready = poll_times(dropped, times).await;
        finished += usize::from(ready);
        // The remaining units identify the answer: one meant for the previous decision would
        // say 993.
        let answers = take(&other, 3).await;
        assert!(
            answers.iter().all(|left| *left == LIMIT - 3),
            "{answers:?} after {times} polls"
        );
        // Dropped decisions may still be under way.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let left = take(&key, 0).await;
        let charged = left[0] == LIMIT - 7;
        assert!(
            left[0] == LIMIT || charged,
            "{left:?} left after {times} polls"
        );
        assert!(
            left.iter().all(|some| *some == left[0]),
            "half was charged: {left:?} left after {times} polls"
        );
        assert!(charged || !ready, "it was reported as charged");
    }
    assert!(finished > 0, "no future was dropped just before its end");
    // The places of the dropped decisions are free again: as many decisions as allowed run at once.
    for _ in 0..3 {
        assert_eq!(take("last", 0).await[0], LIMIT);
    }
}

fn one() -> PolicyTree {
    policy("one", window()).into()
}

fn two() -> PolicyTree {
    PolicyTree::All(vec![
        policy("one", window()).into(),
        policy("two", window()).into(),
    ])
}

/// Room for one decision only, so that a place that is not given back shows.
fn narrow(builder: RedisBuilder) -> RedisBuilder {
    builder.deadline(Duration::from_secs(5)).queue(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_dropped_on_one_server() {
    let server = Server::start();
    for (prefix, max_batch, rule) in [("a", 64, one()), ("b", 1, one()), ("c", 64, two())] {
        let builder = RedisBackend::builder(Single::new(&server.url()).unwrap())
            .max_batch(max_batch)
            .prefix(prefix);
        let backend = narrow(builder).build().unwrap();
        drop_at_every_point(&LimitTree::new(&backend, rule), false, || {
            drop(server.command(&["SCRIPT", "FLUSH"]));
        })
        .await;
        assert_eq!(
            (backend.stats().unknown, backend.stats().connections),
            (0, 1),
            "{:?}",
            backend.stats()
        );
    }
    assert_eq!(server.keys_without_ttl(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_dropped_on_a_pool() {
    let server = Server::start();
    let backend = narrow(RedisBackend::builder(Pool::new(&server.url(), 1).unwrap()))
        .build()
        .unwrap();
    drop_at_every_point(&LimitTree::new(&backend, one()), false, || {
        drop(server.command(&["SCRIPT", "FLUSH"]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_dropped_on_a_cluster() {
    let servers = Servers::shared();
    let urls = servers.urls();
    let builder = |prefix: &str| {
        narrow(RedisBackend::builder(
            Cluster::new(urls.iter().map(String::as_str)).unwrap(),
        ))
        .prefix(prefix)
    };
    let forget = || {
        servers
            .masters()
            .into_iter()
            .for_each(|node| drop(servers.node(node).command(&["SCRIPT", "FLUSH"])));
    };
    drop_at_every_point(
        &LimitTree::new(
            &builder("together").single_slot("x").build().unwrap(),
            two(),
        ),
        false,
        &forget,
    )
    .await;
    drop_at_every_point(
        &LimitTree::new(&builder("spread").per_key_slot().build().unwrap(), two()),
        false,
        &forget,
    )
    .await;
    // Each of its two parts takes a place, and a dropped decision runs to its end.
    drop_at_every_point(
        &LimitTree::new(
            &builder("apart").queue(8).per_key_slot().build().unwrap(),
            two(),
        ),
        true,
        &forget,
    )
    .await;
}

/// A decision that waits for a call is not sent once its caller has left.
#[tokio::test]
async fn a_queued_decision_that_is_dropped_is_not_charged() {
    let server = Server::start();
    let builder = RedisBackend::builder(Single::new(&server.url()).unwrap());
    let backend = builder
        .deadline(Duration::from_secs(5))
        .breaker_threshold(1_000)
        .build()
        .unwrap();
    let limits = Arc::new(LimitTree::new(&backend, one()));
    until_decided(&limits, Duration::from_secs(5)).await;
    server.stop();
    // As many calls as allowed are under way, so the next decisions wait.
    let under_way: Vec<_> = (0..6)
        .map(|_| {
            let limits = Arc::clone(&limits);
            tokio::spawn(async move { limits.take("under way", 1).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let kept = backend.decide(&limits.prepared, &limits.calls("kept", 7));
    let dropped = backend.decide(&limits.prepared, &limits.calls("dropped", 7));
    let mut kept = pin!(kept);
    let begun = poll_fn(|cx| Poll::Ready(kept.as_mut().poll(cx).is_pending())).await;
    assert!(begun, "there was room for it");
    assert!(!poll_times(dropped, 1).await);
    server.cont();
    for task in under_way {
        task.await.unwrap();
    }
    assert_eq!(kept.await.expect("a decision").remaining(), LIMIT - 7);
    assert_eq!(limits.left("dropped").await, LIMIT);
    assert_eq!(limits.left("kept").await, LIMIT - 7);
}

/// Returns its connection when the test allows it.
struct Gated {
    single: Single,
    opened: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

impl Connector for Gated {
    fn connect(&self, timeout: Duration) -> ConnectionFuture<Box<dyn Connection>> {
        let (connecting, opened, gate) = (
            self.single.connect(timeout),
            Arc::clone(&self.opened),
            Arc::clone(&self.gate),
        );
        Box::pin(async move {
            let connection = connecting.await?;
            opened.add_permits(1);
            gate.acquire().await.expect("never closed").forget();
            Ok(connection)
        })
    }
}

/// The call that carries the decision has left the queue already, and waits for the connection.
#[tokio::test]
async fn decision_dropped_before_there_is_a_connection_is_not_charged() {
    let server = Server::start();
    let (opened, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let single = Single::new(&server.url()).unwrap();
    let gated = Gated {
        single,
        opened: Arc::clone(&opened),
        gate: Arc::clone(&gate),
    };
    let backend = RedisBackend::builder(gated)
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap();
    let limits = LimitTree::new(&backend, one());
    opened.acquire().await.unwrap().forget();
    // From here on connecting takes no time on the paused clock, however busy the machine is.
    tokio::time::pause();
    let begin = |key: &str| {
        let mut decision = Box::pin(backend.decide(&limits.prepared, &limits.calls(key, 7)));
        assert!(
            decision
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending(),
            "not connected yet"
        );
        decision
    };
    let mut alone: Vec<_> = (0..6).map(|_| begin("alone")).collect();
    let (kept, dropped) = (begin("kept"), begin("dropped"));
    // Its place is free, so a call leaves with the two queued decisions.
    drop(alone.pop());
    let turns = async || {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    };
    turns().await;
    drop(dropped);
    gate.add_permits(1);
    turns().await;
    tokio::time::resume();
    assert_eq!(kept.await.expect("a decision").remaining(), LIMIT - 7);
    assert_eq!(limits.left("dropped").await, LIMIT);
}

/// After a trial is dropped, another trial can start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_trial_lets_the_next_trial_start() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let builder = RedisBackend::builder(Single::new(&proxy.url()).unwrap());
    let backend = builder.breaker_threshold(1).max_batch(1).build().unwrap();
    let limits = LimitTree::new(&backend, one());
    until_decided(&limits, Duration::from_secs(2)).await;
    proxy.blackhole(true);
    assert!(
        backend
            .decide(&limits.prepared, &limits.calls("key", 1))
            .await
            .is_err()
    );
    proxy.blackhole(false);
    // The breaker is half open: each of these is the trial, or is refused.
    for times in [1, 1, 2, 2].repeat(20) {
        poll_times(
            backend.decide(&limits.prepared, &limits.calls("key", 1)),
            times,
        )
        .await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    until_decided(&limits, Duration::from_millis(500)).await;
}

async fn until_decided(limits: &LimitTree, limit: Duration) {
    let start = Instant::now();
    while let Err(error) = limits
        .backend
        .decide(&limits.prepared, &limits.calls("probe", 0))
        .await
    {
        assert!(start.elapsed() < limit, "still {error} after {limit:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The connection belongs to the runtime that opened it. Another runtime opens a connection of its
/// own.
#[test]
fn a_runtime_that_ends_takes_its_connection_along() {
    let server = Server::start();
    let (first, second) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let limits = first.block_on(async {
        let backend = RedisBackend::new(&server.url()).unwrap();
        let limits = LimitTree::new(&backend, one());
        until_decided(&limits, Duration::from_secs(2)).await;
        limits
    });
    drop(first);
    second.block_on(until_decided(&limits, Duration::from_millis(500)));
    assert_eq!(limits.backend.stats().connections, 2);
}

/// The task that waits for a sign of life also belongs to a runtime.
#[test]
fn a_runtime_that_ends_while_the_breaker_is_open_leaves_it_to_the_next() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let (first, second) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let limits = first.block_on(async {
        let backend = RedisBackend::builder(Single::new(&proxy.url()).unwrap())
            .breaker_threshold(1)
            .build()
            .unwrap();
        let limits = LimitTree::new(&backend, one());
        until_decided(&limits, Duration::from_secs(2)).await;
        proxy.blackhole(true);
        assert!(
            backend
                .decide(&limits.prepared, &limits.calls("key", 1))
                .await
                .is_err()
        );
        limits
    });
    drop(first);
    proxy.blackhole(false);
    second.block_on(until_decided(&limits, Duration::from_millis(500)));
}

/// Decisions that wait for a call of another runtime, which ends or stands still, are still
/// answered.
#[test]
fn a_runtime_that_stands_still_delays_no_decision() {
    let server = Server::start();
    let stuck = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let limits = stuck.block_on(async {
        let backend = RedisBackend::new(&server.url()).unwrap();
        let limits = LimitTree::new(&backend, one());
        until_decided(&limits, Duration::from_secs(2)).await;
        limits
    });
    // The test no longer drives this runtime: its connection is open, but nothing moves on it.
    let running = Runtime::new().unwrap();
    running.block_on(async {
        let start = Instant::now();
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (backend, prepared, calls) = (
                limits.backend.clone(),
                limits.prepared.clone(),
                limits.calls("key", 1),
            );
            all.spawn(async move { backend.decide(&prepared, &calls).await.is_ok() });
        }
        while all.join_next().await.is_some() {}
        assert!(
            start.elapsed() < Duration::from_millis(200),
            "50 decisions took {:?}",
            start.elapsed()
        );
    });
    drop(stuck);
    running.block_on(until_decided(&limits, Duration::from_secs(1)));
}
