//! Every key expires by itself, and none expires early.

use std::time::{Duration, Instant};

use crate::common::{LimitTree, builder, policy};
use throttle_core::{
    CalendarQuota, FixedWindow, Gcra, IntervalBucket, IntoAlgorithm, Key, LeakyBucket, LeakyMeter,
    Policy, PolicyTree, Rate, SlidingLog, SlidingWindow, TokenBucket,
};
use throttle_test_servers::{Server, Shared};

/// A key is kept for up to so long beyond its reset.
const STEP: Duration = Duration::from_secs(5);

/// The server's time, and when it expires a key, in µs. The server reads both in one step, so the
/// answer does not depend on how busy the machine is.
fn expiry(server: &Server, key: &str) -> (i64, Option<i64>) {
    const SCRIPT: &str = "local now, left = redis.call('TIME'), redis.call('PTTL', KEYS[1])
        return {now[1], now[2], left}";
    let (seconds, micros, left): (i64, i64, i64) = server.query(&["EVAL", SCRIPT, "1", key]);
    let now = seconds * 1_000_000 + micros;
    (now, (left >= 0).then_some(now + left * 1_000))
}

fn short() -> Vec<Policy> {
    fn named(name: &str, algorithm: impl IntoAlgorithm) -> Policy {
        policy(name, algorithm)
    }
    let rate = Rate::new(10, Duration::from_millis(700));
    vec![
        named("gcra", Gcra::new(rate)),
        named("token", TokenBucket::new(rate)),
        named("meter", LeakyMeter::new(rate)),
        named(
            "interval",
            IntervalBucket::new(10).refill(3, Duration::from_millis(200)),
        ),
        named("fixed", FixedWindow::new(rate)),
        named("window", SlidingWindow::new(rate)),
        named("log", SlidingLog::new(rate)),
        named(
            "rolling",
            CalendarQuota::rolling(10, Duration::from_millis(700)),
        ),
        named(
            "shaper",
            LeakyBucket::new(rate).max_wait(Duration::from_millis(700)),
        ),
    ]
}

