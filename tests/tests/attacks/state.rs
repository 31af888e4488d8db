//! Attacks on what is charged: refunds used twice or too late, and charges of refused requests.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{START, Site, from, ok, parameter, retry_after, send, three, three_by};
use axum::Router;
use axum::routing::any;
use http::StatusCode;
use throttle_core::{Algorithm, Backend, BoxBackend, ManualClock, Timestamp};
use throttle_core::{Charge, Limiter, Policy, PolicySet};
use throttle_redis::{RedisBackend, RedisBuilder, Single};
use throttle_test_servers::{Server, Shared};
use throttle_tower::{
    CalendarQuota, ClientIp, FixedWindow, Gcra, Header, IntervalBucket, LeakyMeter, LimitReport,
    MemoryBackend, OnError, Rate, SlidingLog, SlidingWindow, ThrottleLayer, TokenBucket, all,
    limit,
};

fn algorithms() -> Vec<Algorithm> {
    let (rate, minute) = (Rate::per_minute(6), Duration::from_secs(60));
    vec![
        Gcra::new(rate).build().unwrap(),
        TokenBucket::new(rate).build().unwrap(),
        LeakyMeter::new(rate).build().unwrap(),
        IntervalBucket::new(6).refill(6, minute).build().unwrap(),
        FixedWindow::new(rate).build().unwrap(),
        SlidingWindow::new(rate).build().unwrap(),
        SlidingLog::new(rate).build().unwrap(),
        CalendarQuota::fixed(6, minute).build().unwrap(),
        CalendarQuota::rolling(6, minute).build().unwrap(),
    ]
}

fn limiter(algorithm: Algorithm) -> (Limiter<MemoryBackend<ManualClock>>, ManualClock) {
    let clock = ManualClock::new(START);
    let backend = MemoryBackend::builder().clock(clock.clone()).build();
    let set = PolicySet::new(Policy::new("six", algorithm).unwrap()).unwrap();
    (Limiter::new(backend, set).unwrap(), clock)
}

#[test]
fn attack_46_refunds_give_back_what_was_taken_and_no_more() {
    for algorithm in algorithms() {
        let name = algorithm.name();
        let (limiter, _) = limiter(algorithm);
        let (_, one) = limiter.charge("ada", 1);
        let (_, two) = limiter.charge("ada", 2);
        two.unwrap().refund_now();
        assert_eq!(limiter.peek("ada").remaining(), 5, "{name}");
        one.unwrap().refund_now();
        assert_eq!(limiter.peek("ada").remaining(), 6, "{name}");
        assert!(!limiter.check("ada", 7).is_admitted(), "{name}");
        // A refusal has nothing to give back.
        assert!(limiter.charge("ada", 7).1.is_none(), "{name}");
        // One key's charge refunds no other key.
        let (_, eve) = limiter.charge("eve", 1);
        assert_eq!(limiter.check("ada", 6).remaining(), 0, "{name}");
        eve.unwrap().refund_now();
        assert_eq!(limiter.peek("ada").remaining(), 0, "{name}");
    }
}

/// Names `ambiguous` twice for a type that is `Clone`, so that this file would not compile if
/// charges could be copied. A `compile_fail` test in the documentation of [`Charge`] shows that a
/// used charge cannot be used again.
#[test]
fn attack_46_a_charge_cannot_be_cloned() {
    trait UnlessClone<Marker> {
        fn ambiguous() {}
    }
    impl<T> UnlessClone<()> for T {}
    impl<T: Clone> UnlessClone<u8> for T {}
    <Charge<MemoryBackend<ManualClock>> as UnlessClone<_>>::ambiguous();
}

#[tokio::test]
async fn attack_48_a_refusal_by_one_limit_leaves_the_others_alone() {
    let per_ip = || limit("per-ip", three().burst(10)).by(ClientIp::peer());
    let per_user = || limit("per-user", three()).by(Header::new("x-user"));
    for limits in [all([per_ip(), per_user()]), all([per_user(), per_ip()])] {
        let site = Site::new(limits);
        let by = |user: &str| from("203.0.113.9").header("x-user", user);
        assert_eq!(site.admitted((0..3).map(|_| by("ada"))).await, 3);
        for _ in 0..100 {
            let refused = site.send(by("ada")).await;
            assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
            let report: &LimitReport = refused.extensions().get().unwrap();
            assert_eq!(report.violated().collect::<Vec<_>>(), ["per-user"]);
            let left = |name| {
                report
                    .statuses()
                    .find(|(policy, _)| policy.name() == name)
                    .unwrap()
                    .1
                    .remaining()
            };
            assert_eq!((left("per-ip"), left("per-user")), (7, 0));
        }
        // All seven units are there.
        for n in 0..7 {
            let admitted = site.send(by(&format!("user-{n}"))).await;
            assert_eq!(
                parameter(&admitted, "ratelimit", "per-ip", "r"),
                Some(6 - n)
            );
        }
        let refused = site.send(by("ada")).await;
        let report: &LimitReport = refused.extensions().get().unwrap();
        assert_eq!(report.violated().count(), 2);
    }
}

