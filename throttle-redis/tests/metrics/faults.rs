//! Failures: what kind, what happened to the call, and what the breaker did.

use std::collections::BTreeMap;
use std::time::Duration;

use throttle_core::{Backend, BackendErrorKind, Decision};
use throttle_test_servers::Server;

use crate::common::LimitTree;
use crate::recorded::{Recorded, expected};
use crate::{builder, until, window};

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
    limits.backend.decide(&limits.prepared, &limits.calls("ada", 1)).await
}

#[tokio::test]
async fn a_killed_server_is_seen_by_failures_and_an_open_breaker_until_it_is_back() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let backend = builder(&server).deadline(Duration::from_secs(2)).breaker_threshold(3).build();
    let limits = LimitTree::new(&backend.expect("valid options"), window(1_000));
    limits.take("ada", 1).await;
    let breakers = || ["closed", "half_open", "open"].map(|state| recorded.value("api", &format!("breakers {state}")));
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
        *failures.entry(format!("failed_decisions_total {kind}")).or_default() += 1;
        *failures.entry("unknown_charges_total".to_owned()).or_default() += i64::from(!error.is_uncharged());
    }
    assert_eq!(breakers(), [0, 0, 1]);
    until("attempts to connect", || async { recorded.value("api", "failed_connections_total") >= 2 }).await;
    let mut seen = since(&before, &recorded);
    let mut take = |name: &str| seen.remove(name).unwrap_or(0);
    assert_eq!(take("failed_connections_total"), limits.backend.stats().failed_connections as i64);
    assert_eq!(take("breaker_openings_total"), 1);
    assert_eq!((take("breakers closed"), take("breakers open")), (-1, 1));
    let calls = ["fault", "unsent"].map(|result| take(&format!("calls_total {result}")));
    assert_eq!((calls[0] + calls[1], take("batch_decisions count")), (3, 3), "then the breaker was open");
    assert_eq!((take("batch_decisions sum"), take("sent_calls_total")), (3, calls[0]), "the others were not sent");
    failures.retain(|_, value| *value != 0);
    assert_eq!(seen, failures, "and nothing else");
    server.restart();
    until("a sign of life", || async { breakers() == [0, 1, 0] }).await;
    limits.take("ada", 1).await;
    assert_eq!(breakers(), [1, 0, 0]);
    assert_eq!(recorded.value("api", "decisions_total"), 2);
}

#[tokio::test]
async fn a_server_that_hangs_is_seen_by_late_calls_and_unknown_charges() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let backend = builder(&server).deadline(Duration::from_secs(1)).breaker_threshold(100).build();
    let limits = LimitTree::new(&backend.expect("valid options"), window(1_000));
    limits.take("ada", 1).await;
    let before = recorded.of("api");
    server.stop();
    assert_eq!(decide(&limits).await.expect_err("it hangs").kind(), BackendErrorKind::Timeout);
    server.cont();
    let late = expected([
        ("failed_decisions_total timeout", 1),
        ("unknown_charges_total", 1),
        ("calls_total late", 1),
        ("batch_decisions count", 1),
        ("batch_decisions sum", 1),
        ("sent_calls_total", 1),
    ]);
    assert_eq!(since(&before, &recorded), late);
}

/// A decision whose future is dropped has neither been made nor failed.
#[tokio::test]
async fn a_dropped_decision_is_an_abandoned_call() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let limits = LimitTree::new(&builder(&server).build().expect("valid options"), window(1_000));
    limits.take("ada", 1).await;
    let before = recorded.of("api");
    server.stop();
    let dropped = tokio::time::timeout(Duration::from_millis(50), decide(&limits)).await;
    server.cont();
    assert!(dropped.is_err());
    let abandoned = expected([
        ("calls_total abandoned", 1),
        ("batch_decisions count", 1),
        ("batch_decisions sum", 1),
        ("sent_calls_total", 1),
    ]);
    assert_eq!(since(&before, &recorded), abandoned);
}

/// A call that was answered may have decided nothing.
#[tokio::test]
async fn errors_of_the_server_and_values_of_other_programs_are_told_apart() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let backend = builder(&server).readable_keys().breaker_threshold(100).build().expect("valid options");
    let limits = LimitTree::new(&backend, window(1_000));
    limits.take("bob", 1).await;
    let key = "throttle{all}p:tada";
    let (list, text) = (["RPUSH", key, "of another program"], ["SET", key, "of another program"]);
    for command in [list, text] {
        server.command(&command);
        let before = recorded.of("api");
        let error = decide(&limits).await.expect_err("the value is no state");
        assert_eq!((error.kind(), error.is_uncharged()), (BackendErrorKind::Protocol, false));
        let failed = expected([
            ("failed_decisions_total protocol", 1),
            ("unknown_charges_total", 1),
            ("calls_total ok", 1),
            ("batch_decisions count", 1),
            ("batch_decisions sum", 1),
            ("sent_calls_total", 1),
        ]);
        assert_eq!(since(&before, &recorded), failed, "{command:?}");
        server.command(&["DEL", key]);
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let before = recorded.of("api");
    assert!(decide(&limits).await.expect_err("the server is full").is_uncharged());
    let fault = expected([
        ("failed_decisions_total protocol", 1),
        ("calls_total fault", 1),
        ("batch_decisions count", 1),
        ("batch_decisions sum", 1),
        ("sent_calls_total", 1),
    ]);
    assert_eq!(since(&before, &recorded), fault);
}

#[tokio::test]
async fn a_settlement_that_fails_is_counted() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let backend = builder(&server).readable_keys().build().expect("valid options");
    let limits = LimitTree::new(&backend, window(1_000));
    let receipt = limits.charge("ada", 5).await.expect("a charge");
    server.command(&["SET", "throttle{all}p:tada", "no state of a limit"]);
    assert!(backend.settle(&limits.prepared, receipt.actual(1)).await.is_err());
    assert_eq!(recorded.value("api", "failed_settlements_total"), 1);
    assert_eq!(recorded.value("api", "calls_total malformed"), 0, "it carried no decision");
}

/// What is not sent because too many decisions wait is in no call.
#[tokio::test]
async fn a_full_queue_is_seen_by_saturated_failures() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let limits = LimitTree::new(&builder(&server).queue(2).build().expect("valid options"), window(1_000));
    limits.take("ada", 1).await;
    server.stop();
    let calls = limits.calls("ada", 1);
    let deciding: Vec<_> = (0..20).map(|_| tokio::spawn(limits.backend.decide(&limits.prepared, &calls))).collect();
    until("a full queue", || async { recorded.value("api", "waiting_decisions") == 2 }).await;
    until("saturation", || async { recorded.value("api", "failed_decisions_total saturated") == 12 }).await;
    server.cont();
    let mut saturated = 0;
    for decided in deciding {
        saturated += u64::from(decided.await.expect("no panic").is_err());
    }
    assert_eq!(saturated, 12, "six were under way and two waited");
    let seen = recorded.of("api");
    assert_eq!((seen["decisions_total"], seen["batch_decisions sum"]), (9, 9));
}
