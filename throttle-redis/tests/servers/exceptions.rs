//! Exceptions for single keys, on a real server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{LimitTree, builder, policy};
use throttle_core::backend::{Call, Exception, KeyStep, Treatment};
use throttle_core::{
    AnyCharge, Backend, Clock, FixedWindow, Gcra, IntoAlgorithm, Key, LeakyBucket, ManualClock,
    PolicyTree, Rate, SlidingLog, Timestamp,
};
use throttle_redis::{Cluster, RedisBackend};
use throttle_test_servers::{Cluster as Servers, Shared};

const DAY: Duration = Duration::from_secs(86_400);

/// Nine a day.
fn limits(backend: &RedisBackend) -> LimitTree {
    LimitTree::new(backend, policy("p", FixedWindow::new(Rate::per_day(9))))
}

async fn except(limits: &LimitTree, key: &str, exception: Option<Exception>) -> Result<(), String> {
    let set = limits
        .backend
        .run(
            &limits.prepared,
            0,
            KeyStep::Except(Key::from(key), exception),
        )
        .await;
    set.map(drop).map_err(|error| {
        std::error::Error::source(&error)
            .expect("a reason")
            .to_string()
    })
}

/// On the server's clock, which is that of this machine.
fn from_now(treatment: Treatment, time: Duration) -> Option<Exception> {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    Some(Exception {
        treatment,
        until: Timestamp::EPOCH + now + time,
    })
}

#[tokio::test]
async fn another_process_decides_by_an_exception_from_the_next_decision_on() {
    let shared = Shared::new();
    let [one, other] = [(); 2].map(|()| limits(&builder(&shared).build().unwrap()));
    assert_eq!(other.take("ada", 6).await.remaining(), 3);
    except(&one, "ada", from_now(Treatment::Blocked, DAY))
        .await
        .unwrap();
    let blocked = other.take("ada", 1).await;
    assert!(!blocked.is_admitted() && blocked.statuses()[0].is_excepted());
    assert!(blocked.retry_after().unwrap() > DAY - Duration::from_secs(60));
    except(&one, "ada", from_now(Treatment::Exempt, DAY))
        .await
        .unwrap();
    for _ in 0..20 {
        assert_eq!(other.take("ada", 9).await.remaining(), 9);
    }
    let held = one
        .backend
        .inspect(
            &policy("p", FixedWindow::new(Rate::per_day(9))),
            &Key::from("ada"),
        )
        .await
        .unwrap();
    assert_eq!(
        (held.fields[1], held.decision.statuses()[0].is_excepted()),
        (("used", 6), true)
    );
    except(&one, "ada", None).await.unwrap();
    assert_eq!(other.take("ada", 1).await.remaining(), 2);
}

#[tokio::test]
async fn deny_cache_of_another_process_ends_a_second_after_an_exception_is_set() {
    let shared = Shared::new();
    let [one, other] = [(); 2].map(|()| limits(&builder(&shared).deny_cache(100).build().unwrap()));
    assert!(other.take("ada", 9).await.is_admitted() && !other.take("ada", 1).await.is_admitted());
    except(&one, "ada", from_now(Treatment::Exempt, DAY))
        .await
        .unwrap();
    let set = Instant::now();
    while !other.take("ada", 1).await.is_admitted() {
        assert!(
            set.elapsed() < Duration::from_secs(2),
            "it asks the store again"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(other.backend.stats().cached_refusals > 0);
    // The process that lifts it sees that at once.
    except(&other, "ada", from_now(Treatment::Blocked, DAY))
        .await
        .unwrap();
    assert!(!other.take("ada", 1).await.is_admitted());
    let asked = other.backend.stats().calls;
    assert!(!other.take("ada", 1).await.is_admitted());
    assert_eq!(
        other.backend.stats().calls,
        asked,
        "a refusal of a blocked key is kept, too"
    );
    except(&other, "ada", from_now(Treatment::Exempt, DAY))
        .await
        .unwrap();
    assert!(other.take("ada", 1).await.is_admitted());
}

#[tokio::test]
async fn exception_that_is_over_already_is_an_error() {
    let shared = Shared::new();
    let clock = ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000));
    let limits = limits(&builder(&shared).clock(clock.clone()).build().unwrap());
    let (treatment, until) = (Treatment::Exempt, clock.now());
    let error = except(&limits, "ada", Some(Exception { treatment, until })).await;
    let error = error.unwrap_err();
    assert!(error.contains("over already"), "{error}");
}

