//! A call that would wait too long is refused at once, with the time after which to come back.

use std::time::Duration;

use throttle_tower::shape::{Bound, ShapeError, Shaper};
use throttle_tower::{Key, OnError, Pace, Rate, ShapeLayer};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};

use crate::support::{MS, Notes, Remote, layer, over, poll, ten};

#[tokio::test(start_paused = true)]
async fn shape_call_that_would_wait_too_long_is_refused_at_once() {
    let notes = Notes::new();
    let service = layer(ten(300)).layer(notes.clone());
    let start = Instant::now();
    let waiting: Vec<_> = (0..4)
        .map(|call| tokio::spawn(service.clone().oneshot(call)))
        .collect();
    tokio::task::yield_now().await;
    let error = service.clone().oneshot(4).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO, "at once");
    let full = error.queue_full().unwrap();
    assert_eq!(
        (full.bound, full.retry_after, full.allowed),
        (Bound::MaxWait, Some(100 * MS), 300 * MS)
    );
    assert_eq!(
        error.to_string(),
        "the call would wait longer than max_wait, 300ms; try again in 100ms"
    );
    // The wait is exact: not a microsecond less.
    tokio::time::sleep(99 * MS).await;
    assert!(service.clone().oneshot(5).await.is_err());
    tokio::time::sleep(MS).await;
    service.clone().oneshot(6).await.unwrap();
    for call in waiting {
        call.await.unwrap().unwrap();
    }
    assert_eq!(notes.order(), [0, 1, 2, 3, 6]);
    assert_eq!(service.layer().stats().refused, 2);
}

