//! A cancelled call gives back its slot if no later slot is scheduled, and leaves nothing else behind.

use std::time::Duration;

use throttle_tower::shape::Shaper;
use throttle_tower::{LeakyBucket, OnError, Rate};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt};

use crate::support::{MS, Notes, Remote, layer, over, poll, ten};

#[tokio::test(start_paused = true)]
async fn shape_last_call_that_is_dropped_gives_its_slot_back() {
    let shaper = ten(10_000).build().unwrap();
    shaper.schedule("key", 1).await.unwrap();
    let kept = shaper.reserve("key", 1).await.unwrap();
    let gone = shaper.reserve("key", 1).await.unwrap();
    assert_eq!((kept.delay(), gone.delay()), (100 * MS, 200 * MS));
    drop(gone);
    assert_eq!(shaper.reserve("key", 1).await.unwrap().delay(), 200 * MS);
    assert_eq!(shaper.stats().cancelled, 2);
}

#[tokio::test(start_paused = true)]
async fn shape_slot_dropped_in_the_middle_passes_unused() {
    let notes = Notes::new();
    let mut service = layer(ten(10_000)).layer(notes.clone());
    let mut calls: Vec<_> = (0..5).map(|call| Some(service.call(call))).collect();
    drop(calls[2].take());
    for call in calls.into_iter().flatten() {
        call.await.unwrap();
    }
    let left: Vec<_> = notes.calls().into_iter().map(|(call, at)| (call, at.as_millis())).collect();
    assert_eq!(left, [(0, 0), (1, 100), (3, 300), (4, 400)]);
    assert_eq!(service.layer().stats().cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn shape_used_slot_is_not_given_back() {
    let shaper = ten(10_000).build().unwrap();
    for _ in 0..3 {
        let slot = shaper.reserve("key", 1).await.unwrap();
        slot.await;
    }
    assert_eq!(shaper.reserve("key", 1).await.unwrap().delay(), 100 * MS);
    let stats = shaper.stats();
    assert_eq!((stats.sent, stats.cancelled, stats.waiting), (3, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn shape_unused_slot_whose_time_has_come_is_given_back() {
    let shaper = ten(10_000).build().unwrap();
    let slot = shaper.reserve("key", 1).await.unwrap();
    assert_eq!(slot.delay(), Duration::ZERO);
    drop(slot);
    assert_eq!(shaper.reserve("key", 1).await.unwrap().delay(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn shape_slot_goes_back_to_a_store_in_the_background() {
    let remote = Remote::new(10 * MS);
    let shaper = over(&remote, ten(10_000), OnError::Closed);
    shaper.schedule("key", 1).await.unwrap();
    let slot = shaper.reserve("key", 1).await.unwrap();
    let start = Instant::now();
    drop(slot);
    assert_eq!(start.elapsed(), Duration::ZERO);
    sleep(20 * MS).await;
    assert_eq!(remote.settled.load(std::sync::atomic::Ordering::SeqCst), 1);
    let again = shaper.reserve("key", 1).await.unwrap();
    assert!(again.delay() < 100 * MS, "{:?}", again.delay());

    // If the store fails then, the slot is counted as lost, and no call fails.
    remote.fail(true);
    drop(again);
    sleep(20 * MS).await;
    assert_eq!(shaper.stats().lost, 1);
}

#[tokio::test(start_paused = true)]
async fn shape_call_dropped_at_any_point_loses_no_slot() {
    // Polled once each millisecond, and dropped after a number of polls.
    for polls in 0..30 {
        let remote = Remote::new(10 * MS);
        let notes = Notes::new();
        let shaper = over(&remote, ten(10_000), OnError::Closed);
        let mut service = throttle_tower::ShapeLayer::of(shaper.clone()).layer(notes.clone());
        shaper.reserve("other", 1).await.unwrap().await;
        let start = Instant::now();
        service.call(0).await.unwrap();
        give_up_after(polls, service.call(1)).await;
        assert_eq!(shaper.stats().waiting, 0, "after {polls} polls");
        // The next call gets the slot of the dropped one.
        service.call(2).await.unwrap();
        let due = start.elapsed();
        assert!((100 * MS..116 * MS).contains(&due), "after {polls} polls: {due:?}");
        assert_eq!(notes.order(), [0, 2]);
    }
}

#[test]
fn shape_shutdown_with_a_thousand_waiting_calls_leaves_no_task() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stats = runtime.block_on(async {
        let remote = Remote::new(2 * MS);
        // The pace is so slow that no second call leaves meanwhile, however busy the machine is.
        let slow = || {
            let one_a_minute = LeakyBucket::new(Rate::per_minute(1)).max_wait(Duration::from_secs(500 * 60));
            Shaper::builder(one_a_minute).headroom(Duration::ZERO)
        };
        let shaper = over(&remote, slow(), OnError::Closed);
        let (local, far) = (layer(slow()), throttle_tower::ShapeLayer::of(shaper.clone()));
        let mut calls = JoinSet::new();
        for call in 0..500 {
            calls.spawn(local.layer(Notes::new()).oneshot(call));
            calls.spawn(far.layer(Notes::new()).oneshot(call));
        }
        while local.stats().waiting + far.stats().waiting < 998 || local.stats().sent + far.stats().sent < 2 {
            tokio::task::yield_now().await;
        }
        assert!(Handle::current().metrics().num_alive_tasks() >= 998);
        calls.shutdown().await;
        // A slot goes back to a store in the background.
        let patience = Instant::now() + Duration::from_secs(10);
        while Handle::current().metrics().num_alive_tasks() > 0 && Instant::now() < patience {
            sleep(MS).await;
        }
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
        [local.stats(), shaper.stats()]
    });
    for stats in stats {
        assert_eq!((stats.sent, stats.waiting, stats.lost), (1, 0, 0));
        assert_eq!(stats.cancelled, 499);
    }
}

#[tokio::test(start_paused = true)]
async fn shape_dropped_call_that_could_leave_at_once_gives_its_slot_back() {
    // Without a poll the store is not called. After a poll it is, and the slot that it assigns is given back.
    for polls in 0..4 {
        let remote = Remote::new(10 * MS);
        let shaper = over(&remote, ten(10_000), OnError::Closed);
        let notes = Notes::new();
        let mut service = throttle_tower::ShapeLayer::of(shaper.clone()).layer(notes.clone());
        give_up_after(polls, service.call(1)).await;
        assert_eq!(remote.decisions(), usize::from(polls > 0));
        assert_eq!(remote.settled.load(std::sync::atomic::Ordering::SeqCst), usize::from(polls > 0));
        let stats = shaper.stats();
        assert_eq!((stats.sent, stats.waiting), (0, 0), "after {polls} polls");
        assert!(shaper.reserve(throttle_tower::Key::CONSTANT, 1).await.unwrap().delay().is_zero());
        assert!(notes.calls().is_empty());
    }
}

/// Only a reservation that was dropped before the store had decided is finished in the background.
#[tokio::test(start_paused = true)]
async fn shape_decided_reservation_leaves_nothing_to_finish() {
    let shaper = over(&Remote::new(10 * MS), ten(10_000), OnError::Closed);
    let slot = shaper.reserve("key", 1).await.unwrap();
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    slot.await;
}

/// Polls a call `polls` times, once each millisecond, drops it, and waits for the work in the background.
async fn give_up_after(polls: usize, call: impl Future) {
    let mut call = Box::pin(call);
    for _ in 0..polls {
        assert!(poll(&mut call).is_pending());
        sleep(MS).await;
    }
    drop(call);
    sleep(20 * MS).await;
}
