//! Calls of a higher class pass the lower ones that wait.

use std::convert::Infallible;
use std::time::Duration;

use throttle_tower::shape::{Bound, QueueFull, ShapeError, Shaper, TokioClock};
use throttle_tower::{MemoryBackend, OnError, Pace, Rate, ShapeLayer};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{MS, Notes, Remote, layer, over, poll, ten};

type Outcome = Result<u64, ShapeError<Infallible>>;

/// The hundreds of a call's number are its class.
fn class_of(call: &u64) -> &'static str {
    ["high", "middle", "low"][(call / 100) as usize]
}

fn classed(shaper: Shaper) -> ShapeLayer<u64, u64> {
    ShapeLayer::of(shaper)
        .priority([("high", 0), ("middle", 10), ("low", 20)], class_of)
        .unwrap()
}

/// A call that begins to wait in a task of its own.
async fn begin<S>(service: &S, call: u64) -> JoinHandle<Outcome>
where
    S: Service<u64, Response = u64, Error = ShapeError<Infallible>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let call = tokio::spawn(service.clone().oneshot(call));
    tokio::task::yield_now().await;
    call
}

fn full(outcome: Outcome) -> QueueFull {
    *outcome.unwrap_err().queue_full().unwrap()
}

#[tokio::test(start_paused = true)]
async fn shape_call_of_a_higher_class_leaves_before_earlier_lower_ones() {
    async fn check(shapers: [Shaper; 2], late: Duration) {
        let (notes, expected) = (Notes::new(), [0, 1, 2, 100, 101, 200, 201]);
        // The layers of one shaper have one queue.
        let [one, other] = shapers.map(|shaper| classed(shaper).layer(notes.clone()));
        let mut calls = Vec::new();
        for (service, call) in [
            (&one, 0),
            (&other, 200),
            (&one, 100),
            (&one, 201),
            (&other, 1),
            (&other, 101),
            (&one, 2),
        ] {
            calls.push(begin(service, call).await);
        }
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(notes.order(), expected);
        for (at, turn) in notes.times().into_iter().zip(0..) {
            assert!(
                (turn * 100 * MS..=turn * 100 * MS + late).contains(&at),
                "{at:?} is the turn {turn}"
            );
        }
    }
    let own = ten(5_000).build().unwrap();
    check([own.clone(), own], Duration::ZERO).await;
    let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
    let shared = ten(5_000).name("shared").backend(memory).build().unwrap();
    check([shared.clone(), shared], Duration::ZERO).await;
    let far = over(&Remote::new(2 * MS), ten(5_000), OnError::Closed);
    check([far.clone(), far], 4 * MS).await;
}

/// 51 units fit into the longest wait, of which a low call leaves 20 free.
#[tokio::test(start_paused = true)]
async fn shape_class_that_no_call_uses_starves_none() {
    let notes = Notes::new();
    let service = classed(ten(5_000).build().unwrap()).layer(notes.clone());
    let mut calls = Vec::new();
    for _ in 0..31 {
        calls.push(begin(&service, 200).await);
    }
    let refused = full(service.clone().oneshot(200).await);
    let after = (Bound::Class, 3_000 * MS, Some(100 * MS));
    assert_eq!(
        (refused.bound, refused.allowed, refused.retry_after),
        after,
        "{refused}"
    );
    sleep(100 * MS).await;
    calls.push(begin(&service, 200).await);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let times: Vec<_> = (0..32).map(|turn| turn * 100 * MS).collect();
    assert_eq!(notes.times(), times, "one class has the whole rate");
}

#[tokio::test(start_paused = true)]
async fn shape_as_many_calls_as_the_reserve_pass_a_lower_one_in_time() {
    for (passing, in_time) in [(20, true), (21, false)] {
        let service = classed(ten(5_000).build().unwrap()).layer(Notes::new());
        let mut lows = Vec::new();
        for _ in 0..31 {
            lows.push(begin(&service, 200).await);
        }
        let began = Instant::now();
        let mut highs = Vec::new();
        for _ in 0..passing {
            highs.push(begin(&service, 0).await);
        }
        for high in highs {
            high.await.unwrap().unwrap();
        }
        let last = lows.pop().unwrap().await.unwrap();
        assert_eq!(last.is_ok(), in_time, "{passing} pass: {last:?}");
        if !in_time {
            let waited = began.elapsed();
            assert!((5_000 * MS..=5_050 * MS).contains(&waited), "{waited:?}");
            assert_eq!(full(last).bound, Bound::MaxWait);
        }
        for low in lows {
            low.await.unwrap().unwrap();
        }
    }
}

