//! Refusals that the deny cache answers without asking the store.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{LimitTree, builder, policy};
use throttle_core::backend::KeyStep;
use throttle_core::{
    Backend, FixedWindow, Gcra, Key, ManualClock, PolicyTree, Rate, SlidingLog, Status, Timestamp,
};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::{Proxy, Server, Shared};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn cached_refusals_are_exact_until_the_wait_is_over() {
    let shared = Shared::new();
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let limits = LimitTree::new(
        &backend,
        policy("p", Gcra::new(Rate::per_second(2)).burst(1)),
    );
    assert!(limits.take("ada", 1).await.is_admitted());
    let first = limits.take("ada", 1).await;
    let calls = backend.stats().calls;
    let mut last = first.retry_after().unwrap();
    assert!(last <= Duration::from_millis(500));
    let started = std::time::Instant::now();
    while started.elapsed() < last.mul_f64(0.5) {
        let again = limits.take("ada", 1).await;
        assert!(!again.is_admitted(), "half of the wait is not over");
        assert!(
            again.retry_after().unwrap() <= last,
            "waits get shorter as time goes by"
        );
        last = last.min(again.retry_after().unwrap() + started.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stats = backend.stats();
    assert_eq!(stats.calls, calls, "nothing was asked meanwhile");
    assert!(stats.cached_refusals > 5);
    tokio::time::sleep(Duration::from_millis(520)).await;
    assert!(
        limits.take("ada", 1).await.is_admitted(),
        "the wait is over"
    );
}

#[tokio::test]
async fn greater_costs_are_refused_too_and_smaller_ones_are_asked_about() {
    let shared = Shared::new();
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let limits = LimitTree::new(
        &backend,
        policy("p", FixedWindow::new(Rate::new(10, 24 * HOUR))),
    );
    assert!(limits.take("ada", 5).await.is_admitted());
    assert!(!limits.take("ada", 6).await.is_admitted());
    let calls = backend.stats().calls;
    for cost in [6, 7, 10, 11, u64::MAX] {
        let refused = limits.take("ada", cost).await;
        assert!(!refused.is_admitted() && refused.remaining() == 5, "{cost}");
        assert_eq!(refused.retry_after().is_none(), cost > 10, "{cost}");
    }
    assert_eq!(backend.stats().calls, calls);
    assert!(
        limits.take("ada", 3).await.is_admitted(),
        "a smaller cost is another question"
    );
    assert_eq!(backend.stats().calls, calls + 1);
    assert!(
        limits.take("bob", 6).await.is_admitted(),
        "another key is another question"
    );
}

/// A log, too, of which the reply has only what the asking class needs.
#[tokio::test]
async fn law_08_refusals_of_one_class_are_no_answers_for_another() {
    let shared = Shared::new();
    let (cached, plain) = (
        builder(&shared).deny_cache(100).build().unwrap(),
        builder(&shared).build().unwrap(),
    );
    let window = policy("window", FixedWindow::new(Rate::new(10, 24 * HOUR)));
    let log = policy("log", SlidingLog::new(Rate::new(10, 24 * HOUR)));
    for (policy, answered) in [(window, 7), (log, 4)] {
        let limits = LimitTree::new(&cached, policy.clone());
        let asked_anew = LimitTree::new(&plain, policy);
        for cost in [2, 2, 2] {
            assert!(limits.take("ada", cost).await.is_admitted());
        }
        let before = cached.stats().cached_refusals;
        for (cost, reserve, is_admitted) in [
            (1, 4, false),
            (1, 4, false),
            (2, 3, false),
            (1, 5, false),
            (5, 0, false),
            (1, 3, true),
            (1, 4, false),
            (1, 4, false),
            (1, 0, true),
            (2, 2, false),
            (2, 2, false),
            (1, 1, true),
            (1, 1, false),
            (1, 1, false),
        ] {
            let call = [limits.calls("ada", cost)[0].clone().reserving(reserve)];
            let look = [limits.calls("ada", 0)[0].clone().reserving(reserve)];
            let decision = cached.decide(&limits.prepared, &call).await.unwrap();
            let (wait, remaining) = (decision.retry_after(), decision.remaining());
            let due = plain.decide(&asked_anew.prepared, &look).await.unwrap();
            assert_eq!(
                (decision.is_admitted(), remaining),
                (is_admitted, due.remaining()),
                "{cost} and {reserve}"
            );
            assert!(
                wait.is_some_and(|wait| wait.is_zero() == is_admitted),
                "{cost} and {reserve}: {wait:?}"
            );
        }
        assert_eq!(cached.stats().cached_refusals - before, answered);
    }
}

#[tokio::test]
async fn refunds_resets_and_changed_limits_clear_it() {
    let shared = Shared::new();
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let limits = LimitTree::new(
        &backend,
        policy("p", SlidingLog::new(Rate::new(3, 24 * HOUR))),
    );
    for round in ["refund", "reset", "reset all"] {
        let receipt = limits.charge(round, 3).await.unwrap();
        assert!(!limits.take(round, 1).await.is_admitted());
        assert!(!limits.take(round, 1).await.is_admitted());
        match round {
            "refund" => limits.refund(receipt).await,
            "reset" => backend
                .run(&limits.prepared, 0, KeyStep::Reset(Key::from(round)))
                .await
                .map(drop)
                .unwrap(),
            _ => backend.reset_all("p").await.unwrap(),
        }
        assert!(limits.take(round, 1).await.is_admitted(), "after a {round}");
    }
    assert!(limits.take("raised", 3).await.is_admitted());
    assert!(!limits.take("raised", 1).await.is_admitted());
    let raised = LimitTree::new(
        &backend,
        policy("p", SlidingLog::new(Rate::new(5, 24 * HOUR))),
    );
    assert!(raised.take("raised", 1).await.is_admitted());
    assert!(
        !limits.take("raised", 1).await.is_admitted(),
        "each decides by its own parameters"
    );
}

#[tokio::test]
async fn it_holds_no_more_than_it_may_and_is_off_by_default() {
    let shared = Shared::new();
    let limit = || policy("p", FixedWindow::new(Rate::new(1, 24 * HOUR)));
    let backend = builder(&shared).deny_cache(10).build().unwrap();
    let limits = LimitTree::new(&backend, limit());
    for round in 0..3 {
        for key in 0..40 {
            assert_eq!(
                limits.take(&key.to_string(), 1).await.is_admitted(),
                round == 0
            );
        }
    }
    assert_eq!(backend.stats().cached_refusals, 10, "ten of forty");
    let plain = builder(&shared).build().unwrap();
    let limits = LimitTree::new(&plain, limit());
    for _ in 0..3 {
        assert!(!limits.take("1", 1).await.is_admitted());
    }
    assert_eq!((plain.stats().cached_refusals, plain.stats().calls), (0, 3));
}

/// The store's reply about a log contains only what one cost needs; a greater cost depends on other
/// entries.
#[tokio::test]
async fn greater_costs_of_a_log_are_asked_about() {
    let shared = Shared::new();
    let clock = ManualClock::default();
    let backend = builder(&shared)
        .deny_cache(100)
        .clock(clock.clone())
        .build()
        .unwrap();
    let limits = LimitTree::new(
        &backend,
        policy("p", SlidingLog::new(Rate::new(10, 24 * HOUR))),
    );
    let start = Timestamp::from_micros(1_790_000_000_000_000);
    let hours = |hours: u64| start.after_micros(hours * 3_600_000_000);
    for (at, units) in [(0, 3), (1, 3), (2, 3), (3, 1)] {
        clock.set(hours(at));
        assert!(limits.take("ada", units).await.is_admitted());
    }
    // By then the first three units have left the window, and then the next three.
    assert_eq!(limits.take("ada", 2).await.retry_after(), Some(21 * HOUR));
    assert_eq!(limits.take("ada", 5).await.retry_after(), Some(22 * HOUR));
}

/// A refusal that was decided before a key is reset or refunded is out of date, whether it arrives
/// before or after that step ends.
#[tokio::test]
async fn refusals_from_before_a_reset_or_refund_are_not_cached() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let single = Single::new(&proxy.url()).unwrap();
    let backend = RedisBackend::builder(single)
        .deny_cache(100)
        .deadline(Duration::from_secs(10))
        .build()
        .unwrap();
    let limits = Arc::new(LimitTree::new(
        &backend,
        policy("p", FixedWindow::new(Rate::new(3, 24 * HOUR))),
    ));
    for (step, arrives_after) in [("reset", false), ("refund", false), ("reset all", false)]
        .into_iter()
        .chain([("reset", true), ("refund", true), ("reset all", true)])
    {
        let key = format!("{step} {arrives_after}");
        let receipt = limits.charge(&key, 3).await.unwrap();
        // Load every script first, so that each step is one call.
        backend
            .settle(
                &limits.prepared,
                limits.charge("warm", 1).await.unwrap().actual(0),
            )
            .await
            .unwrap();
        proxy.delay_replies(Duration::from_millis(100));
        let asked = backend.stats().calls;
        let sent = async || {
            while backend.stats().calls == asked {
                tokio::task::yield_now().await;
            }
        };
        let forget = async {
            match step {
                "refund" => backend.settle(&limits.prepared, receipt.actual(0)).await,
                "reset" => backend
                    .run(&limits.prepared, 0, KeyStep::Reset(Key::from(key.as_str())))
                    .await
                    .map(drop),
                _ => backend.reset_all("p").await,
            }
        };
        let refused = if arrives_after {
            let mut asking = pin!(limits.take(&key, 1));
            tokio::select! {
                biased;
                _ = &mut asking => panic!("replies are late"),
                () = sent() => {}
            }
            forget.await.unwrap();
            asking.await
        } else {
            let (limits, key) = (Arc::clone(&limits), key.clone());
            let asking = tokio::spawn(async move { limits.take(&key, 1).await });
            sent().await;
            forget.await.unwrap();
            asking.await.unwrap()
        };
        assert!(!refused.is_admitted(), "decided before the {step}");
        proxy.delay_replies(Duration::ZERO);
        assert!(limits.take(&key, 1).await.is_admitted(), "after the {step}");
    }
}

/// A late answer shows the server's time somewhere between the question and now. A cached refusal
/// ends at the first instant at which the store may admit the request.
#[tokio::test]
async fn refusals_end_when_they_may_by_the_latest_time_that_the_server_can_have() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let single = Single::new(&proxy.url()).unwrap();
    let backend = RedisBackend::builder(single)
        .deny_cache(100)
        .deadline(Duration::from_secs(10))
        .build()
        .unwrap();
    let limits = LimitTree::new(
        &backend,
        policy(
            "p",
            Gcra::new(Rate::new(1, Duration::from_millis(1_500))).burst(1),
        ),
    );
    assert!(limits.take("ada", 1).await.is_admitted());
    proxy.delay_replies(Duration::from_secs(1));
    let asked = std::time::Instant::now();
    let wait = limits.take("ada", 1).await.retry_after().unwrap();
    proxy.delay_replies(Duration::ZERO);
    assert!(asked.elapsed() >= Duration::from_secs(1) && wait <= Duration::from_millis(1_500));
    tokio::time::sleep_until((asked + wait + Duration::from_millis(500)).into()).await;
    assert!(
        limits.take("ada", 1).await.is_admitted(),
        "the store has room for it"
    );
}