#[tokio::test]
async fn attack_49_a_retry_loop_recovers() {
    let site = Site::new(three_by(ClientIp::peer()));
    assert_eq!(site.admitted((0..3).map(|_| from("203.0.113.9"))).await, 3);
    // The client retries during the whole wait, and the wait does not grow.
    for second in 0..20 {
        let refused = site.send(from("203.0.113.9")).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(retry_after(&refused), Some(20 - second));
        assert_eq!(site.admitted((0..50).map(|_| from("203.0.113.9"))).await, 0);
        site.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(site.admitted((0..2).map(|_| from("203.0.113.9"))).await, 1);
}

/// Three an hour on a store, in a process that has just started.
fn process<B: Backend>(store: B) -> Router {
    let hourly = limit("three", Gcra::new(Rate::per_hour(3)))
        .by(ClientIp::peer())
        .on_error(OnError::Closed);
    let layer = ThrottleLayer::builder(hourly)
        .backend(store)
        .build()
        .unwrap();
    Router::new().route("/", any(ok)).layer(layer)
}

async fn admitted(process: &Router) -> usize {
    let mut admitted = 0;
    for _ in 0..10 {
        admitted +=
            usize::from(send(process, from("203.0.113.9")).await.status() == StatusCode::OK);
    }
    admitted
}

fn shared(url: &str) -> RedisBuilder {
    RedisBackend::builder(Single::new(url).unwrap()).deadline(Duration::from_secs(10))
}

/// Processes do not send the time to the store; tests may, and here the clocks of two processes
/// differ by ten seconds.
#[tokio::test]
async fn attack_45_processes_whose_clocks_disagree_share_one_budget() {
    let store = Shared::new();
    let builder = || shared(&store.url()).prefix(store.prefix());
    for ahead in [None, Some(5_000_000)] {
        let clocks = [-1, 1].map(|side| {
            ahead.map(|us| ManualClock::new(Timestamp::from_micros(START.as_micros() + side * us)))
        });
        let processes = clocks.map(|clock| match clock {
            Some(clock) => process(BoxBackend::new(builder().clock(clock).build().unwrap())),
            None => process(BoxBackend::new(builder().build().unwrap())),
        });
        let mut total = 0;
        for _ in 0..10 {
            for process in &processes {
                total += usize::from(
                    send(process, from("203.0.113.9")).await.status() == StatusCode::OK,
                );
            }
        }
        assert_eq!(total, 3, "{ahead:?}");
        builder().build().unwrap().reset_all("three").await.unwrap();
    }
}

/// Counts in memory are lost with the process, as the README says. A store keeps them, and if it is
/// persistent, also over a crash of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_51_restart_forgets_memory_and_keeps_what_is_in_a_store() {
    let in_memory = || {
        process(
            MemoryBackend::builder()
                .clock(ManualClock::new(START))
                .build(),
        )
    };
    assert_eq!(admitted(&in_memory()).await, 3);
    assert_eq!(admitted(&in_memory()).await, 3);

    let server = Arc::new(
        Server::builder()
            .arg("--appendonly", "yes")
            .arg("--appendfsync", "always")
            .start(),
    );
    let on_the_store = || process(shared(&server.url()).build().unwrap());
    assert_eq!(admitted(&on_the_store()).await, 3);
    assert_eq!(
        admitted(&on_the_store()).await,
        0,
        "the process was restarted"
    );
    let crashing = Arc::clone(&server);
    tokio::task::spawn_blocking(move || {
        crashing.kill();
        crashing.restart();
    })
    .await
    .unwrap();
    assert_eq!(
        admitted(&on_the_store()).await,
        0,
        "the store was restarted"
    );
}