/// A call a turn of the highest class.
#[tokio::test(start_paused = true)]
async fn shape_lower_class_waits_for_its_longest_wait_and_no_longer() {
    async fn check(shaper: Shaper) {
        let service = classed(shaper).layer(Notes::new());
        let mut highs = vec![begin(&service, 0).await, begin(&service, 0).await];
        let low = begin(&service, 200).await;
        let began = Instant::now();
        while !low.is_finished() {
            sleep(50 * MS).await;
            highs.push(begin(&service, 0).await);
            sleep(50 * MS).await;
        }
        let waited = began.elapsed();
        assert!((5_000 * MS..=5_150 * MS).contains(&waited), "{waited:?}");
        assert_eq!(full(low.await.unwrap()).bound, Bound::MaxWait);
        for high in highs {
            high.await.unwrap().unwrap();
        }
    }
    check(ten(5_000).build().unwrap()).await;
    check(over(&Remote::new(2 * MS), ten(5_000), OnError::Closed)).await;
}

#[tokio::test(start_paused = true)]
async fn law_15_higher_call_that_gives_up_frees_its_place_at_once() {
    async fn check(shaper: Shaper, late: Duration) {
        for keeps in [false, true] {
            let notes = Notes::new();
            let mut service = classed(shaper.clone()).layer(notes.clone());
            service.call(0).await.unwrap();
            let low = begin(&service, 200).await;
            let mut highs: Vec<_> = (0..3).map(|high| Box::pin(service.call(high))).collect();
            assert!(highs.iter_mut().all(|high| poll(high).is_pending()));
            sleep(50 * MS).await;
            if !keeps {
                highs.clear();
            }
            low.await.unwrap().unwrap();
            // A call that is kept and not polled is passed over a few milliseconds after its turn
            // came.
            let late = if keeps { late + 40 * MS } else { late };
            let at = notes.times()[1];
            assert!(
                (100 * MS..=100 * MS + late).contains(&at),
                "keeps them: {keeps}, left at {at:?}"
            );
            drop(highs);
            sleep(200 * MS).await;
        }
    }
    check(ten(5_000).build().unwrap(), MS).await;
    check(
        over(&Remote::new(2 * MS), ten(5_000), OnError::Closed),
        8 * MS,
    )
    .await;
}