#[tokio::test]
async fn exception_that_is_over_leaves_nothing_behind() {
    let shared = Shared::new();
    let limits = limits(
        &builder(&shared)
            .kept_beyond_reset(Duration::from_millis(1))
            .build()
            .unwrap(),
    );
    let asked = Instant::now();
    except(
        &limits,
        "ada",
        from_now(Treatment::Blocked, Duration::from_secs(1)),
    )
    .await
    .unwrap();
    assert!(!limits.take("ada", 1).await.is_admitted());
    while !shared.own_keys().is_empty() {
        assert!(
            asked.elapsed() < Duration::from_secs(15),
            "its value expires"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn exceptions_of_a_policy_are_listed_up_to_a_bound() {
    let shared = Shared::new();
    let limits = limits(&builder(&shared).build().unwrap());
    let other = LimitTree::new(
        &limits.backend,
        policy("pp", FixedWindow::new(Rate::per_day(9))),
    );
    except(&other, "ada", from_now(Treatment::Blocked, DAY))
        .await
        .unwrap();
    for n in 0..1_200 {
        assert!(limits.take(&format!("free{n}"), 1).await.is_admitted());
        let raised = policy("p", FixedWindow::new(Rate::per_day(9)))
            .own(FixedWindow::new(Rate::per_day(90)))
            .unwrap();
        let treatment = if n % 2 == 0 {
            Treatment::Exempt
        } else {
            Treatment::Limit(raised)
        };
        except(&limits, &n.to_string(), from_now(treatment, DAY))
            .await
            .unwrap();
    }
    let list = async |of: &LimitTree, most| {
        of.backend
            .run(&of.prepared, 0, KeyStep::Exceptions { most })
            .await
            .unwrap()
    };
    let listed = list(&limits, 10_000).await;
    assert_eq!(listed.len(), 1_200);
    assert_eq!(
        listed
            .iter()
            .filter(|key| key.exception.treatment == Treatment::Exempt)
            .count(),
        600
    );
    assert_eq!(
        (
            list(&limits, 7).await.len(),
            list(&other, 10_000).await.len()
        ),
        (7, 1)
    );
}

/// A request about two keys in different slots, of which one is treated otherwise.
#[tokio::test]
async fn keys_on_several_servers_have_exceptions_of_their_own() {
    let urls = Servers::shared().urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let spread = RedisBackend::builder(cluster)
        .prefix("exceptions")
        .per_key_slot()
        .readable_keys();
    let backend = spread.deadline(Duration::from_secs(10)).build().unwrap();
    let named = |name| policy(name, FixedWindow::new(Rate::per_day(9))).into();
    let limits = LimitTree::new(&backend, PolicyTree::All(vec![named("a"), named("b")]));
    let calls = ["ada", "bob"].map(|key| Call::from(Key::from(key)));
    let left = async || {
        let decision = backend.decide(&limits.prepared, &calls).await.unwrap();
        decision
            .is_admitted()
            .then(|| [0, 1].map(|place| decision.statuses()[place].remaining()))
    };
    assert_eq!(left().await, Some([8, 8]));
    except(&limits, "ada", from_now(Treatment::Blocked, DAY))
        .await
        .unwrap();
    assert_eq!(left().await, None);
    except(&limits, "ada", from_now(Treatment::Exempt, DAY))
        .await
        .unwrap();
    assert_eq!(
        left().await,
        Some([9, 7]),
        "a refused request was charged nowhere"
    );
    let listed = backend
        .run(&limits.prepared, 0, KeyStep::Exceptions { most: 9 })
        .await
        .unwrap();
    assert_eq!(
        listed
            .iter()
            .map(|key| key.key.as_str())
            .collect::<Vec<_>>(),
        ["exceptions{tada}a:"]
    );
    except(&limits, "ada", None).await.unwrap();
    assert_eq!(left().await, Some([7, 6]));
    assert!(
        backend
            .run(&limits.prepared, 0, KeyStep::Exceptions { most: 9 })
            .await
            .unwrap()
            .is_empty()
    );
}

/// The keys are in different slots, so each of them reserves by itself.
#[tokio::test]
async fn law_05_limit_of_an_exception_is_charged_only_where_its_policy_is() {
    let urls = Servers::shared().urls();
    let clock = ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000));
    let until = clock.now().after_micros(3_600_000_000);
    for (number, limit) in [
        FixedWindow::new(Rate::per_hour(50)).into_algorithm(),
        Gcra::new(Rate::per_hour(50)).burst(50).into_algorithm(),
        SlidingLog::new(Rate::per_hour(50)).into_algorithm(),
        LeakyBucket::new(Rate::per_hour(50))
            .max_wait(Duration::from_secs(3_600))
            .into_algorithm(),
    ]
    .into_iter()
    .enumerate()
    {
        let limit = limit.unwrap();
        let cluster = Cluster::new(urls.iter().map(String::as_str)).unwrap();
        let backend = RedisBackend::builder(cluster)
            .per_key_slot()
            .prefix(format!("except-any-{number}-{}", std::process::id()))
            .clock(clock.clone())
            .deadline(Duration::from_secs(5))
            .build()
            .unwrap();
        let window = |name: &str, units| policy(name, FixedWindow::new(Rate::per_hour(units)));
        let members = |own| vec![window("own", own).into(), window("pool", 100).into()];
        let any = LimitTree::new(&backend, PolicyTree::Any(members(10), AnyCharge::First));
        let all = LimitTree::new(&backend, PolicyTree::All(members(10)));
        let exception = Exception {
            treatment: Treatment::Limit(Arc::new(limit)),
            until,
        };
        let pool = Key::from("everybody");
        backend
            .run(
                &any.prepared,
                1,
                KeyStep::Except(pool.clone(), Some(exception)),
            )
            .await
            .unwrap();
        let calls = |cost| ["ada", "everybody"].map(|key| Call::from(Key::from(key)).costing(cost));
        let decide = async |limits: &LimitTree, cost| {
            let decision = backend
                .decide(&limits.prepared, &calls(cost))
                .await
                .unwrap();
            decision
                .statuses()
                .iter()
                .map(|status| (status.charged(), status.remaining()))
                .collect::<Vec<_>>()
        };
        let all_left = decide(&any, 0).await[1].1;
        for left in (0..10).rev() {
            assert_eq!(
                decide(&any, 1).await,
                [(1, left), (0, all_left)],
                "{limit:?}"
            );
        }
        assert_eq!(decide(&all, 1).await, [(0, 0), (0, all_left)], "{limit:?}");
        // The next member pays, and is charged once.
        assert_eq!(decide(&any, 1).await[1].0, 1);
        assert_eq!(decide(&any, 0).await[1].1, all_left - 1, "{limit:?}");
        backend.reset_all("").await.unwrap();
    }
}
