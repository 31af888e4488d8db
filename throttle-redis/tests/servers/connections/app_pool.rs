//! The `bb8_redis` pool of an application.

use std::time::{Duration, Instant};

use bb8_redis::bb8::{self, PooledConnection};
use bb8_redis::{RedisConnectionManager, redis};
use throttle_core::Backend;
use throttle_redis::{Connector, FaultKind, Pool, RedisBackend};
use throttle_test_servers::{Proxy, Server};

use super::{PATIENT, day, decides, patient};
use crate::common::LimitTree;

pub(crate) async fn pool_of(url: &str, size: u32) -> bb8::Pool<RedisConnectionManager> {
    let manager = RedisConnectionManager::new(url).unwrap();
    let pool = bb8::Pool::builder().max_size(size);
    pool.build(manager).await.unwrap()
}

#[tokio::test]
async fn decisions_are_made_over_the_pool_and_within_its_bound() {
    let server = Server::start();
    let pool = pool_of(&server.url(), 3).await;
    let backend = patient(Pool::existing(pool.clone())).max_batch(1);
    let backend = backend.build().unwrap();
    decides(&backend).await;
    let limits = std::sync::Arc::new(LimitTree::new(&backend, day(1_000)));
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let limits = std::sync::Arc::clone(&limits);
        asking.spawn(async move { limits.take("bob", 1).await.is_admitted() });
    }
    assert!(asking.join_all().await.into_iter().all(|admitted| admitted));
    assert_eq!(limits.left("bob").await, 900);
    assert!(pool.state().connections <= 3);
    let clients: String = server.query(&["CLIENT", "LIST", "TYPE", "normal"]);
    let ours = clients.lines().filter(|line| line.contains("cmd=evalsha"));
    assert!(ours.count() <= 3, "{clients}");
}

/// A command between `MULTI` and `EXEC` would be queued in the application's transaction.
#[tokio::test]
async fn a_connection_that_the_application_uses_is_not_shared() {
    let server = Server::start();
    let pool = pool_of(&server.url(), 1).await;
    let backend = patient(Pool::existing(pool.clone())).build().unwrap();
    let limits = LimitTree::new(&backend, day(3));
    assert!(limits.take("ada", 1).await.is_admitted());
    let mut held: PooledConnection<'_, _> = pool.get().await.unwrap();
    let run = async |held: &mut PooledConnection<'_, _>, words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command
            .query_async::<redis::Value>(&mut **held)
            .await
            .unwrap()
    };
    run(&mut held, &["MULTI"]).await;
    let calls = limits.calls("ada", 1);
    let deciding = tokio::spawn(backend.decide(&limits.prepared, &calls));
    tokio::time::sleep(Duration::from_millis(50)).await;
    run(&mut held, &["SET", "own", "1"]).await;
    let done = run(&mut held, &["EXEC"]).await;
    assert_eq!(done, redis::Value::Array(vec![redis::Value::Okay]));
    drop(held);
    assert_eq!(deciding.await.unwrap().unwrap().remaining(), 1);
}

#[tokio::test]
async fn an_attempt_to_connect_reports_why_the_pool_has_no_connection() {
    let server = Server::builder().password("s3cret").start();
    let wrong = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    for (url, kind, why) in [
        (
            wrong.as_str(),
            FaultKind::Refused,
            "Password authentication failed",
        ),
        ("redis://127.0.0.1:1", FaultKind::NotSent, "refused"),
    ] {
        let pool = Pool::existing(pool_of(url, 1).await);
        let fault = pool.connect(PATIENT).await.err().expect("no connection");
        assert_eq!(fault.kind(), &kind, "{fault}");
        assert!(fault.to_string().contains(why), "{fault}");
        assert_eq!(pool.address(), None);
    }
}

/// The pool itself pauses for longer after each failure.
#[tokio::test]
async fn decisions_are_made_as_soon_as_the_server_is_back() {
    let server = Server::start();
    for size in [1, 4] {
        let pool = pool_of(&server.url(), size).await;
        let backend = patient(Pool::existing(pool)).deadline(Duration::from_millis(200));
        let backend = backend.build().unwrap();
        let limits = LimitTree::new(&backend, day(1_000_000));
        let decide = || backend.decide(&limits.prepared, &limits.calls("ada", 1));
        assert!(decide().await.is_ok());
        server.kill();
        let began = Instant::now();
        let mut last = None;
        while began.elapsed() < Duration::from_secs(3) {
            last = decide().await.err();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let error = last.expect("there is no server");
        assert!(!error.kind().is_busy() && error.is_uncharged(), "{error}");
        server.restart();
        let began = Instant::now();
        while decide().await.is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(1),
                "{:?}",
                backend.stats()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The pool's own check ends after the response timeout of the client, 500 ms.
#[tokio::test]
async fn connections_that_fell_silent_are_replaced_after_the_response_timeout() {
    let server = Server::start();
    for tests in [true, false] {
        let proxy = Proxy::start(server.port());
        let manager = RedisConnectionManager::new(proxy.url()).unwrap();
        let pool = bb8::Pool::builder().max_size(1).test_on_check_out(tests);
        let pool = pool.build(manager).await.unwrap();
        let backend = RedisBackend::builder(Pool::existing(pool.clone()))
            .build()
            .unwrap();
        let limits = LimitTree::new(&backend, day(1_000_000));
        let decide = || backend.decide(&limits.prepared, &limits.calls("ada", 1));
        while decide().await.is_err() || pool.state().idle_connections == 0 {}
        proxy.silence_open();
        let began = Instant::now();
        assert!(decide().await.is_err());
        while decide().await.is_err() {
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "{:?}",
                backend.stats()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
