//! Bans, on a real server.

mod common;

use std::time::Duration;

use common::{LimitTree, builder, policy};
use throttle_core::backend::{Ban, Exception, Treatment};
use throttle_core::{Backend, Clock, FixedWindow, Key, ManualClock, Rate, Timestamp};
use throttle_redis::{Cluster, RedisBackend};
use throttle_test_servers::{Cluster as Servers, Shared};

const MINUTES: Duration = Duration::from_secs(600);

/// Nine a day.
fn limits(backend: &RedisBackend) -> LimitTree {
    LimitTree::new(backend, policy("p", FixedWindow::new(Rate::per_day(9))))
}

/// The level of the ban that a strike has begun.
async fn strike(limits: &LimitTree, key: &str, ban: &Ban) -> Option<u8> {
    let begun = limits.backend.strike(&limits.prepared, 0, &Key::from(key), ban).await.unwrap()?;
    let Exception { treatment: Treatment::Struck(strikes), .. } = begun else { panic!("{begun:?}") };
    Some(strikes.level)
}

/// Each has connections of its own, as processes do.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn law_06_strikes_of_eight_processes_begin_one_ban_for_each_crossing() {
    let shared = Shared::new();
    let clock = ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000));
    let processes: Vec<_> =
        (0..8).map(|_| std::sync::Arc::new(limits(&builder(&shared).clock(clock.clone()).build().unwrap()))).collect();
    let ban = Ban::after(5).lasting(MINUTES);
    for level in 1..=3_u8 {
        let striking = processes.iter().map(|process| {
            let process = std::sync::Arc::clone(process);
            tokio::spawn(async move {
                let mut begun = Vec::new();
                for _ in 0..25 {
                    begun.extend(strike(&process, "eve", &ban).await);
                }
                begun
            })
        });
        let mut begun = Vec::new();
        for striking in striking.collect::<Vec<_>>() {
            begun.extend(striking.await.unwrap());
        }
        assert_eq!(begun, [level]);
        let refused = processes[7].take("eve", 1).await;
        let length = MINUTES * (1 << (level - 1));
        assert_eq!((refused.statuses()[0].is_banned(), refused.retry_after()), (true, Some(length)));
        clock.set(clock.now() + length);
        assert!(processes[3].take("eve", 1).await.is_admitted());
    }
}

#[tokio::test]
async fn banned_keys_are_listed_and_lifted_and_cost_a_deny_cache_no_call() {
    let shared = Shared::new();
    let [one, other] = [(); 2].map(|()| limits(&builder(&shared).deny_cache(100).build().unwrap()));
    assert_eq!(other.take("eve", 6).await.remaining(), 3);
    assert_eq!(strike(&one, "eve", &Ban::after(2)).await, None);
    assert_eq!(other.take("eve", 1).await.remaining(), 2, "a strike is no charge and no refusal");
    assert_eq!(strike(&one, "eve", &Ban::after(2)).await, Some(1));
    assert!(other.take("eve", 1).await.statuses()[0].is_banned());
    let asked = other.backend.stats().calls;
    assert!(other.take("eve", 1).await.statuses()[0].is_banned());
    assert_eq!(other.backend.stats().calls, asked);
    let listed = one.backend.exceptions(&one.prepared, 0, 9).await.unwrap();
    assert!(matches!(&listed[..], [key] if matches!(key.exception.treatment, Treatment::Struck(_))), "{listed:?}");
    other.backend.except(&other.prepared, 0, &Key::from("eve"), None).await.unwrap();
    assert_eq!(other.take("eve", 1).await.remaining(), 1);
    // A key that is struck, and not banned, has its refusals kept, too.
    assert_eq!(strike(&other, "eve", &Ban::after(2)).await, None);
    assert!(!other.take("eve", 9).await.is_admitted());
    let asked = other.backend.stats().calls;
    assert!(!other.take("eve", 9).await.is_admitted());
    assert_eq!((other.backend.stats().calls, strike(&other, "eve", &Ban::after(2)).await), (asked, Some(1)));
    assert!(other.take("eve", 9).await.statuses()[0].is_banned(), "not by what was kept");
}

#[tokio::test]
async fn bans_end_by_themselves_and_leave_nothing_behind() {
    let shared = Shared::new();
    let limits = limits(&builder(&shared).kept_beyond_reset(Duration::from_millis(1)).build().unwrap());
    let short = Duration::from_millis(300);
    let ban = Ban::after(1).lasting(short).forgotten_after(short).within(short);
    assert_eq!(strike(&limits, "eve", &ban).await, Some(1));
    let begun = std::time::Instant::now();
    assert!(limits.take("eve", 0).await.statuses()[0].is_banned());
    while !shared.own_keys().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(5), "its value expires");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() >= 2 * short, "the level is remembered");
}

#[tokio::test]
async fn keys_of_a_cluster_are_banned_where_they_are() {
    let urls = Servers::shared().urls();
    let cluster = Cluster::new(urls.iter().map(String::as_str)).unwrap();
    let spread = RedisBackend::builder(cluster).prefix("bans").per_key_slot();
    let limits = limits(&spread.deadline(Duration::from_secs(10)).build().unwrap());
    for key in 0..30 {
        assert_eq!(strike(&limits, &key.to_string(), &Ban::after(1)).await, Some(1));
        assert!(limits.take(&key.to_string(), 1).await.statuses()[0].is_banned());
    }
    assert!(limits.take("ada", 1).await.is_admitted());
    assert_eq!(limits.backend.exceptions(&limits.prepared, 0, 99).await.unwrap().len(), 30);
}