/// Its parameters may let the key recover sooner.
#[tokio::test]
async fn charge_by_another_writer_clears_every_refusal_of_its_key() {
    let shared = Shared::new();
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let window = |count| policy("p", FixedWindow::new(Rate::new(count, 24 * HOUR)));
    let other = policy("other", FixedWindow::new(Rate::new(9, 24 * HOUR)));
    let both = LimitTree::new(
        &backend,
        PolicyTree::All(vec![window(3).into(), other.into()]),
    );
    let raised = LimitTree::new(&backend, window(5));
    assert!(both.take("ada", 3).await.is_admitted());
    for _ in 0..2 {
        assert!(!both.take("ada", 1).await.is_admitted());
    }
    assert_eq!(backend.stats().cached_refusals, 1);
    assert!(raised.take("ada", 1).await.is_admitted());
    let calls = backend.stats().calls;
    assert!(!both.take("ada", 1).await.is_admitted());
    assert_eq!(backend.stats().calls, calls + 1, "the store is asked again");
}

/// A refusal as of an instant that has passed says nothing about now, and the reverse.
#[tokio::test]
async fn decisions_as_of_another_instant_neither_use_nor_fill_the_cache() {
    let shared = Shared::new();
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let limits = LimitTree::new(
        &backend,
        policy("p", FixedWindow::new(Rate::new(1, 24 * HOUR))),
    );
    assert!(limits.take("ada", 1).await.is_admitted());
    let calls = limits.calls("ada", 1);
    let now = backend
        .now(&limits.prepared, &calls)
        .expect("a reply states the time");
    let refused_as_of = async || {
        let asked = backend.stats().calls;
        assert!(
            !backend
                .decide_as_of(&limits.prepared, &calls, now)
                .await
                .unwrap()
                .is_admitted()
        );
        assert_eq!(backend.stats().calls, asked + 1);
    };
    refused_as_of().await;
    assert!(!limits.take("ada", 1).await.is_admitted());
    assert_eq!(
        backend.stats().cached_refusals,
        0,
        "the one before was not cached"
    );
    assert!(!limits.take("ada", 1).await.is_admitted());
    assert_eq!(backend.stats().cached_refusals, 1);
    refused_as_of().await;
}

