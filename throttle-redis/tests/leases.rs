//! Units that are taken in advance: never more than the limit, never lost.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Limits, builder, policy};
use throttle_core::{Backend, CalendarQuota, FixedWindow, Gcra, LimitSet, Rate, Rule, SlidingWindow};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::{Proxy, Server, Shared};

const DAY: Duration = Duration::from_secs(86_400);

fn window(limit: u64) -> throttle_core::Policy {
    policy("hot", FixedWindow::new(Rate::new(limit, DAY)))
}

#[tokio::test]
async fn decisions_are_made_here_and_the_store_is_asked_once_a_lease() {
    let shared = Shared::new();
    let backend = builder(&shared).lease("hot", 100).build().unwrap();
    let limits = Limits::new(&backend, window(1_000));
    for used in 1..=300 {
        let decision = limits.take("key", 1).await;
        assert!(decision.is_allowed());
        assert_eq!(decision.remaining(), 1_000 - used, "nobody else is there, so it is exact");
        assert_eq!(decision.statuses()[0].charged(), 1);
    }
    assert_eq!(backend.stats().calls, 3);
    assert_eq!(backend.stats().lease_decisions, 300 - 3);
}

#[tokio::test]
async fn exactly_the_limit_is_admitted_by_processes_that_race() {
    for (limit, units) in [(37, 100), (1_000, 7), (1_000, 64), (100, 100)] {
        let shared = Shared::new();
        let admitted = Arc::new(AtomicU64::new(0));
        let mut racing = tokio::task::JoinSet::new();
        for _ in 0..6 {
            let backend = builder(&shared).lease("hot", units).lease_idle(Duration::from_millis(10)).build().unwrap();
            for _ in 0..8 {
                let (limits, admitted) = (Limits::new(&backend, window(limit)), Arc::clone(&admitted));
                racing.spawn(async move {
                    // Units that another process holds come back when they fall idle there.
                    let until = Instant::now() + Duration::from_millis(400);
                    while Instant::now() < until {
                        if limits.take("key", 1).await.is_allowed() {
                            admitted.fetch_add(1, Ordering::Relaxed);
                        } else {
                            tokio::time::sleep(Duration::from_millis(2)).await;
                        }
                    }
                });
            }
        }
        racing.join_all().await;
        let admitted = admitted.load(Ordering::Relaxed);
        assert!(admitted <= limit, "{admitted} of {limit} in leases of {units}");
        let fresh = Limits::new(&builder(&shared).build().unwrap(), window(limit));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(admitted + fresh.left("key").await, limit, "every unit was used or came back");
    }
}

#[tokio::test]
async fn a_lease_takes_no_more_than_there_is_and_comes_back_when_idle() {
    let shared = Shared::new();
    let backend = builder(&shared).lease("hot", 100).lease_idle(Duration::from_millis(40)).build().unwrap();
    let limits = Limits::new(&backend, window(130));
    let other = Limits::new(&builder(&shared).build().unwrap(), window(130));
    assert!(limits.take("key", 1).await.is_allowed());
    assert_eq!(other.left("key").await, 30, "99 are held");
    for _ in 0..100 {
        assert!(limits.take("key", 1).await.is_allowed());
    }
    assert_eq!(other.left("key").await, 0, "the second lease took the thirty that were left");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(other.left("key").await, 29);
}

#[tokio::test]
async fn what_is_held_can_be_given_back_at_once() {
    let shared = Shared::new();
    let backend = builder(&shared).lease("hot", 100).lease_idle(Duration::from_secs(60)).build().unwrap();
    let limits = Limits::new(&backend, window(1_000));
    for key in ["a", "b", "c"] {
        assert!(limits.take(key, 10).await.is_allowed());
    }
    assert_eq!(backend.return_leases().await, 270);
    assert_eq!(backend.return_leases().await, 0);
    let other = Limits::new(&builder(&shared).build().unwrap(), window(1_000));
    for key in ["a", "b", "c"] {
        assert_eq!(other.left(key).await, 990);
    }
}

