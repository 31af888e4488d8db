//! Bans, on a real server.

use std::env;
use std::io::{BufRead, BufReader, Write, stderr, stdin};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{LimitTree, builder, policy};
use throttle_core::backend::{Ban, Exception, KeyStep, Treatment};
use throttle_core::{Backend, Clock, FixedWindow, Key, ManualClock, Rate, Timestamp};
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Shared;

const MINUTES: Duration = Duration::from_secs(600);

/// Nine a day.
fn limits(backend: &RedisBackend) -> LimitTree {
    LimitTree::new(backend, policy("p", FixedWindow::new(Rate::per_day(9))))
}

/// The level of the ban that a strike has begun.
async fn strike(limits: &LimitTree, key: &str, ban: &Ban) -> Option<u8> {
    let begun = limits
        .backend
        .run(&limits.prepared, 0, KeyStep::Strike(Key::from(key), *ban))
        .await
        .unwrap()
        .pop()?
        .exception;
    let Exception {
        treatment: Treatment::Struck(strikes),
        ..
    } = begun
    else {
        panic!("{begun:?}")
    };
    Some(strikes.level)
}

const PROCESSES: usize = 8;
/// What a process that strikes is given: the server, and the prefix of the keys.
const STRIKER: &str = "THROTTLE_TEST_STRIKER";

/// This program starts itself again as the processes, which strike whenever they are given an
/// instant.
#[tokio::test]
async fn law_06_strikes_of_eight_processes_begin_one_ban_for_each_crossing() {
    let ban = Ban::after(5).lasting(MINUTES);
    let at = |clock: &ManualClock, url: &str, prefix: &str| {
        let redis = RedisBackend::builder(Single::new(url).unwrap())
            .prefix(prefix)
            .clock(clock.clone());
        limits(&redis.deadline(Duration::from_secs(10)).build().unwrap())
    };
    let clock = ManualClock::new(Timestamp::from_micros(1_790_000_000_000_000));
    if let Ok(given) = env::var(STRIKER) {
        let (url, prefix) = given.split_once(' ').unwrap();
        let limits = at(&clock, url, prefix);
        limits.left("eve").await;
        writeln!(stderr(), "ready").unwrap();
        for now in stdin().lines() {
            clock.set(Timestamp::from_micros(now.unwrap().parse().unwrap()));
            let mut begun = String::new();
            for _ in 0..25 {
                begun.extend(
                    strike(&limits, "eve", &ban)
                        .await
                        .map(|level| format!("{level} ")),
                );
            }
            writeln!(stderr(), "{begun}").unwrap();
        }
        return;
    }
    let shared = Shared::new();
    let limits = at(&clock, &shared.url(), shared.prefix());
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut again = Command::new(env::current_exe().unwrap());
            again.args([
                "--exact",
                "--nocapture",
                "bans::law_06_strikes_of_eight_processes_begin_one_ban_for_each_crossing",
            ]);
            again
                .env(STRIKER, format!("{} {}", shared.url(), shared.prefix()))
                .stdout(Stdio::null());
            let mut process = again
                .stdin(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(process.stderr.take().unwrap()).lines();
            (
                process.stdin.take().unwrap(),
                lines.map(Result::unwrap),
                process,
            )
        })
        .collect();
    assert!(
        processes
            .iter_mut()
            .all(|(_, lines, _)| lines.next().as_deref() == Some("ready"))
    );
    for level in 1..=3_u8 {
        processes
            .iter_mut()
            .for_each(|(input, ..)| writeln!(input, "{}", clock.now().as_micros()).unwrap());
        let begun: String = processes
            .iter_mut()
            .map(|(_, lines, _)| lines.next().unwrap())
            .collect();
        assert_eq!(begun, format!("{level} "));
        let refused = limits.take("eve", 1).await;
        let length = MINUTES * (1 << (level - 1));
        assert_eq!(
            (refused.statuses()[0].is_banned(), refused.retry_after()),
            (true, Some(length))
        );
        clock.set(clock.now() + length);
        assert!(limits.take("eve", 1).await.is_admitted());
    }
    for (input, _, mut process) in processes {
        drop(input);
        assert!(process.wait().unwrap().success());
    }
}

#[tokio::test]
async fn banned_keys_are_listed_and_lifted_and_cost_a_deny_cache_no_call() {
    let shared = Shared::new();
    let [one, other] = [(); 2].map(|()| limits(&builder(&shared).deny_cache(100).build().unwrap()));
    assert_eq!(other.take("eve", 6).await.remaining(), 3);
    assert_eq!(strike(&one, "eve", &Ban::after(2)).await, None);
    assert_eq!(
        other.take("eve", 1).await.remaining(),
        2,
        "a strike is no charge and no refusal"
    );
    assert_eq!(strike(&one, "eve", &Ban::after(2)).await, Some(1));
    assert!(other.take("eve", 1).await.statuses()[0].is_banned());
    let asked = other.backend.stats().calls;
    assert!(other.take("eve", 1).await.statuses()[0].is_banned());
    assert_eq!(other.backend.stats().calls, asked);
    let listed = one
        .backend
        .run(&one.prepared, 0, KeyStep::Exceptions { most: 9 })
        .await
        .unwrap();
    assert!(
        matches!(&listed[..], [key] if matches!(key.exception.treatment, Treatment::Struck(_))),
        "{listed:?}"
    );
    other
        .backend
        .run(&other.prepared, 0, KeyStep::Except(Key::from("eve"), None))
        .await
        .unwrap();
    assert_eq!(other.take("eve", 1).await.remaining(), 1);
    // A key that is struck, and not banned, has its refusals kept, too.
    assert_eq!(strike(&other, "eve", &Ban::after(2)).await, None);
    assert!(!other.take("eve", 9).await.is_admitted());
    let asked = other.backend.stats().calls;
    assert!(!other.take("eve", 9).await.is_admitted());
    assert_eq!(
        (
            other.backend.stats().calls,
            strike(&other, "eve", &Ban::after(2)).await
        ),
        (asked, Some(1))
    );
    assert!(
        other.take("eve", 9).await.statuses()[0].is_banned(),
        "not by what was kept"
    );
}

#[tokio::test]
async fn bans_end_by_themselves_and_leave_nothing_behind() {
    let shared = Shared::new();
    let limits = limits(
        &builder(&shared)
            .kept_beyond_reset(Duration::from_millis(1))
            .build()
            .unwrap(),
    );
    let short = Duration::from_millis(300);
    let ban = Ban::after(1)
        .lasting(short)
        .forgotten_after(short)
        .within(short);
    assert_eq!(strike(&limits, "eve", &ban).await, Some(1));
    let begun = std::time::Instant::now();
    assert!(limits.take("eve", 0).await.statuses()[0].is_banned());
    while !shared.own_keys().is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(15),
            "its value expires"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() >= 2 * short, "the level is remembered");
}