/// Where all that refuses is audited, each request is asked about; a kept refusal still says what
/// is audited.
#[tokio::test]
async fn what_an_audited_limit_would_refuse_is_neither_kept_nor_hidden() {
    let shared = Shared::new();
    let backend = builder(&shared).deny_cache(100).build().unwrap();
    let window = |name, count| policy(name, FixedWindow::new(Rate::new(count, 24 * HOUR)));
    let limits = LimitTree::new(
        &backend,
        PolicyTree::All(vec![
            window("new", 1).audit().into(),
            window("old", 4).into(),
        ]),
    );
    for n in 0..4 {
        let decision = limits.take("ada", 1).await;
        assert_eq!(
            (
                decision.is_admitted(),
                decision.statuses()[0].would_refuse()
            ),
            (true, n > 0)
        );
        assert_eq!(
            decision
                .statuses()
                .iter()
                .map(Status::charged)
                .collect::<Vec<_>>(),
            [u64::from(n == 0), 1]
        );
    }
    // The first call of all loads the script.
    assert_eq!(
        (backend.stats().cached_refusals, backend.stats().calls),
        (0, 5)
    );
    for kept in 0..3 {
        let refused = limits.take("ada", 1).await;
        assert_eq!((refused.is_admitted(), refused.binding()), (false, Some(1)));
        assert!(refused.statuses()[0].would_refuse() && !refused.statuses()[0].is_violated());
        assert_eq!(
            (backend.stats().cached_refusals, backend.stats().calls),
            (kept, 6)
        );
    }
}