#[tokio::test]
async fn every_key_expires_when_it_is_idle_and_none_before() {
    let server = Server::start();
    let single = throttle_redis::Single::new(&server.url()).unwrap();
    let builder = throttle_redis::RedisBackend::builder(single).deadline(Duration::from_secs(5));
    let backend = builder.kept_beyond_reset(Duration::ZERO).build().unwrap();
    let members: Vec<PolicyTree> = short().into_iter().map(Into::into).collect();
    let all = LimitTree::new(&backend, PolicyTree::All(members));
    let mut longest = Duration::ZERO;
    for key in 0..200 {
        let decision = all.take(&key.to_string(), 1 + key % 10).await;
        assert!(decision.is_admitted());
        longest = longest.max(decision.reset_after());
    }
    let receipt = all.charge("refunded", 5).await.unwrap();
    all.refund(receipt).await;
    assert_eq!(server.keys_without_ttl(), Vec::<String>::new());
    let used = Instant::now();
    assert!(server.dbsize() > 0);
    // None is forgotten early: a key that is reported as used is still there.
    for key in ["0", "9", "57"] {
        for policy in short() {
            let inspected = backend.inspect(&policy, &Key::from(key)).await.unwrap();
            let reset = inspected.decision.reset_after();
            let reset_at = inspected
                .now
                .after_micros(reset.as_micros() as u64)
                .as_micros();
            // The server counts whole milliseconds.
            let (now, expires) = expiry(&server, &inspected.name);
            assert!(
                expires.unwrap_or(now) + 2_000 >= reset_at,
                "{} of {inspected}",
                policy.name()
            );
            let expires_in = inspected.expires_in.unwrap_or_default();
            assert!(
                expires_in <= reset + STEP + Duration::from_millis(50),
                "{} of {inspected}",
                policy.name()
            );
        }
    }
    while server.dbsize() > 0 {
        // The server searches for expired keys ten times a second.
        assert!(
            used.elapsed() < longest + STEP + Duration::from_secs(10),
            "{} keys stay",
            server.dbsize()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Of 60 charges, each of which moves the reset on by half a second, some seven renew the expiry.
/// The others leave it as it is.
#[tokio::test]
async fn law_09_expiry_that_is_not_renewed_is_no_earlier_than_the_reset() {
    let shared = Shared::new();
    let builder = builder(&shared).kept_beyond_reset(Duration::ZERO);
    let backend = builder.build().unwrap();
    let half_a_second = policy("p", Gcra::new(Rate::per_second(2)).burst(100));
    let limits = LimitTree::new(&backend, half_a_second.clone());
    let (mut renewals, mut last) = (0, None);
    for _ in 0..60 {
        assert!(limits.take("ada", 1).await.is_admitted());
        let held = backend.inspect(&half_a_second, &Key::from("ada")).await;
        let held = held.unwrap();
        let expires_in = held.expires_in.expect("an expiry");
        let (_, expires) = expiry(&shared, &held.name);
        let expires = expires.expect("an expiry");
        // The server counts whole milliseconds.
        let reset = held.decision.reset_after();
        assert!(
            expires + 2_000 >= held.now.after_micros(reset.as_micros() as u64).as_micros(),
            "{held}"
        );
        assert!(expires_in <= reset + STEP, "{held}");
        if last.is_none_or(|last| expires > last + 1_000_000) {
            renewals += 1;
        }
        last = Some(expires);
    }
    assert!((6..=8).contains(&renewals), "{renewals} renewals");
}

#[tokio::test]
async fn a_key_is_inspected_without_being_touched() {
    let shared = Shared::new();
    let backend = builder(&shared).readable_keys().build().unwrap();
    let day = policy("per-user", FixedWindow::new(Rate::per_day(10)));
    let limits = LimitTree::new(&backend, day.clone());
    let key = Key::from("ada");
    let unused = backend.inspect(&day, &key).await.unwrap();
    assert_eq!(
        (
            unused.value.as_ref(),
            unused.expires_in,
            unused.decision.remaining()
        ),
        (None, None, 10)
    );
    assert!(limits.take("ada", 4).await.is_admitted());
    let used = backend.inspect(&day, &key).await.unwrap();
    assert_eq!(
        used.name,
        format!("{}{{all}}per-user:tada", shared.prefix())
    );
    assert_eq!(used.decision.remaining(), 6);
    let [("window_start", start), ("used", 4)] = used.fields[..] else {
        panic!("{:?}", used.fields)
    };
    assert_eq!(start % 86_400_000_000, 0);
    assert!(used.expires_in.unwrap() >= used.decision.reset_after());
    assert!(used.to_string().starts_with("6 left"), "{used}");
    assert_eq!(
        backend
            .inspect(&day, &key)
            .await
            .unwrap()
            .decision
            .remaining(),
        6,
        "looking takes nothing"
    );
}

/// Tags separate backends that share a prefix.
#[tokio::test]
async fn forgetting_everything_leaves_what_is_under_other_tags() {
    let shared = Shared::new();
    let under = |tag: &str| {
        let backend = crate::common::builder(&shared)
            .single_slot(tag)
            .build()
            .unwrap();
        LimitTree::new(
            &backend,
            policy(
                "p",
                FixedWindow::new(Rate::new(10, Duration::from_secs(3650 * 86_400))),
            ),
        )
    };
    let (one, other) = (under("one"), under("other"));
    assert!(one.take("key", 4).await.is_admitted() && other.take("key", 4).await.is_admitted());
    throttle_core::Backend::reset_all(&one.backend, "")
        .await
        .unwrap();
    assert_eq!((one.left("key").await, other.left("key").await), (10, 6));
}

#[tokio::test]
async fn an_inspected_value_names_its_numbers() {
    let shared = Shared::new();
    let backend = builder(&shared).build().unwrap();
    let rate = Rate::per_hour(10);
    let hour = Duration::from_secs(3_600);
    let named: [(Policy, &[&str]); 8] = [
        (
            policy("gcra", Gcra::new(rate)),
            &["arrival", "arrival_part"],
        ),
        (
            policy("token", TokenBucket::new(rate)),
            &["last", "grains_left"],
        ),
        (
            policy("meter", LeakyMeter::new(rate)),
            &["last", "grains_owed"],
        ),
        (
            policy("shaper", LeakyBucket::new(rate).max_wait(hour)),
            &["last", "next_slot", "next_slot_part"],
        ),
        (
            policy("interval", IntervalBucket::new(10).refill(3, hour)),
            &["interval_start", "tokens"],
        ),
        (
            policy("quota", CalendarQuota::monthly(10)),
            &["window_start", "used"],
        ),
        (
            policy("window", SlidingWindow::new(rate).buckets(2)),
            &["last", "used", "used", "used"],
        ),
        (
            policy("log", SlidingLog::new(rate)),
            &["used", "at", "units", "at", "units"],
        ),
    ];
    for (policy, names) in named {
        let limits = LimitTree::new(&backend, policy.clone());
        for _ in 0..2 {
            assert!(limits.take("ada", 2).await.is_admitted());
        }
        let held = backend.inspect(&policy, &Key::from("ada")).await.unwrap();
        assert_eq!(
            held.fields
                .iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>(),
            names,
            "{}",
            policy.name()
        );
        assert!(
            held.now.as_micros() > 1_700_000_000_000_000,
            "the server's time"
        );
        assert!(held.to_string().contains(", forgotten in "), "{held}");
    }
}

/// The server lists keys some hundred at a time.
#[tokio::test]
async fn forgetting_everything_goes_through_all_keys() {
    let server = Server::start();
    let backend = throttle_redis::RedisBackend::new(&server.url()).unwrap();
    server.command(&["DEBUG", "POPULATE", "3000", "throttle{all}p"]);
    server.command(&["SET", "throttle{all}q:kept", "value"]);
    throttle_core::Backend::reset_all(&backend, "p")
        .await
        .unwrap();
    assert_eq!(server.dbsize(), 1);
}