/// A turn was due before the call came that takes it, and another call waited for it until its
/// timer's next millisecond.
#[tokio::test(start_paused = true)]
async fn law_15_call_that_passes_another_takes_its_turn_as_of_when_it_was_due() {
    let pace = Pace::new(Rate::per_second(1_600)).max_wait(Duration::from_secs(9));
    let shaper = Shaper::builder(pace)
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    let service = classed(shaper).layer(Notes::new());
    let (began, mut calls) = (Instant::now(), Vec::new());
    for _ in 0..300 {
        calls.push(begin(&service, 200).await);
    }
    for _ in 0..200 {
        advance(MS * 9 / 10).await;
        calls.push(begin(&service, 0).await);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let took = began.elapsed();
    assert!(
        (311 * MS..=314 * MS).contains(&took),
        "{took:?} for 500 calls, 1,600 a second"
    );
}

#[tokio::test(start_paused = true)]
async fn shape_call_that_passes_waits_only_for_the_units_that_it_uses() {
    async fn check(shaper: Shaper, late: Duration) {
        let notes = Notes::new();
        let service = classed(shaper)
            .by_unit("tokens", |call| call % 100)
            .unwrap()
            .layer(notes.clone());
        // Fifty tokens take 5 s, and a request a tenth.
        let first = begin(&service, 250).await;
        sleep(20 * MS).await;
        let low = begin(&service, 201).await;
        sleep(20 * MS).await;
        let high = begin(&service, 0).await;
        for call in [first, high, low] {
            call.await.unwrap().unwrap();
        }
        assert_eq!(notes.order(), [250, 0, 201]);
        assert!(
            (100 * MS..=100 * MS + late).contains(&notes.times()[1]),
            "{:?}",
            notes.times()
        );
        assert!(
            (5_000 * MS..=5_000 * MS + late).contains(&notes.times()[2]),
            "{:?}",
            notes.times()
        );
    }
    let paces = || ten(60_000).by_unit("tokens", Rate::per_second(10));
    check(paces().build().unwrap(), 2 * MS).await;
    check(over(&Remote::new(2 * MS), paces(), OnError::Closed), 6 * MS).await;
}

/// The store grants the turns of a round trip at once, and calls that cost more pass those that
/// they were granted to.
#[tokio::test(start_paused = true)]
async fn law_15_no_turn_is_lost_to_a_call_that_passes_one_of_another_cost() {
    let pace = Pace::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(9));
    let shaper = over(
        &Remote::new(20 * MS),
        Shaper::builder(pace).headroom(Duration::ZERO),
        OnError::Closed,
    );
    let notes = Notes::new();
    let service = classed(shaper)
        .cost(|call| if *call < 100 { 2 } else { 1 })
        .layer(notes.clone());
    let (began, mut calls) = (Instant::now(), Vec::new());
    for _ in 0..600 {
        calls.push(begin(&service, 200).await);
    }
    for _ in 0..20 {
        sleep(15 * MS).await;
        calls.push(begin(&service, 0).await);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let took = began.elapsed();
    assert!(
        (639 * MS..=670 * MS).contains(&took),
        "{took:?} for 640 units, 1,000 a second"
    );
    assert!(
        notes.calls()[..580]
            .iter()
            .filter(|(call, _)| *call == 0)
            .count()
            == 20,
        "higher ones leave first"
    );
}

/// A granted turn is offered to one call that it fits, and the turns behind it to those that they
/// fit.
#[tokio::test(start_paused = true)]
async fn law_15_no_turn_is_lost_to_a_call_that_passes_one_of_its_own_cost() {
    let pace = Pace::new(Rate::per_second(1_000)).max_wait(Duration::from_secs(9));
    let shaper = over(
        &Remote::new(20 * MS),
        Shaper::builder(pace).headroom(Duration::ZERO),
        OnError::Closed,
    );
    let service = classed(shaper)
        .cost(|call| if *call == 250 { 5 } else { 1 })
        .layer(Notes::new());
    let (began, mut calls) = (Instant::now(), Vec::new());
    for _ in 0..100 {
        calls.push(begin(&service, 200).await);
        calls.push(begin(&service, 250).await);
    }
    for _ in 0..20 {
        sleep(13 * MS).await;
        calls.push(begin(&service, 0).await);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let took = began.elapsed();
    assert!(
        (619 * MS..=650 * MS).contains(&took),
        "{took:?} for 620 units, 1,000 a second"
    );
}

#[tokio::test(start_paused = true)]
async fn shape_call_in_no_class_is_in_the_lowest() {
    let notes = Notes::new();
    let names = |call: &u64| if *call == 7 { "hihg" } else { "high" };
    let service = layer(ten(5_000))
        .priority([("high", 0), ("low", 1)], names)
        .unwrap()
        .layer(notes.clone());
    let mut calls = Vec::new();
    for call in [0, 7, 1] {
        calls.push(begin(&service, call).await);
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(notes.order(), [0, 1, 7]);
}

#[test]
fn shape_classes_that_help_no_call_are_refused() {
    for (classes, start) in [
        (&[][..], "policy \"shape\": reserve is without a class: "),
        (&[("", 0)], "policy \"shape\": class is \"\": "),
        (
            &[("a", 0), ("a", 1)],
            "policy \"shape\": class is \"a\" twice: ",
        ),
        (
            &[("a", 1), ("b", 1)],
            "policy \"shape\": reserve is 1 of \"b\": it stands below \"a\"",
        ),
        (
            &[("a", 0), ("b", 51)],
            "policy \"shape\": reserve is 51 of \"b\": the longest wait has at most 51 units and \
                a request takes 1",
        ),
    ] {
        let error = layer::<()>(ten(5_000))
            .priority(classes.iter().copied(), class_of)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(start), "{error}");
    }
    assert!(
        layer::<()>(ten(5_000))
            .priority([("a", 0), ("b", 50)], class_of)
            .is_ok()
    );
}

/// With the largest reserve that can be, while no call waits.
#[tokio::test(start_paused = true)]
async fn shape_call_of_each_class_leaves_at_once_if_none_waits() {
    let service = layer(ten(5_000))
        .priority([("high", 0), ("low", 50)], class_of)
        .unwrap();
    let service = service.layer(service_fn(async |call: u64| Ok::<_, Infallible>(call)));
    let began = Instant::now();
    service.clone().oneshot(200).await.unwrap();
    assert_eq!(
        full(service.clone().oneshot(200).await).retry_after,
        Some(100 * MS)
    );
    sleep(100 * MS).await;
    service.oneshot(200).await.unwrap();
    assert_eq!(began.elapsed(), 100 * MS);
}
