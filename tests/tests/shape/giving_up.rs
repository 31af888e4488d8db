//! A call that gives up, whether it is dropped, times out or is not polled again, passes its place
//! on.

use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throttle_tower::shape::{Shaper, ShaperBuilder};
use throttle_tower::{OnError, Pace, Rate, ShapeLayer};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{MS, Notes, Remote, layer, over, poll, ten, wait, waiting};

#[derive(Clone, Copy, Debug, PartialEq)]
enum GivesUp {
    ByTimeout,
    ByDeadline,
}

/// 20 a second, and callers that give up after half a second: 25 come a second for a minute,
/// then 10.
async fn overload(shaper: Shaper, gives_up: GivesUp) -> Vec<usize> {
    let (log, start) = (Arc::new(Mutex::new(Vec::new())), Instant::now());
    let seen = Arc::clone(&log);
    let layer = ShapeLayer::of(shaper);
    let layer = if gives_up == GivesUp::ByDeadline {
        layer.deadline(|_: &u64| Some(500 * MS))
    } else {
        layer
    };
    let layer = layer.clone().by_unit("tokens", |_| 1).unwrap_or(layer);
    let service = layer.layer(service_fn(move |_: u64| {
        seen.lock().unwrap().push(start.elapsed().as_secs());
        async { Ok::<_, Infallible>(()) }
    }));
    let mut calls = JoinSet::new();
    for (count, every) in [(25 * 60, 40), (10 * 60, 100)] {
        for _ in 0..count {
            let call = service.clone().oneshot(0);
            calls.spawn(async move { drop(timeout(500 * MS, call).await) });
            sleep(every * MS).await;
        }
    }
    let log = log.lock().unwrap();
    (0..12)
        .map(|period| log.iter().filter(|second| **second / 10 == period).count())
        .collect()
}

fn twenty(by_units: bool) -> ShaperBuilder {
    let requests = Pace::new(Rate::per_second(20)).max_wait(Duration::from_secs(30));
    let paces = Shaper::builder(requests);
    if by_units {
        paces.by_unit("tokens", Rate::per_second(100_000))
    } else {
        paces
    }
}