/// A unit that has drained must not be spent any more: together with what has become free, that would be a second burst.
#[tokio::test]
async fn a_lease_of_a_bucket_melts_as_its_debt_drains() {
    let shared = Shared::new();
    let bucket = || policy("hot", Gcra::new(Rate::per_second(1_000)).burst(200));
    let backend = builder(&shared).lease("hot", 200).lease_idle(Duration::from_secs(60)).build().unwrap();
    let limits = Limits::new(&backend, bucket());
    let other = Limits::new(&builder(&shared).build().unwrap(), bucket());
    assert!(limits.take("key", 1).await.is_allowed());
    tokio::time::sleep(Duration::from_millis(150)).await;
    // Some 150 have drained; what is held and what is free are one burst, and what drains in between.
    let started = Instant::now();
    let (mut here, mut there) = (0, 0);
    while limits.take("key", 1).await.is_allowed() {
        here += 1;
        if here > 1_000 {
            break;
        }
    }
    while other.take("key", 1).await.is_allowed() {
        there += 1;
        if there > 1_000 {
            break;
        }
    }
    let most = 200 + started.elapsed().as_millis() as u64 + 2;
    assert!(here + there <= most, "{here} here and {there} there, of {most}");
}

/// A late refund lessens the debt that stands for the units that are held: both together would be more than a burst.
#[tokio::test]
async fn a_late_refund_and_a_lease_do_not_add_up() {
    let shared = Shared::new();
    let bucket = || policy("hot", Gcra::new(Rate::per_second(200)).burst(100));
    let backend = builder(&shared).lease("hot", 100).lease_idle(Duration::from_secs(60)).build().unwrap();
    let limits = Limits::new(&backend, bucket());
    let other = Limits::new(&builder(&shared).build().unwrap(), bucket());
    let receipt = limits.charge("key", 50).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let started = Instant::now();
    limits.refund(receipt).await;
    let (mut here, mut there) = (0, 0);
    while here < 1_000 && limits.take("key", 1).await.is_allowed() {
        here += 1;
    }
    while there < 1_000 && other.take("key", 1).await.is_allowed() {
        there += 1;
    }
    let most = 100 + started.elapsed().as_millis() as u64 / 5 + 2;
    assert!(here + there <= most, "{here} here and {there} there, of {most}");
}

#[tokio::test]
async fn a_lease_does_not_outlive_its_window() {
    let shared = Shared::new();
    let window = || policy("hot", FixedWindow::new(Rate::new(100, Duration::from_millis(400))));
    let backend = builder(&shared).lease("hot", 60).lease_idle(Duration::from_secs(60)).build().unwrap();
    let limits = Limits::new(&backend, window());
    let other = Limits::new(&builder(&shared).build().unwrap(), window());
    for _ in 0..3 {
        // Late in a window, half of it is taken in advance; in the next the whole limit is there, and not more.
        let reset = limits.take("key", 1).await.reset_after();
        tokio::time::sleep(reset + Duration::from_millis(5)).await;
        let (mut admitted, started) = (0, Instant::now());
        while limits.take("key", 1).await.is_allowed() || other.take("key", 1).await.is_allowed() {
            admitted += 1;
            assert!(admitted <= 1_000);
        }
        if started.elapsed() < Duration::from_millis(300) {
            assert!(admitted <= 100, "{admitted} in one window of 100");
        }
    }
}