#[tokio::test(start_paused = true)]
async fn shape_call_is_admitted_by_the_finish_of_its_cost() {
    let shaper = ten(300).build().unwrap();
    let error = shaper.schedule("key", 1_000_000).await.unwrap_err();
    assert_eq!(
        error.queue_full().unwrap().retry_after,
        None,
        "no wait helps"
    );
    assert!(
        error.to_string().ends_with("its cost never fits"),
        "{error}"
    );
    shaper.schedule("key", 4).await.unwrap();
    assert!(shaper.schedule("key", 2).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn shape_call_that_would_miss_its_deadline_is_refused() {
    for remote in [None, Some(Remote::new(2 * MS))] {
        let notes = Notes::new();
        let deadline = |call: &u64| (*call > 0).then(|| Duration::from_millis(*call));
        let run = async |service: tower::util::BoxCloneService<
            u64,
            u64,
            ShapeError<std::convert::Infallible>,
        >| {
            let mut waiting = Vec::new();
            for _ in 0..3 {
                waiting.push(tokio::spawn(service.clone().oneshot(0)));
                tokio::time::sleep(5 * MS).await;
            }
            // The next slot is 300 ms after the first; some milliseconds of that have passed.
            let error = service.clone().oneshot(200).await.unwrap_err();
            let full = *error.queue_full().unwrap();
            assert_eq!((full.bound, full.allowed), (Bound::Deadline, 200 * MS));
            let retry_after = full.retry_after.unwrap();
            assert!(
                (80 * MS..=90 * MS).contains(&retry_after),
                "{retry_after:?}"
            );
            // The refused call took no slot: the next call gets the one that it would have had.
            service.clone().oneshot(1_000).await.unwrap();
            for call in waiting {
                call.await.unwrap().unwrap();
            }
            assert_eq!(
                notes.times().last().unwrap().as_millis() / 10,
                30,
                "{:?}",
                notes.calls()
            );
            // A deadline beyond the longest wait changes nothing.
            service.clone().oneshot(1_000_000).await.unwrap();
        };
        match remote {
            None => {
                run(layer(ten(10_000))
                    .deadline(deadline)
                    .layer(notes.clone())
                    .boxed_clone())
                .await;
            }
            Some(remote) => {
                let shaper = over(&remote, ten(10_000), OnError::Closed);
                run(ShapeLayer::of(shaper)
                    .deadline(deadline)
                    .layer(notes.clone())
                    .boxed_clone())
                .await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shape_deadlines_under_load_starve_no_call() {
    // Ten times more calls than fit, and none of them may wait longer than a tenth of the bucket's
    // longest wait.
    for trip in [0, 4] {
        let remote = Remote::new(trip * MS);
        let notes = Notes::new();
        let deadline = |_: &u64| Some(Duration::from_millis(500));
        let shaper = over(&remote, ten(5_000), OnError::Closed);
        let service = ShapeLayer::of(shaper)
            .deadline(deadline)
            .layer(notes.clone());
        let calls: Vec<_> = (0..1_000)
            .map(|call| {
                let service = service.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(call as u32 * 10 * MS).await;
                    service.oneshot(call).await.is_ok()
                })
            })
            .collect();
        let mut sent = 0;
        for call in calls {
            sent += u32::from(call.await.unwrap());
        }
        // Ten seconds at ten a second, plus the calls that wait half a second at the end.
        assert!(
            (100..=106).contains(&sent),
            "{sent} left, with a round trip of {trip} ms"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn shape_number_of_waiting_calls_is_bounded() {
    let notes = Notes::new();
    let by_number = |call: &u64| (*call % 2).into();
    let layer = layer(ten(3_600_000).max_waiting(10)).by(by_number);
    let service = layer.layer(notes.clone());
    let calls: Vec<_> = (0..100)
        .map(|call| tokio::spawn(service.clone().oneshot(call)))
        .collect();
    tokio::time::sleep(MS).await;
    // One call of each key leaves at once, and ten wait.
    let stats = layer.stats();
    assert_eq!((stats.sent, stats.waiting, stats.refused), (2, 10, 88));
    let mut refused = 0;
    for call in calls {
        if let Err(error) = call.await.unwrap() {
            assert_eq!(error.queue_full().unwrap().bound, Bound::MaxWaiting);
            refused += 1;
        }
    }
    assert_eq!(refused, 88);
    // The refused calls leave no gap.
    assert_eq!(notes.times().last().unwrap().as_millis(), 500);
    assert_eq!(layer.stats().waiting, 0);
}

/// By default a shaper delays calls, even at a rate at which half a minute is short.
#[tokio::test(start_paused = true)]
async fn shape_default_longest_wait_is_half_a_minute() {
    for (rate, fits) in [
        (Rate::per_second(1), 30),
        (Rate::per_minute(30), 15),
        (Rate::per_minute(3), 2),
    ] {
        let shaper = Shaper::new(Pace::new(rate)).unwrap();
        shaper.schedule("key", 1).await.unwrap();
        let mut waiting = Vec::new();
        loop {
            let mut call = Box::pin(shaper.schedule("key", 1));
            if poll(&mut call).is_ready() {
                break;
            }
            waiting.push(call);
        }
        // The headroom makes the pace slightly slower than the rate.
        assert_eq!(1 + waiting.len(), fits, "{rate}");
    }
}

#[test]
fn shape_wrong_configuration_is_an_error_with_field_and_rule() {
    let pace = || Pace::new(Rate::per_second(10));
    let error = |result: Result<Shaper, throttle_tower::ConfigError>| result.map(drop).unwrap_err();
    let remote = Remote::new(MS);
    let unnamed = error(
        Shaper::builder(pace())
            .on_error(OnError::Closed)
            .backend(remote.clone())
            .build(),
    );
    assert_eq!((unnamed.field(), unnamed.value()), ("name", "not set"));
    let silent = error(
        Shaper::builder(pace())
            .name("n")
            .backend(remote.clone())
            .build(),
    );
    assert_eq!(
        (silent.field(), silent.value(), silent.policy()),
        ("on_error", "not set", Some("n"))
    );
    let no_process = error(
        Shaper::builder(pace())
            .name("n")
            .on_error(OnError::local(0))
            .backend(remote)
            .build(),
    );
    assert_eq!(
        (no_process.field(), no_process.value()),
        ("processes of on_error", "0")
    );
    let none = Shaper::new(Pace::new(Rate::per_second(0)))
        .map(drop)
        .unwrap_err();
    assert_eq!(
        (none.field(), none.value(), none.policy()),
        ("rate count", "0", Some("shape"))
    );
    let long = Shaper::new(pace().max_wait(Duration::MAX))
        .map(drop)
        .unwrap_err();
    assert_eq!(long.field(), "max_wait in microseconds");
    assert!(Shaper::builder(pace()).name("a\nb").build().is_err());
}

#[test]
fn shape_call_may_be_made_before_the_runtime_is_entered() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut service = ShapeLayer::of(ten(10_000).build().unwrap()).layer(Notes::new());
    let calls = [1, 2].map(|call| tower::Service::call(&mut service, call));
    for call in calls {
        runtime.block_on(call).unwrap();
    }
}

/// More units than fit into 32 bits keep their spacing, too.
#[tokio::test(start_paused = true)]
async fn shape_pause_keeps_billions_of_units_apart() {
    let pace = Pace::new(Rate::per_second(100_000_000)).max_wait(Duration::from_secs(100_000));
    let shaper = Shaper::builder(pace)
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    let start = Instant::now();
    shaper.pause("key", Duration::from_secs(1));
    let mut leaving = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let shaper = shaper.clone();
        leaving.spawn(async move {
            shaper.schedule("key", 100_000_000).await.unwrap();
            start.elapsed().as_secs()
        });
    }
    let mut times = leaving.join_all().await;
    times.sort_unstable();
    assert_eq!(times, (1..61).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn shape_call_that_cannot_meet_its_deadline_takes_nothing() {
    for at_once in [true, false] {
        let remote = Remote {
            at_once,
            ..Remote::new(2 * MS)
        };
        let shaper = over(&remote, ten(10_000), OnError::Closed);
        let layer = ShapeLayer::of(shaper)
            .cost(|call| *call)
            .deadline(|_| Some(250 * MS));
        let service = layer.layer(Notes::new());
        service.clone().oneshot(1).await.unwrap();
        // Its turn comes in time, and its last unit does not.
        let error = service.clone().oneshot(3).await.unwrap_err();
        assert_eq!(error.queue_full().unwrap().bound, Bound::Deadline);
        sleep(10 * MS).await;
        assert!(remote.decisions() <= 2, "{}", remote.decisions());
        assert_eq!(remote.settled(), 0);
    }
}

/// When they come, both calls could leave at once as far as is known.
#[tokio::test(start_paused = true)]
async fn shape_deadline_counts_calls_that_come_at_the_same_time() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::Closed);
    let service = ShapeLayer::of(shaper.clone())
        .cost(|_| 2)
        .deadline(|_| Some(250 * MS))
        .layer(Notes::new());
    let (first, second) = tokio::join!(service.clone().oneshot(1), service.clone().oneshot(2));
    // The units of the later one are due after 200 and 300 ms.
    let refused: Vec<_> = [first, second]
        .into_iter()
        .filter_map(Result::err)
        .collect();
    let bounds: Vec<_> = refused
        .iter()
        .map(|error| error.queue_full().unwrap().bound)
        .collect();
    assert_eq!(bounds, [Bound::Deadline]);
    sleep(10 * MS).await;
    assert_eq!(remote.settled(), 0, "it has taken nothing");
}

#[tokio::test(start_paused = true)]
async fn shape_deadline_beyond_the_longest_wait_has_no_effect() {
    for deadline in [1, 10].map(Duration::from_secs) {
        let remote = Remote::new(2 * MS);
        let shaper = over(&remote, ten(1_000), OnError::Closed);
        let service = ShapeLayer::of(shaper.clone())
            .deadline(move |_| Some(deadline))
            .layer(Notes::new());
        service.clone().oneshot(1).await.unwrap();
        assert_eq!(remote.decisions(), 1, "one round trip");
        shaper.pause(Key::CONSTANT, Duration::from_secs(5));
        let error = service.oneshot(2).await.unwrap_err();
        let full = *error.queue_full().unwrap();
        assert_eq!((full.bound, full.allowed), (Bound::MaxWait, 1_000 * MS));
    }
}

#[tokio::test(start_paused = true)]
async fn shape_call_with_a_deadline_of_zero_leaves_at_once_or_not_at_all() {
    let service = layer(ten(10_000))
        .deadline(|_| Some(Duration::ZERO))
        .layer(Notes::new());
    service.clone().oneshot(1).await.unwrap();
    let full = *service
        .clone()
        .oneshot(2)
        .await
        .unwrap_err()
        .queue_full()
        .unwrap();
    assert_eq!(
        (full.bound, full.allowed, full.retry_after),
        (Bound::Deadline, Duration::ZERO, Some(100 * MS))
    );
    sleep(100 * MS).await;
    service.oneshot(3).await.unwrap();
}

/// The units of such a call take exactly as long as it may wait.
#[tokio::test(start_paused = true)]
async fn shape_call_that_just_fits_its_deadline_has_a_time_to_come_back() {
    let service = layer(ten(10_000))
        .cost(|_| 2)
        .deadline(|_| Some(100 * MS))
        .layer(Notes::new());
    service.clone().oneshot(1).await.unwrap();
    let full = *service
        .clone()
        .oneshot(2)
        .await
        .unwrap_err()
        .queue_full()
        .unwrap();
    assert_eq!(full.retry_after, Some(200 * MS));
    sleep(200 * MS).await;
    service.oneshot(3).await.unwrap();
}