#[tokio::test(start_paused = true)]
async fn law_15_upstream_gets_its_rate_while_callers_give_up() {
    for gives_up in [GivesUp::ByTimeout, GivesUp::ByDeadline] {
        for by_units in [false, true] {
            let alone = overload(twenty(by_units).build().unwrap(), gives_up).await;
            let far = over(&Remote::new(2 * MS), twenty(by_units), OnError::Closed);
            let far = overload(far, gives_up).await;
            // Headroom takes a part of the store's pace: 200 in 10.25 s.
            for (periods, least) in [(alone, 198), (far, 194)] {
                let case = format!("{gives_up:?}, by units: {by_units}: {periods:?}");
                assert!(
                    periods[..6]
                        .iter()
                        .all(|calls| (least..=200).contains(calls)),
                    "{case}"
                );
                assert!(
                    periods[7..].iter().all(|calls| (99..=101).contains(calls)),
                    "{case}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn law_15_call_that_is_kept_and_not_polled_passes_its_turns_on() {
    async fn check(shaper: Shaper, kept: usize, trip: Duration) {
        shaper.schedule("key", 1).await.unwrap();
        let mut idle: Vec<_> = (0..kept)
            .map(|_| Box::pin(shaper.schedule("key", 1)))
            .collect();
        for call in &mut idle {
            assert!(poll(call).is_pending());
        }
        let start = Instant::now();
        for number in 1..=20 {
            shaper.schedule("key", 1).await.unwrap();
            let (at, due) = (start.elapsed(), 100 * MS * number);
            // Each turn is offered to twice as many as the last time, every few milliseconds.
            assert!(
                at <= due + 40 * MS + trip,
                "{number} at {at:?}, beside {kept} kept ones"
            );
        }
        // One that is polled again has its place before all others.
        let behind = waiting(&shaper, "key").await;
        let before = tokio::time::timeout(200 * MS, &mut idle[0]).await;
        before.expect("it has its turn").unwrap();
        assert!(!behind.is_finished());
        behind.await.unwrap();
    }
    for kept in [1, 2, 30] {
        check(ten(60_000).build().unwrap(), kept, Duration::ZERO).await;
        check(
            over(&Remote::new(2 * MS), ten(60_000), OnError::Closed),
            kept,
            4 * MS,
        )
        .await;
    }
}

/// At some instants of the wait, a store has granted two turns, and no call has taken them.
#[tokio::test(start_paused = true)]
async fn law_15_turns_that_fit_no_call_any_more_stop_no_call() {
    for wait in 0..45 {
        let pace = Pace::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(9));
        let shaper = over(
            &Remote::new(20 * MS),
            Shaper::builder(pace).headroom(Duration::ZERO),
            OnError::Closed,
        );
        shaper.schedule("key", 1).await.unwrap();
        let mut calls = [1, 1, 2, 2].map(|cost| Box::pin(shaper.schedule("key", cost)));
        assert!(calls[..2].iter_mut().all(|call| poll(call).is_pending()));
        // The store is asked for the turns of those two.
        sleep(MS).await;
        assert!(calls[2..].iter_mut().all(|call| poll(call).is_pending()));
        sleep(wait * MS).await;
        let [first, second, _kept, mut last] = calls;
        drop((first, second));
        timeout(200 * MS, &mut last)
            .await
            .expect("the kept one is passed")
            .unwrap();
    }
}

/// The driver of the key runs in the runtime that ends, or that nothing drives any more.
#[test]
fn law_15_calls_go_on_when_the_runtime_of_the_first_one_stops() {
    for ends in [true, false] {
        let pace = Pace::new(Rate::per_second(100)).max_wait(Duration::from_secs(60));
        let shaper = Shaper::builder(pace)
            .headroom(Duration::ZERO)
            .build()
            .unwrap();
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let calls: Vec<_> = (0..5)
            .map(|_| {
                let shaper = shaper.clone();
                first.spawn(async move { shaper.schedule("key", 1).await })
            })
            .collect();
        first.block_on(async { sleep(MS).await });
        assert!(shaper.stats().waiting > 0);
        let first = (!ends).then_some(first);
        let took = second.block_on(async {
            let start = std::time::Instant::now();
            for _ in 0..10 {
                shaper.schedule("key", 1).await.unwrap();
            }
            start.elapsed()
        });
        assert!(took < Duration::from_secs(2), "{took:?}");
        assert!(shaper.stats().sent >= 11);
        drop((first, calls));
    }
}

#[tokio::test(start_paused = true)]
async fn law_15_call_dropped_at_any_point_loses_no_turn() {
    // Polled once each millisecond, and dropped after a number of polls.
    for polls in 0..30 {
        let remote = Remote::new(10 * MS);
        let notes = Notes::new();
        let shaper = over(&remote, ten(10_000), OnError::Closed);
        let mut service = ShapeLayer::of(shaper.clone()).layer(notes.clone());
        let start = Instant::now();
        service.call(0).await.unwrap();
        give_up_after(polls, service.call(1)).await;
        assert_eq!(shaper.stats().waiting, 0, "after {polls} polls");
        service.call(2).await.unwrap();
        let due = start.elapsed();
        assert!(
            (100 * MS..122 * MS).contains(&due),
            "after {polls} polls: {due:?}"
        );
        assert_eq!(notes.order(), [0, 2]);
    }
}

/// The store still decides when the call is dropped.
#[tokio::test(start_paused = true)]
async fn law_15_turn_granted_to_a_dropped_call_is_given_back() {
    for polls in 0..4 {
        let remote = Remote::new(10 * MS);
        let shaper = over(&remote, ten(10_000), OnError::Closed);
        let notes = Notes::new();
        let mut service = ShapeLayer::of(shaper.clone()).layer(notes.clone());
        give_up_after(polls, service.call(1)).await;
        assert_eq!(
            (remote.decisions(), remote.settled()),
            (usize::from(polls > 0), usize::from(polls > 0))
        );
        let stats = shaper.stats();
        assert_eq!((stats.sent, stats.waiting), (0, 0), "after {polls} polls");
        assert_eq!(wait(&shaper, throttle_tower::Key::CONSTANT).await, 10 * MS);
        assert!(notes.calls().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn shape_turn_that_cannot_be_given_back_is_lost() {
    let remote = Remote::new(10 * MS);
    let shaper = over(&remote, ten(10_000), OnError::Closed);
    let call = waiting(&shaper, "key").await;
    sleep(7 * MS).await;
    remote.fail(true);
    call.abort();
    sleep(20 * MS).await;
    assert_eq!((shaper.stats().lost, shaper.stats().cancelled), (1, 1));
}

#[test]
fn shape_shutdown_with_a_thousand_waiting_calls_leaves_no_task() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let stats = runtime.block_on(async {
        let remote = Remote::new(2 * MS);
        // The pace is so slow that no second call leaves meanwhile, however busy the machine is.
        let slow = || {
            let one_a_minute =
                Pace::new(Rate::per_minute(1)).max_wait(Duration::from_secs(500 * 60));
            Shaper::builder(one_a_minute).headroom(Duration::ZERO)
        };
        let shaper = over(&remote, slow(), OnError::Closed);
        let (local, far) = (layer(slow()), ShapeLayer::of(shaper.clone()));
        let mut calls = JoinSet::new();
        for call in 0..500 {
            calls.spawn(local.layer(Notes::new()).oneshot(call));
            calls.spawn(far.layer(Notes::new()).oneshot(call));
        }
        while local.stats().waiting + far.stats().waiting < 998
            || local.stats().sent + far.stats().sent < 2
        {
            tokio::task::yield_now().await;
        }
        assert!(Handle::current().metrics().num_alive_tasks() >= 998);
        calls.shutdown().await;
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
async fn shape_key_for_which_no_call_waits_has_no_task() {
    for shaper in [ten(10_000).build().unwrap()] {
        shaper.schedule("key", 1).await.unwrap();
        shaper.schedule("key", 1).await.unwrap();
        advance(MS).await;
        tokio::task::yield_now().await;
        assert_eq!(Handle::current().metrics().num_alive_tasks(), 0);
    }
}

/// Polls a call `polls` times, once each millisecond, drops it, and waits for the work in the
/// background.
async fn give_up_after(polls: usize, call: impl Future) {
    let mut call = Box::pin(call);
    for _ in 0..polls {
        assert!(poll(&mut call).is_pending());
        sleep(MS).await;
    }
    drop(call);
    sleep(20 * MS).await;
}
