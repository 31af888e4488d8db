//! The times at which calls leave: in order, an emission interval apart, on the exact schedule.

use std::time::Duration;

use throttle_tower::shape::{Bound, Shaper};
use throttle_tower::{OnError, Pace, Rate, ShapeLayer};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

use crate::support::{MS, Notes, Remote, layer, over, ten};

#[tokio::test(start_paused = true)]
async fn shape_calls_leave_in_order_an_interval_apart() {
    let notes = Notes::new();
    let service = layer(ten(10_000)).layer(notes.clone());
    let mut calls = JoinSet::new();
    for call in 0..50 {
        // In the order of `call`, which happens with the first poll of each.
        calls.spawn(service.clone().oneshot(call));
    }
    calls
        .join_all()
        .await
        .into_iter()
        .for_each(|answer| assert!(answer.is_ok()));
    assert_eq!(notes.order(), (0..50).collect::<Vec<_>>());
    for (call, at) in notes.calls() {
        let due = call as u32 * 100 * MS;
        assert!(
            (due..=due + MS).contains(&at),
            "call {call} left at {at:?}, due at {due:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn shape_departures_are_never_early_and_do_not_drift() {
    const DEPARTURES: usize = 100_000;
    const CALLERS: usize = 100;
    // 333 1/3 µs apart, so that any rounding shows.
    let shaper = Shaper::builder(Pace::new(Rate::per_second(3_000)))
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    let start = Instant::now();
    let mut calling = JoinSet::new();
    for _ in 0..CALLERS {
        let shaper = shaper.clone();
        calling.spawn(async move {
            let mut times = Vec::with_capacity(DEPARTURES / CALLERS);
            for _ in 0..DEPARTURES / CALLERS {
                shaper.schedule("key", 1).await.unwrap();
                times.push(start.elapsed());
            }
            times
        });
    }
    let mut times: Vec<Duration> = calling.join_all().await.into_iter().flatten().collect();
    times.sort_unstable();
    assert_eq!(times.len(), DEPARTURES);
    for (departure, at) in times.into_iter().enumerate() {
        let due = Duration::from_nanos(departure as u64 * 1_000_000 / 3);
        // A timer is late by up to a millisecond. The last call is no later than the first.
        assert!(
            (due..=due + MS).contains(&at),
            "departure {departure} at {at:?}, due at {due:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn shape_next_call_waits_for_every_unit_of_the_last() {
    let notes = Notes::new();
    let service = layer(ten(10_000))
        .cost(|call: &u64| *call)
        .layer(notes.clone());
    let calls = [3, 1, 0, 2, 1].map(|cost| tokio::spawn(service.clone().oneshot(cost)));
    for call in calls {
        call.await.unwrap().unwrap();
    }
    // A call of cost 0 is not delayed.
    let left: Vec<_> = notes
        .calls()
        .into_iter()
        .map(|(cost, at)| (cost, at.as_millis()))
        .collect();
    assert_eq!(left, [(3, 0), (0, 0), (1, 300), (2, 400), (1, 600)]);
}

#[tokio::test(start_paused = true)]
async fn shape_headroom_keeps_every_period_within_the_rate() {
    let departures = async |shaper: Shaper| {
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..40 {
            shaper.schedule("key", 1).await.unwrap();
            times.push(start.elapsed());
        }
        times
    };
    let pace = || Pace::new(Rate::per_second(10));
    let usual = departures(Shaper::new(pace()).unwrap()).await;
    assert_eq!(
        usual[10].as_micros().div_ceil(1_000),
        1_005,
        "ten in a period and five milliseconds"
    );
    let wide = departures(Shaper::builder(pace()).headroom(200 * MS).build().unwrap()).await;
    assert_eq!(wide[10].as_millis(), 1_200);
    let none = departures(
        Shaper::builder(pace())
            .headroom(Duration::ZERO)
            .build()
            .unwrap(),
    )
    .await;
    assert_eq!(none[10].as_millis(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn shape_store_decides_in_one_round_trip() {
    let remote = Remote::new(10 * MS);
    let notes = Notes::new();
    let service = ShapeLayer::of(over(&remote, ten(10_000), OnError::Closed)).layer(notes.clone());
    let mut calls = JoinSet::new();
    for call in 0..20 {
        calls.spawn(service.clone().oneshot(call));
    }
    calls
        .join_all()
        .await
        .into_iter()
        .for_each(|answer| assert!(answer.is_ok()));
    assert_eq!(remote.decisions(), 20, "one trip for each");
    assert_eq!(notes.order(), (0..20).collect::<Vec<_>>());
    for (call, at) in notes.calls() {
        let due = call as u32 * 100 * MS;
        // The store's schedule began half a round trip after the first call, and its reply took the
        // other half.
        assert!(
            (due + 5 * MS..=due + 11 * MS).contains(&at),
            "call {call} left at {at:?}"
        );
    }
}

/// After a process has stood still, calls do not catch up: no period contains more than the rate.
#[tokio::test]
async fn shape_process_that_stood_still_sends_no_burst() {
    let shaper = Shaper::builder(Pace::new(Rate::new(20, 200 * MS)))
        .headroom(10 * MS)
        .build()
        .unwrap();
    let mut leaving = JoinSet::new();
    for _ in 0..60 {
        let shaper = shaper.clone();
        leaving.spawn(async move {
            shaper.schedule("key", 1).await.unwrap();
            Instant::now()
        });
    }
    tokio::time::sleep(50 * MS).await;
    // Nothing in this runtime runs meanwhile.
    std::thread::sleep(100 * MS);
    let mut times = leaving.join_all().await;
    times.sort_unstable();
    let most = (0..times.len()).map(|first| {
        times[first..]
            .iter()
            .take_while(|at| **at - times[first] < 200 * MS)
            .count()
    });
    assert!(most.max().unwrap() <= 20);
}

#[test]
fn shape_usual_headroom_is_a_part_of_the_period_within_bounds() {
    let pace = |period_ms: u64| {
        Shaper::builder(Pace::new(Rate::new(10, Duration::from_millis(period_ms))))
    };
    for (period, local, shared) in [
        (200, 202_000, 205_000),
        (1_000, 1_005_000, 1_025_000),
        (60_000, 60_005_000, 60_025_000),
    ] {
        let alone = pace(period).build().unwrap();
        assert_eq!(alone.rate(), Rate::new(10, Duration::from_micros(local)));
        let remote = Remote::new(MS);
        let fleet = pace(period)
            .name("fleet")
            .on_error(OnError::Closed)
            .backend(remote)
            .build()
            .unwrap();
        assert_eq!(fleet.rate(), Rate::new(10, Duration::from_micros(shared)));
    }
    // With headroom this longest wait could not be counted exactly.
    let long =
        Pace::new(Rate::per_second(1_000_000)).max_wait(Duration::from_micros((1 << 52) - 2));
    assert_eq!(
        Shaper::new(long).unwrap().rate(),
        Rate::per_second(1_000_000)
    );
}

#[tokio::test(start_paused = true)]
async fn shape_key_cost_and_deadline_hold_in_any_order() {
    type Set = fn(ShapeLayer<u64, u64>) -> ShapeLayer<u64, u64>;
    let key: Set = |layer| layer.by(|call| (call % 2).into());
    let cost: Set = |layer| layer.cost(|_| 3);
    let deadline: Set = |layer| layer.deadline(|_| Some(Duration::from_millis(400)));
    for order in [
        [key, cost, deadline],
        [deadline, key, cost],
        [cost, deadline, key],
    ] {
        // Each is set on a clone, while the layer itself is kept.
        let on_a_clone = |layer: ShapeLayer<u64, u64>, set: Set| set(layer.clone());
        let service = order
            .into_iter()
            .fold(layer(ten(10_000)), on_a_clone)
            .layer(Notes::new());
        let start = Instant::now();
        service.clone().oneshot(0).await.unwrap();
        service.clone().oneshot(1).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO, "another key");
        let error = service.clone().oneshot(2).await.unwrap_err();
        let full = *error.queue_full().unwrap();
        assert_eq!(
            (full.bound, full.retry_after),
            (Bound::Deadline, Some(100 * MS)),
            "300 ms, and 200 for its units"
        );
        tokio::time::sleep(100 * MS).await;
        service.clone().oneshot(3).await.unwrap();
        assert_eq!(start.elapsed(), 300 * MS);
    }
}
