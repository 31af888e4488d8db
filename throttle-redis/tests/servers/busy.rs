//! A store that answers, while a process or a client sends many requests at once.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{LimitTree, policy};
use throttle_core::backend::Call;
use throttle_core::{
    Backend, BackendErrorKind, FixedWindow, Gcra, Key, Policy, PolicySet, Rate, SlidingLog,
    SlidingWindow, Timestamp,
};
use throttle_redis::{Cluster, Pool, RedisBackend, RedisBuilder, Single};
use throttle_test_servers::{Cluster as Servers, Server};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const LIMIT: u64 = 5;

/// Twice the default: on a loaded machine the server itself has to wait for its turn.
const DEADLINE: Duration = Duration::from_millis(50);

/// Runs the tests of this binary one at a time: the bursts of another test would take the
/// processors from this server.
async fn alone() -> tokio::sync::MutexGuard<'static, ()> {
    static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    ALONE.lock().await
}

fn single(server: &Server) -> RedisBuilder {
    RedisBackend::builder(Single::new(&server.url()).unwrap())
}

/// A window that does not end during a test.
fn five() -> Policy {
    policy(
        "five",
        FixedWindow::new(Rate::new(LIMIT, Duration::from_secs(3650 * 86_400))),
    )
}

async fn until_decided(limits: &LimitTree) {
    let start = Instant::now();
    while limits
        .backend
        .decide(&limits.prepared, &limits.calls("warm", 1))
        .await
        .is_err()
    {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the store does not decide"
        );
        sleep(Duration::from_millis(20)).await;
    }
}

/// The outcomes of many decisions.
#[derive(Debug, Default)]
struct Outcomes {
    admitted: u64,
    refused: u64,
    uncharged: u64,
    unknown: u64,
}

/// Starts `count` decisions at once, each in a task of its own.
async fn burst(limits: &Arc<LimitTree>, key: &'static str, count: usize) -> Outcomes {
    let mut tasks = JoinSet::new();
    for _ in 0..count {
        let limits = Arc::clone(limits);
        tasks.spawn(async move {
            limits
                .backend
                .decide(&limits.prepared, &limits.calls(key, 1))
                .await
        });
    }
    let mut outcomes = Outcomes::default();
    while let Some(decided) = tasks.join_next().await {
        match decided.unwrap() {
            Ok(decision) if decision.is_admitted() => outcomes.admitted += 1,
            Ok(_) => outcomes.refused += 1,
            Err(error) => {
                let kind = error.kind();
                assert!(
                    matches!(
                        kind,
                        BackendErrorKind::Saturated | BackendErrorKind::Timeout
                    ),
                    "{error:?}"
                );
                assert!(
                    kind != BackendErrorKind::Saturated || error.is_uncharged(),
                    "{error:?}"
                );
                if error.is_uncharged() {
                    outcomes.uncharged += 1;
                } else {
                    outcomes.unknown += 1;
                }
            }
        }
    }
    outcomes
}

/// The store admits exactly the limit, and does not count as broken.
async fn check_burst(limits: &Arc<LimitTree>, key: &'static str, count: usize) {
    let mut outcomes = burst(limits, key, count).await;
    assert_eq!(
        limits.backend.stats().breaker_openings,
        0,
        "{count} at once: {outcomes:?}"
    );
    assert!(outcomes.admitted <= LIMIT, "{count} at once: {outcomes:?}");
    // The store is asked again at once, and now admits what it did not charge in the burst.
    let (mut later, start) = (0, Instant::now());
    loop {
        match limits
            .backend
            .decide(&limits.prepared, &limits.calls(key, 1))
            .await
        {
            Ok(decision) if decision.is_admitted() => later += 1,
            Ok(_) => break,
            Err(error) => {
                assert!(start.elapsed() < Duration::from_secs(10), "{error}");
                outcomes.unknown += u64::from(!error.is_uncharged());
            }
        }
    }
    let seen = outcomes.admitted + later;
    assert!(
        seen <= LIMIT && seen + outcomes.unknown >= LIMIT,
        "{count} at once: {outcomes:?}, and {later} later"
    );
}

