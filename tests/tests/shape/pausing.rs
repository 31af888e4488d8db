//! A pause holds every unit of a call, whatever has decided about it.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use throttle_tower::shape::Shaper;
use throttle_tower::{Key, OnError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{MS, Remote, over, poll, ten};

#[tokio::test(start_paused = true)]
async fn shape_calls_keep_the_intervals_of_their_units_after_a_pause() {
    async fn check(shaper: Shaper, key: Key) {
        let start = Instant::now();
        shaper.pause(key.clone(), Duration::from_secs(1));
        // A call that is dropped gives back all of its units.
        assert!(
            timeout(100 * MS, shaper.schedule(key.clone(), 4))
                .await
                .is_err()
        );
        let mut leaving = JoinSet::new();
        for cost in [3, 2, 1] {
            let (shaper, key) = (shaper.clone(), key.clone());
            leaving.spawn(async move {
                shaper.schedule(key, cost).await.unwrap();
                (cost, start.elapsed().as_millis())
            });
        }
        let mut left = leaving.join_all().await;
        left.sort_unstable_by_key(|(_, at)| *at);
        // A store is asked when the pause is over.
        for ((cost, at), (expected, due)) in
            left.into_iter().zip([(3, 1_000), (2, 1_300), (1, 1_500)])
        {
            assert!(
                cost == expected && (due..=due + 2).contains(&at),
                "{key:?}: {cost} at {at}"
            );
        }
    }
    for key in [Key::CONSTANT, Key::from("key")] {
        check(ten(60_000).build().unwrap(), key.clone()).await;
        check(
            over(&Remote::new(2 * MS), ten(60_000), OnError::Closed),
            key.clone(),
        )
        .await;
        for rule in [OnError::local(1), OnError::Open] {
            let remote = Remote::new(2 * MS);
            remote.fail(true);
            check(over(&remote, ten(60_000), rule), key.clone()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shape_call_dropped_when_its_pause_is_over_leaves_no_gap() {
    let shaper = ten(60_000).build().unwrap();
    let start = Instant::now();
    shaper.pause("key", Duration::from_secs(1));
    let mut dropped = Box::pin(shaper.schedule("key", 1));
    assert!(poll(&mut dropped).is_pending());
    tokio::time::advance(Duration::from_secs(1)).await;
    drop(dropped);
    shaper.schedule("key", 1).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn shape_call_dropped_late_in_a_pause_leaves_no_gap() {
    let shaper = ten(60_000).build().unwrap();
    let start = Instant::now();
    shaper.schedule("key", 1).await.unwrap();
    let mut dropped = Box::pin(shaper.schedule("key", 1));
    assert!(poll(&mut dropped).is_pending());
    shaper.pause("key", 150 * MS);
    tokio::time::advance(110 * MS).await;
    assert!(poll(&mut dropped).is_pending(), "its slot was at 100 ms");
    drop(dropped);
    shaper.schedule("key", 1).await.unwrap();
    assert_eq!(start.elapsed(), 150 * MS);
}

/// An upstream refuses a call that leaves now, without saying how long to wait. Returns when the
/// next call leaves.
async fn refused(shaper: &Shaper) -> Duration {
    let now = Instant::now();
    shaper.obey("key", now, StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new());
    shaper.schedule("key", 1).await.unwrap();
    now.elapsed()
}

#[tokio::test(start_paused = true)]
async fn shape_pauses_double_until_a_response_is_no_refusal_or_server_error() {
    for (status, second) in [(200, 1_000), (302, 1_000), (404, 1_000), (500, 2_000)] {
        let shaper = ten(60_000).build().unwrap();
        assert_eq!(refused(&shaper).await, 1_000 * MS);
        let status = StatusCode::from_u16(status).unwrap();
        shaper.obey("key", Instant::now(), status, &HeaderMap::new());
        assert_eq!(refused(&shaper).await, second * MS, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn shape_first_pause_after_a_reset_has_the_first_length() {
    for waited in [50 * MS, 150 * MS] {
        let shaper = ten(60_000).build().unwrap();
        shaper.obey(
            "key",
            Instant::now(),
            StatusCode::TOO_MANY_REQUESTS,
            &HeaderMap::new(),
        );
        sleep(waited).await;
        shaper.reset("key").await.unwrap();
        assert_eq!(refused(&shaper).await, 1_000 * MS, "after {waited:?}");
    }
}
