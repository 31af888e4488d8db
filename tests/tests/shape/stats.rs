//! What a shaper counts.

use throttle_tower::shape::{Bound, ShapeError, Shaper};
use throttle_tower::{Key, OnError, ShapeLayer};
use tower::{Layer, ServiceExt};

use crate::support::{MS, Notes, Remote, over, ten, wait, waiting};

/// Whether this process or a store keeps the schedule, and whichever key it is.
#[tokio::test(start_paused = true)]
async fn shape_refusal_is_counted_once_whichever_bound_refuses() {
    async fn check(shaper: Shaper, key: Key) {
        let bound = |error: ShapeError| error.queue_full().unwrap().bound;
        let mut calls = Vec::new();
        for _ in 0..4 {
            calls.push(waiting(&shaper, key.clone()).await);
        }
        tokio::time::sleep(4 * MS).await;
        let same_key = key.clone();
        let hurried = ShapeLayer::of(shaper.clone())
            .by(move |_| same_key.clone())
            .deadline(|_| Some(50 * MS));
        let late = hurried.layer(Notes::new()).oneshot(0).await.unwrap_err();
        assert_eq!(
            (late.queue_full().unwrap().bound, shaper.stats().refused),
            (Bound::Deadline, 1)
        );
        assert_eq!(
            bound(shaper.schedule(key.clone(), 2).await.unwrap_err()),
            Bound::MaxWait
        );
        assert_eq!(shaper.stats().refused, 2);
        calls.pop().unwrap().abort();
        tokio::time::sleep(MS).await;
        shaper.pause("another key", 200 * MS);
        for _ in 0..2 {
            calls.push(waiting(&shaper, "another key").await);
        }
        assert_eq!(
            bound(shaper.schedule(key, 1).await.unwrap_err()),
            Bound::MaxWaiting
        );
        let stats = shaper.stats();
        assert_eq!((stats.sent, stats.waiting, stats.refused), (1, 4, 3));
        assert_eq!(
            (stats.cancelled, stats.degraded, stats.lost, stats.paused),
            (1, 0, 0, 1)
        );
    }
    for key in [Key::CONSTANT, Key::from("key")] {
        let ten = || ten(300).max_waiting(4);
        check(ten().build().unwrap(), key.clone()).await;
        check(
            over(
                &Remote {
                    at_once: true,
                    ..Remote::new(MS)
                },
                ten(),
                OnError::Closed,
            ),
            key.clone(),
        )
        .await;
        check(over(&Remote::new(2 * MS), ten(), OnError::Closed), key).await;
    }
}

#[tokio::test(start_paused = true)]
async fn shape_reset_of_a_key_keeps_what_was_counted() {
    for key in [Key::CONSTANT, Key::from("key")] {
        let shaper = ten(10_000).build().unwrap();
        shaper.schedule(key.clone(), 1).await.unwrap();
        shaper.reset(key.clone()).await.unwrap();
        assert_eq!(shaper.stats().sent, 1);
        assert!(wait(&shaper, key).await.is_zero());
    }
}

/// Each figure stands for itself, and reading it changes none.
#[tokio::test(start_paused = true)]
async fn shape_stats_tell_sent_waiting_cancelled_degraded_lost_and_paused_apart() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::local(1));
    let mut calls = Vec::new();
    for _ in 0..9 {
        calls.push(waiting(&shaper, "key").await);
    }
    shaper.schedule("another key", 1).await.unwrap();
    calls.drain(1..6).for_each(|call| call.abort());
    tokio::time::sleep(10 * MS).await;
    let dropped = waiting(&shaper, "a key that is given up").await;
    tokio::time::sleep(MS + MS / 2).await;
    remote.fail(true);
    dropped.abort();
    tokio::time::sleep(10 * MS).await;
    for _ in 0..3 {
        shaper.schedule("a third key", 1).await.unwrap();
    }
    for key in 0..6_u64 {
        shaper.pause(key, 1_000 * MS);
    }
    for _ in 0..2 {
        let stats = shaper.stats();
        assert_eq!((stats.waiting, stats.refused, stats.cancelled), (1, 0, 6));
        assert_eq!(
            (stats.sent, stats.degraded),
            (7, 5),
            "two of the first key have left since"
        );
        assert_eq!((stats.lost, stats.paused), (1, 6));
    }
}