async fn check_bursts(builder: RedisBuilder) {
    let limits = Arc::new(LimitTree::new(
        &builder.deadline(DEADLINE).build().unwrap(),
        five(),
    ));
    until_decided(&limits).await;
    check_burst(&limits, "5000", 5_000).await;
    check_burst(&limits, "10000", 10_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_burst_opens_no_breaker() {
    let _alone = alone().await;
    let server = Server::start();
    check_bursts(single(&server).prefix("batched")).await;
    check_bursts(single(&server).prefix("unbatched").max_batch(1)).await;
    check_bursts(RedisBackend::builder(Pool::new(&server.url(), 4).unwrap()).prefix("pool")).await;
}

/// All tasks run in one thread, which reads its socket only after it has polled every task.
#[tokio::test]
async fn law_13_a_burst_in_one_thread_opens_no_breaker() {
    let _alone = alone().await;
    let server = Server::start();
    check_bursts(single(&server).prefix("batched")).await;
    check_bursts(single(&server).prefix("unbatched").max_batch(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_burst_on_a_cluster_opens_no_breaker() {
    let _alone = alone().await;
    let servers = Servers::start();
    let urls = servers.urls();
    let builder = || RedisBackend::builder(Cluster::new(urls.iter().map(String::as_str)).unwrap());
    check_bursts(builder().prefix("together").single_slot("x")).await;
    check_bursts(builder().prefix("spread").per_key_slot()).await;
}

/// The connection is still being opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_burst_at_the_start_opens_no_breaker() {
    let _alone = alone().await;
    let server = Server::start();
    let limits = Arc::new(LimitTree::new(
        &single(&server).deadline(DEADLINE).build().unwrap(),
        five(),
    ));
    check_burst(&limits, "key", 10_000).await;
}

/// One client within its limit starts a thousand heavy decisions at once. A decision on another
/// policy waits for at most `most` of them. This is counted and not timed, so that a loaded machine
/// does not look like a slow store.
async fn check_that_another_policy_waits_for(most: u64, builder: RedisBuilder, heavy: Policy) {
    let backend = builder
        .deadline(Duration::from_secs(4))
        .readable_keys()
        .build()
        .unwrap();
    let heavy = Arc::new(LimitTree::new(&backend, heavy));
    let other = Arc::new(LimitTree::new(
        &backend,
        policy("other", Gcra::new(Rate::per_second(1_000))),
    ));
    until_decided(&other).await;
    let mut greedy = JoinSet::new();
    for _ in 0..1_000 {
        let heavy = Arc::clone(&heavy);
        greedy.spawn(async move {
            drop(
                heavy
                    .backend
                    .decide(&heavy.prepared, &heavy.calls("greedy", 1))
                    .await,
            );
        });
    }
    let idle = backend.stats().decisions;
    while backend.stats().decisions == idle {
        sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..3 {
        let before = backend.stats().decisions;
        let decided = other
            .backend
            .decide(&other.prepared, &other.calls("innocent", 1))
            .await;
        let waited_for = backend.stats().decisions - before;
        assert!(decided.is_ok(), "{decided:?}");
        assert!(
            waited_for <= most,
            "it waited for {waited_for} others, and {most} are allowed"
        );
    }
    while greedy.join_next().await.is_some() {}
    assert_eq!(backend.stats().breaker_openings, 0);
}

/// A log that is nearly full: each decision reads, copies and writes all of it.
fn nearly_full(server: &Server, prefix: &str) -> Policy {
    let log = policy("log", SlidingLog::new(Rate::per_day(MOST_UNITS)));
    let algorithm = *log.algorithm();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros() as i64;
    let used = MOST_UNITS as i64 - 2_000;
    let take = |state, back| {
        algorithm
            .decide(state, Timestamp::from_micros(now - back), 1)
            .0
    };
    let value = (1..=used)
        .rev()
        .fold(algorithm.fresh(), take)
        .to_wire(&algorithm)
        .unwrap();
    let mut set = redis::cmd("SET");
    set.arg(format!("{prefix}{{all}}log:tgreedy"))
        .arg(value)
        .arg("PX")
        .arg(86_400_000);
    set.query::<()>(&mut server.connection()).unwrap();
    log
}

/// Units of the largest sliding log.
const MOST_UNITS: u64 = 10_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_client_of_a_long_log_delays_no_other_policy() {
    let _alone = alone().await;
    let server = Server::start();
    let log = nearly_full(&server, "batched");
    check_that_another_policy_waits_for(200, single(&server).prefix("batched"), log).await;
    // An eighth of the deadline is 250 decisions; as many again may end before the test notices.
    let log = nearly_full(&server, "unbatched");
    check_that_another_policy_waits_for(600, single(&server).prefix("unbatched").max_batch(1), log)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_13_a_client_of_a_fine_window_delays_no_other_policy() {
    let _alone = alone().await;
    let server = Server::start();
    let window = policy(
        "window",
        SlidingWindow::new(Rate::per_day(1_000_000)).buckets(1_000),
    );
    check_that_another_policy_waits_for(200, single(&server), window).await;
}

#[tokio::test]
async fn a_sliding_log_too_large_for_the_store_is_refused_when_it_is_prepared() {
    let server = Server::start();
    let backend = single(&server).build().unwrap();
    let prepare = |policy: Policy| backend.prepare(PolicySet::new(policy).unwrap());
    assert!(prepare(policy("log", SlidingLog::new(Rate::per_day(MOST_UNITS)))).is_ok());
    let error = prepare(policy(
        "log",
        SlidingLog::new(Rate::per_day(MOST_UNITS + 1)),
    ))
    .unwrap_err();
    assert_eq!(
        (error.policy(), error.field(), error.value()),
        (Some("log"), "rate count", "10001")
    );
    assert!(
        error.to_string().contains("at most 10000") && error.to_string().contains("SlidingWindow"),
        "{error}"
    );
    let tiers = Policy::tiered(
        "plan",
        [
            ("free", SlidingLog::new(Rate::per_day(10))),
            ("pro", SlidingLog::new(Rate::per_day(50_000))),
        ],
    );
    assert_eq!(prepare(tiers.unwrap()).unwrap_err().policy(), Some("plan"));
}

#[tokio::test]
async fn own_parameters_too_large_for_the_store_are_refused_when_they_decide() {
    let server = Server::start();
    let backend = single(&server)
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap();
    let log = policy("log", SlidingLog::new(Rate::per_day(10)));
    let set = Arc::new(
        backend
            .prepare(PolicySet::new(log.clone()).unwrap())
            .unwrap(),
    );
    for (units, is_decided) in [(MOST_UNITS, true), (MOST_UNITS + 1, false)] {
        let own = log.own(SlidingLog::new(Rate::per_day(units))).unwrap();
        let decided = backend
            .decide(&set, &[Call::from(Key::from("ada")).under(own)])
            .await;
        assert_eq!(decided.is_ok(), is_decided, "{units}");
        assert!(decided.err().is_none_or(|error| error.is_uncharged()));
    }
}
