//! Stored values that no backend wrote.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{LimitTree, policy};
use throttle_core::{
    Algorithm, Backend, IntoAlgorithm, PolicyTree, Rate, SlidingWindow, TokenBucket,
};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::{Proxy, Server};

/// One value for which the server accepts no expiry, and one with which the script cannot
/// calculate.
fn poisons() -> [(Algorithm, f64); 2] {
    [
        (
            TokenBucket::new(Rate::per_hour(10))
                .into_algorithm()
                .unwrap(),
            1e300,
        ),
        (
            SlidingWindow::new(Rate::per_hour(10))
                .into_algorithm()
                .unwrap(),
            f64::INFINITY,
        ),
    ]
}

/// Stores a fresh state with its first number replaced.
fn poison(server: &Server, algorithm: Algorithm, number: f64) {
    let mut value = algorithm.fresh().to_wire(&algorithm).unwrap();
    let at = algorithm.tag().len();
    value[at..at + 8].copy_from_slice(&number.to_le_bytes());
    let mut set = redis::cmd("SET");
    set.arg("throttle{all}p:tvictim")
        .arg(value)
        .exec(&mut server.connection())
        .unwrap();
}

#[tokio::test]
async fn a_value_that_makes_no_sense_fails_no_request_that_travels_with_its_own() {
    for (algorithm, number) in poisons() {
        for several in [false, true] {
            let server = Server::start();
            let proxy = Proxy::start(server.port());
            let builder = RedisBackend::builder(Single::new(&proxy.url()).unwrap()).readable_keys();
            let backend = builder
                .deadline(Duration::from_secs(10))
                .breaker_threshold(1)
                .build()
                .unwrap();
            let other = several.then(|| policy("other", algorithm).into());
            let members = [policy("p", algorithm).into()].into_iter().chain(other);
            let limits = Arc::new(LimitTree::new(&backend, PolicyTree::All(members.collect())));
            assert_eq!(limits.take("warm", 1).await.remaining(), 9);
            poison(&server, algorithm, number);
            // While the first calls are under way, the other decisions wait for one call together.
            proxy.delay_replies(Duration::from_millis(50));
            let before = backend.stats().calls;
            let mut asking = tokio::task::JoinSet::new();
            for request in 0..64 {
                let limits = Arc::clone(&limits);
                asking.spawn(async move {
                    let key = if request == 40 {
                        "victim".to_owned()
                    } else {
                        format!("good{request}")
                    };
                    (
                        request,
                        limits
                            .backend
                            .decide(&limits.prepared, &limits.calls(&key, 1))
                            .await,
                    )
                });
            }
            for (request, decided) in asking.join_all().await {
                match decided {
                    Ok(decision) => assert!(
                        request != 40 && decision.remaining() == 9,
                        "{request}: {decision:?}"
                    ),
                    Err(error) => assert_eq!(request, 40, "{error}"),
                }
            }
            assert!(
                backend.stats().calls - before < 64,
                "some travelled together"
            );
            proxy.delay_replies(Duration::ZERO);
            for request in (0..64).filter(|request| *request != 40) {
                assert_eq!(
                    limits.left(&format!("good{request}")).await,
                    9,
                    "charged once"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_value_that_makes_no_sense_is_no_failure_of_the_store() {
    for (algorithm, number) in poisons() {
        let server = Server::start();
        let builder = RedisBackend::builder(Single::new(&server.url()).unwrap()).readable_keys();
        let backend = builder
            .deadline(Duration::from_secs(10))
            .breaker_threshold(1)
            .build()
            .unwrap();
        let limits = LimitTree::new(&backend, policy("p", algorithm));
        assert!(limits.take("warm", 1).await.is_admitted());
        poison(&server, algorithm, number);
        for left in [9, 8, 7] {
            let error = backend
                .decide(&limits.prepared, &limits.calls("victim", 1))
                .await
                .unwrap_err();
            assert_eq!(
                error.kind(),
                throttle_core::BackendErrorKind::Protocol,
                "{error}"
            );
            assert_eq!(limits.take("ada", 1).await.remaining(), left);
        }
        assert_eq!(backend.stats().breaker_openings, 0);
    }
}
