//! Decisions that wait: for a store that is down, and together with other decisions.

#[path = "servers/common/mod.rs"]
mod common;

use std::fmt::{Debug, Write};
use std::future::Future;
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use common::{LimitTree, policy};
use throttle_core::{Backend, BackendErrorKind, FixedWindow, Gcra, Rate};
use throttle_redis::{RedisBackend, RedisBuilder, Single};
use throttle_test_servers::Server;
use tracing::field::Field;
use tracing::{Event, Metadata, Subscriber, span};

fn builder(server: &Server) -> RedisBuilder {
    RedisBackend::builder(Single::new(&server.url()).expect("a URL"))
}

fn window() -> throttle_core::Policy {
    policy(
        "p",
        FixedWindow::new(Rate::new(1_000, Duration::from_secs(3650 * 86_400))),
    )
}

/// A process that stayed unhealthy would receive no request from a load balancer that sends
/// requests only to healthy ones.
#[tokio::test]
async fn a_store_that_is_back_is_healthy_without_a_decision() {
    let server = Server::start();
    let backend = builder(&server)
        .breaker_threshold(1)
        .deadline(Duration::from_millis(50))
        .build()
        .unwrap();
    let limits = LimitTree::new(&backend, window());
    let decide = async || {
        backend
            .decide(&limits.prepared, &limits.calls("key", 1))
            .await
    };
    while decide().await.is_err() {}
    assert!(backend.is_healthy());
    server.stop();
    assert!(decide().await.is_err());
    // If the machine was late to look, the store gets the same time again to answer.
    let failed = Instant::now();
    while backend.is_healthy() {
        assert!(
            failed.elapsed() < Duration::from_secs(1),
            "it failed, and counts as healthy"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.cont();
    let back = Instant::now();
    while !backend.is_healthy() {
        assert!(
            back.elapsed() < Duration::from_secs(5),
            "the backend stays unhealthy until a decision asks the store"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(decide().await.is_ok());
}

/// A decision that has time left shares a call with a decision whose deadline has passed.
#[tokio::test]
async fn decisions_that_travel_together_have_deadlines_of_their_own() {
    let server = Server::start();
    let deadline = Duration::from_millis(400);
    let backend = builder(&server)
        .breaker_threshold(1_000)
        .deadline(deadline)
        .build()
        .unwrap();
    let limits = Arc::new(LimitTree::new(&backend, window()));
    while backend
        .decide(&limits.prepared, &limits.calls("first", 1))
        .await
        .is_err()
    {}
    let begin = || {
        let limits = Arc::clone(&limits);
        tokio::spawn(async move {
            let started = Instant::now();
            let decided = limits
                .backend
                .decide(&limits.prepared, &limits.calls("key", 1))
                .await;
            (
                started.elapsed(),
                decided.map_err(|error| error.is_uncharged()),
            )
        })
    };
    server.stop();
    // As many calls as allowed are under way. The next decision waits, and has 50 ms left when the
    // first calls end.
    let early: Vec<_> = (0..6).map(|_| begin()).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let next = begin();
    tokio::time::sleep(Duration::from_millis(250)).await;
    let fresh: Vec<_> = (0..9).map(|_| begin()).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.cont();
    let mut unknown = 0;
    for task in early.into_iter().chain([next]) {
        let (took, decided) = task.await.unwrap();
        assert!(
            decided.is_err() && took < deadline + Duration::from_millis(30),
            "{took:?}"
        );
        unknown += u64::from(decided.is_err_and(|is_uncharged| !is_uncharged));
    }
    for task in fresh {
        let (took, decided) = task.await.unwrap();
        assert!(
            decided.is_ok(),
            "given up after {took:?}, though {deadline:?} were allowed"
        );
    }
    let used = 1_000 - limits.left("key").await;
    assert!(
        used <= 9 + unknown,
        "{used} units are used, and {unknown} errors say that they may be"
    );
}

/// A runtime that is neither driven nor shut down keeps its tasks.
#[tokio::test]
async fn a_runtime_that_stands_still_delays_no_other() {
    let server = Server::start();
    let backend = builder(&server)
        .breaker_threshold(1_000)
        .deadline(Duration::from_millis(100))
        .build()
        .unwrap();
    let limits = Arc::new(LimitTree::new(&backend, window()));
    while backend
        .decide(&limits.prepared, &limits.calls("first", 1))
        .await
        .is_err()
    {}
    server.stop();
    let still = thread::spawn({
        let limits = Arc::clone(&limits);
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let deciding = || {
                    limits
                        .backend
                        .decide(&limits.prepared, &limits.calls("still", 1))
                };
                let mut waiting: Vec<_> = (0..12).map(|_| Box::pin(deciding())).collect();
                std::future::poll_fn(|cx| {
                    waiting
                        .iter_mut()
                        .for_each(|one| drop(one.as_mut().poll(cx)));
                    std::task::Poll::Ready(())
                })
                .await;
            });
            runtime
        }
    });
    let still = still.join().unwrap();
    server.cont();
    tokio::time::sleep(Duration::from_millis(150)).await;
    for _ in 0..5 {
        let decided = backend
            .decide(&limits.prepared, &limits.calls("key", 1))
            .await;
        assert!(decided.is_ok(), "{decided:?}");
    }
    still.shutdown_background();
}

/// A decision as of a past instant is made as it would have been then, by the server's clock:
/// requests that became due in turn are admitted in turn. An instant long ago, or in the future,
/// buys nothing.
#[tokio::test]
async fn law_07_as_of_another_instant_nothing_comes_early() {
    const MS: Duration = Duration::from_millis(1);
    let server = Server::start();
    let backend = builder(&server)
        .deadline(Duration::from_secs(10))
        .build()
        .unwrap();
    let limits = LimitTree::new(
        &backend,
        policy("p", Gcra::new(Rate::per_second(200)).burst(1)),
    );
    // A machine that stalls for more than 60 ms invalidates a round.
    let mut in_turn = false;
    for round in 0..20 {
        let calls = limits.calls(&round.to_string(), 1);
        let as_of = async |at| {
            backend
                .decide_as_of(&limits.prepared, &calls, at)
                .await
                .unwrap()
        };
        assert!(limits.take(&round.to_string(), 1).await.is_admitted());
        let first = backend
            .now(&limits.prepared, &calls)
            .expect("a reply contained the time");
        tokio::time::sleep(40 * MS).await;
        let admitted = async |turn: u32| as_of(first + 5 * turn * MS).await.is_admitted();
        let all = [1, 2, 3, 4, 5, 6, 7, 8];
        let mut count = 0;
        for turn in all {
            // The unit of each turn is admitted, and no other.
            count += usize::from(admitted(turn).await) + usize::from(admitted(turn).await);
        }
        in_turn |= count == all.len();
        let now = backend
            .now(&limits.prepared, &calls)
            .expect("a reply contained the time");
        let elapsed = (now + 20 * MS).micros_since(first);
        assert!(
            count as i64 <= elapsed / 5_000 + 1,
            "{count} in {elapsed} µs"
        );
        let long_ago = as_of(first + 5 * MS).await.retry_after().unwrap();
        assert!(
            long_ago <= 106 * MS,
            "{long_ago:?}: an instant long ago counts as 100 ms ago"
        );
        let to_come = as_of(now + Duration::from_secs(3_600))
            .await
            .retry_after()
            .unwrap();
        assert!(
            to_come <= 6 * MS,
            "{to_come:?}: an instant to come counts as now"
        );
        if in_turn {
            return;
        }
    }
    panic!("what became due in turn was never admitted in turn");
}

/// What backends log, with the thread that logs it.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(ThreadId, String)>>>);

impl Log {
    /// For all threads of the program: whether an event is logged at all is decided once for all of
    /// them.
    fn of_this_thread() -> Self {
        static LOG: LazyLock<Log> = LazyLock::new(|| {
            let log = Log::default();
            tracing::subscriber::set_global_default(log.clone()).unwrap();
            log
        });
        LOG.clone()
    }

    fn lines(&self, level: &str, text: &str) -> usize {
        let lines = self.0.lock().unwrap();
        lines
            .iter()
            .filter(|(thread, _)| *thread == thread::current().id())
            .filter(|(_, line)| line.starts_with(level) && line.contains(text))
            .count()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("throttle_redis")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = event.metadata().level().to_string();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, " {field}={value:?}").unwrap();
        });
        self.0.lock().unwrap().push((thread::current().id(), line));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn store_out_of_reach_fails_at_once_and_is_logged_once() {
    let log = Log::of_this_thread();
    let server = Server::start();
    server.kill();
    let (started, deadline) = (Instant::now(), Duration::from_secs(10));
    let backend = builder(&server).deadline(deadline).build().unwrap();
    let limits = LimitTree::new(&backend, window());
    let decide = async || {
        backend
            .decide(&limits.prepared, &limits.calls("key", 1))
            .await
    };
    for failures in 1..=5 {
        assert_eq!(
            backend.stats().breaker_openings,
            0,
            "before failure {failures}"
        );
        let error = decide().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.is_uncharged()),
            (BackendErrorKind::Unavailable, true)
        );
        assert_eq!(
            (backend.stats().failures, backend.stats().unknown),
            (failures, 0)
        );
    }
    assert_eq!(
        backend.stats().breaker_openings,
        1,
        "the default is five in a row"
    );
    assert_eq!(
        decide().await.unwrap_err().kind(),
        BackendErrorKind::Suspended
    );
    assert!(
        started.elapsed() < deadline,
        "none of them has waited for its deadline"
    );
    while backend.stats().failed_connections < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(log.lines("INFO", ""), 0);
    let until_back = async || {
        server.restart();
        let back = Instant::now();
        while decide().await.is_err() {
            assert!(
                back.elapsed() < Duration::from_secs(10),
                "it is back, and not asked"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until_back().await;
    let reached = format!(" fault=127.0.0.1:{}: ", server.port());
    let why = format!(" why=there is no connection: 127.0.0.1:{}: ", server.port());
    for (level, text) in [
        ("WARN", "the rate-limit store cannot be reached"),
        ("WARN", &reached),
        ("WARN", "the rate-limit store fails"),
        ("WARN", &why),
        ("INFO", "the rate-limit store answers again"),
    ] {
        assert_eq!(log.lines(level, text), 1, "{text}");
    }
    // The next outage is logged like the first one.
    server.kill();
    let failed = backend.stats().failed_connections;
    for _ in 0..5 {
        assert!(decide().await.is_err());
    }
    assert_eq!(backend.stats().breaker_openings, 2);
    while backend.stats().failed_connections < failed + 3 {
        assert!(decide().await.is_err());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until_back().await;
    for (level, text) in [
        ("WARN", &*reached),
        ("WARN", "the rate-limit store fails"),
        ("INFO", "the rate-limit store answers again"),
    ] {
        assert_eq!(log.lines(level, text), 2, "{text}");
    }
}

/// The user may write the key of a sign of life, which is longer by a character, and no other key.
#[tokio::test]
async fn outage_is_logged_once_also_if_the_server_gives_signs_of_life() {
    let log = Log::of_this_thread();
    let server = Server::builder()
        .user("limiter", "on >secret ~* +@all")
        .start();
    let single = Single::new(&server.url_of("limiter", "secret")).unwrap();
    let backend = RedisBackend::builder(single)
        .deadline(Duration::from_secs(1))
        .build()
        .unwrap();
    let limits = LimitTree::new(&backend, window());
    assert!(limits.take("key", 1).await.is_admitted());
    let others = "?".repeat(server.keys("*")[0].len() + 1);
    let rights = format!("~{others}");
    server.command(&["ACL", "SETUSER", "limiter", "resetkeys", &rights]);
    while backend.stats().breaker_openings < 4 {
        let calls = limits.calls("key", 1);
        assert!(backend.decide(&limits.prepared, &calls).await.is_err());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(log.lines("WARN", "the rate-limit store fails"), 1);
    assert_eq!(log.lines("INFO", "answers again"), 0);
    server.command(&["ACL", "SETUSER", "limiter", "~*"]);
    while log.lines("INFO", "answers again") == 0 {
        let _ = backend
            .decide(&limits.prepared, &limits.calls("key", 1))
            .await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