#[tokio::test]
async fn limits_that_cannot_be_leased_are_refused_when_they_are_prepared() {
    let shared = Shared::new();
    let backend = builder(&shared).lease("hot", 10).build().unwrap();
    let set = LimitSet::new(policy("hot", SlidingWindow::new(Rate::per_minute(10)))).unwrap();
    let error = backend.prepare(set).unwrap_err();
    assert_eq!((error.policy(), error.field(), error.value()), (Some("hot"), "lease", "sliding_window"));
    let members = vec![window(10).into(), policy("other", Gcra::new(Rate::per_second(1))).into()];
    let error = backend.prepare(LimitSet::new(Rule::All(members)).unwrap()).unwrap_err();
    assert!(error.to_string().contains("decided alone"), "{error}");
    backend.prepare(LimitSet::new(policy("hot", CalendarQuota::daily(5))).unwrap()).unwrap();
    let error = builder(&shared).lease("hot", 1).build().unwrap_err();
    assert_eq!((error.policy(), error.field()), (Some("hot"), "units of a lease"));
}

#[test]
fn the_terms_say_what_they_can_cost() {
    let shared = Shared::new();
    let builder = builder(&shared).lease("hot", 100).lease_idle(Duration::from_millis(250));
    let terms = builder.terms().to_string();
    assert!(terms.contains("\"hot\"") && terms.contains("up to 100 units") && terms.contains("250 ms"), "{terms}");
}

/// One fetches for all, and the others wait in a row.
#[tokio::test]
async fn who_waits_for_a_lease_waits_no_longer_than_for_a_decision() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let deadline = Duration::from_millis(200);
    let connection = Single::new(&proxy.url()).unwrap();
    let backend = RedisBackend::builder(connection).lease("hot", 2).deadline(deadline).build().unwrap();
    let limits = Arc::new(Limits::new(&backend, window(1_000)));
    assert!(limits.take("warm", 1).await.is_allowed());
    proxy.delay_replies(Duration::from_millis(20));
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let limits = Arc::clone(&limits);
        waiting.spawn(async move {
            let started = Instant::now();
            let decided = limits.backend.decide(&limits.prepared, &limits.calls("key", 1)).await;
            (started.elapsed(), decided)
        });
    }
    let mut admitted = 0;
    for (took, decided) in waiting.join_all().await {
        assert!(took < deadline + Duration::from_millis(100), "{took:?}");
        // When several have waited in vain, the others are not let to wait at all.
        if let Ok(decision) = decided {
            assert!(decision.is_allowed());
            admitted += 1;
        }
    }
    assert!((1..200).contains(&admitted), "{admitted} of 200, two for each fetch of 20 ms");
}

#[tokio::test]
async fn who_only_looks_takes_nothing_and_leaves_the_lease_as_it_is() {
    let shared = Shared::new();
    let backend = builder(&shared).lease("hot", 100).lease_idle(Duration::from_secs(60)).build().unwrap();
    let limits = Limits::new(&backend, window(1_000));
    let other = Limits::new(&builder(&shared).build().unwrap(), window(1_000));
    assert_eq!(limits.left("key").await, 1_000);
    assert_eq!(other.left("key").await, 1_000, "nothing was taken");
    assert!(limits.take("key", 1).await.is_allowed());
    limits.left("key").await;
    assert_eq!(other.left("key").await, 900, "it is held as before");
}

/// How much of it the server still counts would be told by the rate that it was taken under.
#[tokio::test]
async fn what_was_taken_under_other_limits_stays_taken() {
    let shared = Shared::new();
    let fast = || policy("hot", Gcra::new(Rate::per_second(1_000)).burst(1_000));
    let backend = builder(&shared).lease("hot", 1_000).lease_idle(Duration::from_secs(60)).build().unwrap();
    let limits = Limits::new(&backend, fast());
    let other = Limits::new(&builder(&shared).build().unwrap(), fast());
    assert!(limits.take("key", 1).await.is_allowed());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    assert!(other.take("key", 400).await.is_allowed());
    let _slow = Limits::new(&backend, policy("hot", Gcra::new(Rate::per_second(1)).burst(1_000)));
    assert_eq!(backend.return_leases().await, 0);
    let most = 200 + started.elapsed().as_millis() as u64;
    let left = other.left("key").await;
    assert!(left <= most + 100, "{left} are left where {most} can be: units of others were given back");
}
