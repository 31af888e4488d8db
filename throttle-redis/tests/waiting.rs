//! Waiting: for a store that is away, and in company.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{LimitTree, policy};
use throttle_core::{Backend, FixedWindow, Rate};
use throttle_redis::{RedisBackend, RedisBuilder, Single};
use throttle_test_servers::Server;

fn builder(server: &Server) -> RedisBuilder {
    RedisBackend::builder(Single::new(&server.url()).expect("a URL"))
}

fn window() -> throttle_core::Policy {
    policy("p", FixedWindow::new(Rate::new(1_000, Duration::from_secs(3650 * 86_400))))
}

/// Whoever sends requests only to healthy processes would never send one again.
#[tokio::test]
async fn a_store_that_is_back_is_healthy_though_nobody_asks() {
    let server = Server::start();
    let backend = builder(&server).breaker_threshold(1).deadline(Duration::from_millis(50)).build().unwrap();
    let limits = LimitTree::new(&backend, window());
    let decide = async || backend.decide(&limits.prepared, &limits.calls("key", 1)).await;
    while decide().await.is_err() {}
    assert!(backend.is_healthy());
    server.stop();
    assert!(decide().await.is_err());
    // The store has as long again to answer where the machine was late to look.
    let failed = Instant::now();
    while backend.is_healthy() {
        assert!(failed.elapsed() < Duration::from_secs(1), "it failed, and counts as healthy");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.cont();
    let back = Instant::now();
    while !backend.is_healthy() {
        assert!(back.elapsed() < Duration::from_secs(5), "nobody has asked, and so it stays ill");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(decide().await.is_ok());
}

/// Who came just now travels with one whose time is up, and has time left.
#[tokio::test]
async fn decisions_that_travel_together_have_deadlines_of_their_own() {
    let server = Server::start();
    let deadline = Duration::from_millis(400);
    let backend = builder(&server).breaker_threshold(1_000).deadline(deadline).build().unwrap();
    let limits = Arc::new(LimitTree::new(&backend, window()));
    while backend.decide(&limits.prepared, &limits.calls("first", 1)).await.is_err() {}
    let begin = || {
        let limits = Arc::clone(&limits);
        tokio::spawn(async move {
            let started = Instant::now();
            let decided = limits.backend.decide(&limits.prepared, &limits.calls("key", 1)).await;
            (started.elapsed(), decided.is_ok())
        })
    };
    server.stop();
    // As many calls are under way as may be; the next decision waits, and has 50 ms left when the first of them land.
    let early: Vec<_> = (0..6).map(|_| begin()).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let next = begin();
    tokio::time::sleep(Duration::from_millis(250)).await;
    let fresh: Vec<_> = (0..9).map(|_| begin()).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.cont();
    for task in early.into_iter().chain([next]) {
        let (took, decided) = task.await.unwrap();
        assert!(!decided && took < deadline + Duration::from_millis(30), "{took:?}");
    }
    for task in fresh {
        let (took, decided) = task.await.unwrap();
        assert!(decided, "given up after {took:?}, though {deadline:?} were allowed");
    }
}

/// A runtime that nobody drives any more, and that was not shut down either, keeps what it was given.
#[tokio::test]
async fn a_runtime_that_stands_still_holds_up_nobody_else() {
    let server = Server::start();
    let backend = builder(&server).breaker_threshold(1_000).deadline(Duration::from_millis(100)).build().unwrap();
    let limits = Arc::new(LimitTree::new(&backend, window()));
    while backend.decide(&limits.prepared, &limits.calls("first", 1)).await.is_err() {}
    server.stop();
    let still = std::thread::spawn({
        let limits = Arc::clone(&limits);
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let deciding = || limits.backend.decide(&limits.prepared, &limits.calls("still", 1));
                let mut waiting: Vec<_> = (0..12).map(|_| Box::pin(deciding())).collect();
                std::future::poll_fn(|cx| {
                    waiting.iter_mut().for_each(|one| drop(one.as_mut().poll(cx)));
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
        let decided = backend.decide(&limits.prepared, &limits.calls("key", 1)).await;
        assert!(decided.is_ok(), "{decided:?}");
    }
    still.shutdown_background();
}
