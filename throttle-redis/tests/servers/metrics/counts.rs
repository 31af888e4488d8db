//! Decisions, calls and batches of a store that is well.

use throttle_core::Backend;
use throttle_test_servers::Server;

use super::recorded::{Recorded, expected};
use super::{builder, window};
use crate::common::{LimitTree, until};

#[tokio::test]
async fn every_decision_call_and_cached_refusal_is_counted_once() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let limits = LimitTree::new(
        &builder(&server)
            .deny_cache(10)
            .build()
            .expect("valid options"),
        window(3),
    );
    for admits in [true, true, true, false] {
        assert_eq!(limits.take("ada", 1).await.is_admitted(), admits);
    }
    let mut counted = expected([
        ("decisions_total", 4),
        ("calls_total ok", 4),
        ("batch_decisions count", 4),
        ("batch_decisions sum", 4),
        // The server does not have the script at first.
        ("sent_calls_total", 5),
        ("repeated_calls_total", 1),
        ("loaded_scripts_total", 1),
        ("opened_connections_total", 1),
        ("breakers closed", 1),
    ]);
    assert_eq!(recorded.of("api"), counted);
    for _ in 0..5 {
        assert!(!limits.take("ada", 1).await.is_admitted());
    }
    counted.insert("cached_refusals_total".to_owned(), 5);
    assert_eq!(
        recorded.of("api"),
        counted,
        "cached refusals are not decisions of the store"
    );
}

/// A settlement is a script call that carries no decision.
#[tokio::test]
async fn settlements_are_sent_calls_and_no_decisions() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let limits = LimitTree::new(&builder(&server).build().expect("valid options"), window(3));
    let receipt = limits.charge("ada", 2).await.expect("a charge");
    let before = recorded.of("api");
    limits.refund(receipt).await;
    let mut after = before.clone();
    for (name, more) in [
        ("sent_calls_total", 2),
        ("repeated_calls_total", 1),
        ("loaded_scripts_total", 1),
    ] {
        *after.get_mut(name).expect("the decision had the same") += more;
    }
    assert_eq!(recorded.of("api"), after);
    assert_eq!(limits.left("ada").await, 3, "it was refunded");
}

/// Six decisions travel alone. The others wait, and then share calls.
#[tokio::test]
async fn batches_sum_up_to_the_decisions_and_waiting_ones_are_shown() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let limits = LimitTree::new(
        &builder(&server).build().expect("valid options"),
        window(1_000),
    );
    limits.take("ada", 1).await;
    server.stop();
    let calls = limits.calls("ada", 1);
    let deciding: Vec<_> = (0..300)
        .map(|_| tokio::spawn(limits.backend.decide(&limits.prepared, &calls)))
        .collect();
    until("decisions that wait", || async {
        recorded.value("api", "waiting_decisions") == 294
    })
    .await;
    server.cont();
    for decided in deciding {
        assert!(
            decided
                .await
                .expect("no panic")
                .expect("a decision")
                .is_admitted()
        );
    }
    let seen = recorded.of("api");
    assert_eq!(
        (seen["decisions_total"], seen["batch_decisions sum"]),
        (301, 301)
    );
    assert_eq!(seen["calls_total ok"], seen["batch_decisions count"]);
    assert!(
        !seen.contains_key("waiting_decisions"),
        "all of them have been sent"
    );
    let sizes = recorded
        .all()
        .into_values()
        .flat_map(|received| received.values)
        .collect::<Vec<_>>();
    assert_eq!(sizes[..7], [1; 7], "the first decision, and the six");
    let batches = &sizes[7..];
    assert!(
        batches.iter().all(|size| (1..=64).contains(size)) && batches.len() < 30,
        "{batches:?}"
    );
}

#[tokio::test]
async fn hostile_keys_add_no_series() {
    let (recorded, server) = (Recorded::default(), Server::start());
    let _here = recorded.install();
    let limits = LimitTree::new(
        &builder(&server)
            .deny_cache(100)
            .build()
            .expect("valid options"),
        window(1),
    );
    let before = recorded.series();
    for number in 0..10_000 {
        let key = match number % 4 {
            0 => format!("\"}},backend=\"{number}"),
            1 => format!("{number}\n# TYPE throttle_redis_calls_total gauge\0"),
            2 => "ü".repeat(number % 500),
            _ => format!("203.0.113.{number}"),
        };
        limits.take(&key, 1 + number as u64 % 2).await;
    }
    assert_eq!(recorded.series(), before);
    let seen = recorded.of("api");
    let asked = seen["decisions_total"] + seen.get("cached_refusals_total").copied().unwrap_or(0);
    assert_eq!(asked, 10_000);
}
