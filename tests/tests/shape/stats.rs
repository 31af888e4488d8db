//! What a shaper counts.

use throttle_core::Backend;
use throttle_tower::shape::{Bound, ShapeError, Shaper};
use throttle_tower::{Key, OnError, ShapeLayer};
use tower::{Layer, ServiceExt};

use crate::support::{MS, Notes, Remote, over, ten};

/// Whether this process or a store keeps the schedule, and whichever key it is.
#[tokio::test(start_paused = true)]
async fn shape_refusal_is_counted_once_whichever_bound_refuses() {
    async fn check<B: Backend>(shaper: Shaper<B>, key: Key) {
        let bound = |error: ShapeError| error.queue_full().unwrap().bound;
        let mut slots = Vec::new();
        for _ in 0..4 {
            slots.push(shaper.reserve(key.clone(), 1).await.unwrap());
        }
        let same_key = key.clone();
        let hurried = ShapeLayer::of(shaper.clone()).by(move |_| same_key.clone()).deadline(|_| Some(50 * MS));
        let late = hurried.layer(Notes::new()).oneshot(0).await.unwrap_err();
        assert_eq!((late.queue_full().unwrap().bound, shaper.stats().refused), (Bound::Deadline, 1));
        assert_eq!(bound(shaper.reserve(key.clone(), 1).await.unwrap_err()), Bound::MaxWait);
        assert_eq!(shaper.stats().refused, 2);
        slots.pop();
        tokio::time::sleep(10 * MS).await;
        for other in ["another key", "a third key"] {
            slots.push(shaper.reserve(other, 1).await.unwrap());
        }
        assert_eq!(bound(shaper.reserve(key, 1).await.unwrap_err()), Bound::MaxWaiting);
        let stats = shaper.stats();
        assert_eq!((stats.sent, stats.waiting, stats.refused), (0, 5, 3));
        assert_eq!((stats.cancelled, stats.degraded, stats.lost, stats.paused), (1, 0, 0, 0));
    }
    for key in [Key::CONSTANT, Key::from("key")] {
        let ten = || ten(300).max_waiting(5);
        check(ten().build().unwrap(), key.clone()).await;
        check(over(&Remote { at_once: true, ..Remote::new(MS) }, ten(), OnError::Closed), key.clone()).await;
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
        assert!(shaper.reserve(key, 1).await.unwrap().delay().is_zero());
    }
}

/// Each figure stands for itself, and reading it changes none.
#[tokio::test(start_paused = true)]
async fn shape_stats_tell_sent_waiting_cancelled_degraded_lost_and_paused_apart() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::local(1));
    let mut slots = Vec::new();
    for _ in 0..9 {
        slots.push(shaper.reserve("key", 1).await.unwrap());
    }
    slots.drain(..5);
    shaper.schedule("another key", 1).await.unwrap();
    tokio::time::sleep(10 * MS).await;
    remote.fail(true);
    slots.truncate(2);
    for _ in 0..3 {
        shaper.schedule("a third key", 1).await.unwrap();
    }
    for key in 0..6_u64 {
        shaper.pause(key, 1_000 * MS);
    }
    for _ in 0..2 {
        let stats = shaper.stats();
        assert_eq!((stats.sent, stats.waiting, stats.refused, stats.cancelled), (4, 2, 0, 7));
        assert_eq!((stats.degraded, stats.lost, stats.paused), (3, 2, 6));
    }
}
