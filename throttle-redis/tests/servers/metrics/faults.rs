//! Failures: what kind, what happened to the call, and what the breaker did.

use std::collections::BTreeMap;
use std::time::Duration;

use throttle_core::{Backend, BackendErrorKind, Decision};
use throttle_test_servers::Server;

use super::recorded::Recorded;
use super::{builder, window};
use crate::common::{LimitTree, until};

/// What is seen after `before`.
fn since(before: &BTreeMap<String, i64>, recorded: &Recorded) -> BTreeMap<String, i64> {
    let mut seen = recorded.of("api");
    for (name, value) in before {
        *seen.entry(name.clone()).or_default() -= value;
    }
    seen.retain(|_, value| *value != 0);
    seen
}

async fn decide(limits: &LimitTree) -> Result<Decision, throttle_core::BackendError> {
    limits
        .backend
        .decide(&limits.prepared, &limits.calls("ada", 1))
        .await
}

#[tokio::test]
async fn killed_server_shows_as_failures_and_an_open_breaker() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let backend = builder(&server)
        .deadline(Duration::from_secs(2))
        .breaker_threshold(3)
        .build();
    let limits = LimitTree::new(&backend.expect("valid options"), window(1_000));
    limits.take("ada", 1).await;
    let breakers = || {
        ["closed", "half_open", "open"]
            .map(|state| recorded.value("api", &format!("breakers {state}")))
    };
    assert_eq!(breakers(), [1, 0, 0]);
    let before = recorded.of("api");
    server.kill();
    let mut failures = BTreeMap::<String, i64>::new();
    let mut suspended = 0;
    while suspended < 3 {
        let error = decide(&limits).await.expect_err("the server is gone");
        let kind = match error.kind() {
            BackendErrorKind::Unavailable => "unavailable",
            BackendErrorKind::Timeout => "timeout",
            BackendErrorKind::Suspended => "suspended",
            kind => panic!("{kind:?}"),
        };
        suspended += i64::from(kind == "suspended");
        *failures
            .entry(format!("failed_decisions_total {kind}"))
            .or_default() += 1;
        *failures
            .entry("unknown_charges_total".to_owned())
            .or_default() += i64::from(!error.is_uncharged());
    }
    assert_eq!(breakers(), [0, 0, 1]);
    until("attempts to connect", || async {
        recorded.value("api", "failed_connections_total") >= 2
    })
    .await;
    let mut seen = since(&before, &recorded);
    let mut take = |name: &str| seen.remove(name).unwrap_or(0);
    assert_eq!(
        take("failed_connections_total"),
        limits.backend.stats().failed_connections as i64
    );
    assert_eq!(take("breaker_openings_total"), 1);
    assert_eq!((take("breakers closed"), take("breakers open")), (-1, 1));
    let calls = ["fault", "unsent"].map(|result| take(&format!("calls_total {result}")));
    assert_eq!(
        (calls[0] + calls[1], take("batch_decisions count")),
        (3, 3),
        "then the breaker was open"
    );
    assert_eq!(
        (take("batch_decisions sum"), take("sent_calls_total")),
        (3, calls[0]),
        "the others were not sent"
    );
    failures.retain(|_, value| *value != 0);
    assert_eq!(seen, failures, "and nothing else");
    server.restart();
    until("a sign of life", || async { breakers() == [0, 1, 0] }).await;
    limits.take("ada", 1).await;
    assert_eq!(breakers(), [1, 0, 0]);
    assert_eq!(recorded.value("api", "decisions_total"), 2);
}

#[tokio::test]
async fn a_settlement_that_fails_is_counted() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let backend = builder(&server)
        .readable_keys()
        .build()
        .expect("valid options");
    let limits = LimitTree::new(&backend, window(1_000));
    let receipt = limits.charge("ada", 5).await.expect("a charge");
    server.command(&["SET", "throttle{all}p:tada", "no state of a limit"]);
    assert!(
        backend
            .settle(&limits.prepared, receipt.actual(1))
            .await
            .is_err()
    );
    assert_eq!(recorded.value("api", "failed_settlements_total"), 1);
    assert_eq!(
        recorded.value("api", "calls_total malformed"),
        0,
        "it carried no decision"
    );
}

/// The alert waits for a minute in which the gauge is never seen at 0.
#[tokio::test]
async fn law_13_breaker_shows_open_for_as_long_as_a_server_refuses_decisions() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let backend = builder(&server).build().expect("valid options");
    let limits = LimitTree::new(&backend, window(1_000));
    limits.take("ada", 1).await;
    server.config_set("min-replicas-to-write", "1");
    for _ in 0..2 {
        assert!(decide(&limits).await.is_err());
    }
    let is_open = || recorded.value("api", "breakers open") == 1;
    let began = std::time::Instant::now();
    let mut requests = 0;
    while began.elapsed() < Duration::from_secs(2) {
        assert!(is_open());
        if began.elapsed() > Duration::from_millis(400) * requests {
            requests += 1;
            assert!(decide(&limits).await.is_err());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let why = ["protocol", "suspended"]
        .map(|why| recorded.value("api", &format!("failed_decisions_total {why}")));
    assert_eq!(why, [2, i64::from(requests)]);
    assert_eq!(recorded.value("api", "unknown_charges_total"), 0);
    server.config_set("min-replicas-to-write", "0");
    until("a sign of life", || async { !is_open() }).await;
    assert!(decide(&limits).await.is_ok());
}
