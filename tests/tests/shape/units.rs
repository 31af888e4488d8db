//! Calls that wait for their turn by several paces at once: requests, and tokens.

use std::convert::Infallible;
use std::time::Duration;

use http::{Response, StatusCode};
use throttle_tower::shape::{Bound, ShapeError, ShapeUsage, Shaper, ShaperBuilder, TokioClock};
use throttle_tower::usage::UsageError;
use throttle_tower::{MemoryBackend, OnError, Pace, Rate, ShapeLayer};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::obeying::say;
use crate::support::{MS, Remote, over, poll, wait};

/// A request takes 100 ms, a token 10 ms.
pub(crate) fn model(max_wait: Duration) -> ShaperBuilder {
    let requests = Pace::new(Rate::per_second(10)).max_wait(max_wait);
    Shaper::builder(requests)
        .by_unit("tokens", Rate::per_second(100))
        .headroom(Duration::ZERO)
}

fn minute() -> Shaper {
    model(Duration::from_secs(60)).build().unwrap()
}

/// When each call left, in ms. They are reserved in this order, at once.
async fn times(shaper: &Shaper, tokens: &[u64]) -> Vec<u128> {
    let start = Instant::now();
    let mut calls = Vec::new();
    for tokens in tokens {
        let shaper = shaper.clone();
        let tokens = *tokens;
        calls.push(tokio::spawn(async move {
            shaper
                .schedule_units("key", 1, &[("tokens", tokens)])
                .await
                .unwrap();
            Instant::now()
        }));
        tokio::task::yield_now().await;
    }
    let mut times = Vec::new();
    for call in calls {
        times.push((call.await.unwrap() - start).as_millis());
    }
    times
}

#[tokio::test(start_paused = true)]
async fn shape_turn_of_two_paces_is_one_decision() {
    let remote = Remote::new(10 * MS);
    let shaper = over(&remote, model(Duration::from_secs(60)), OnError::Closed);
    for _ in 0..3 {
        shaper
            .schedule_units("key", 1, &[("tokens", 20)])
            .await
            .unwrap();
    }
    // Two more were refused: what is due for a call depends on the units that it uses.
    assert_eq!((remote.decisions(), remote.settled()), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn shape_refused_call_takes_of_no_pace() {
    let shaper = model(Duration::from_secs(1)).build().unwrap();
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 100)])
        .await
        .unwrap();
    let error = shaper
        .schedule_units("key", 1, &[("tokens", 11)])
        .await
        .unwrap_err();
    let full = *error.queue_full().unwrap();
    assert_eq!(
        (full.bound, full.unit, full.retry_after),
        (Bound::MaxWait, Some("tokens"), Some(10 * MS))
    );
    let error = shaper
        .schedule_units("key", 2, &[("tokens", 1)])
        .await
        .unwrap_err();
    assert_eq!(
        error.queue_full().map(|full| (full.unit, full.retry_after)),
        Some((None, Some(100 * MS)))
    );
    let mut last = Box::pin(shaper.schedule_units("key", 1, &[("tokens", 10)]));
    assert!(
        poll(&mut last).is_pending(),
        "there is room for exactly this"
    );
    drop(last);
    // A refused call takes nothing of what is given back.
    usage.settle("tokens", 50).unwrap();
    assert!(
        shaper
            .schedule_units("key", 1, &[("tokens", 111)])
            .await
            .is_err()
    );
    assert_eq!(times(&shaper, &[10, 10]).await, [500, 600]);
    assert_eq!(shaper.stats().refused, 3);
}

#[tokio::test(start_paused = true)]
async fn shape_units_that_never_fit_are_an_error_of_their_call() {
    let shaper = model(Duration::from_secs(1)).build().unwrap();
    for tokens in [111, 1_000_000, u64::MAX] {
        let error = shaper
            .schedule_units("key", 1, &[("tokens", tokens)])
            .await
            .unwrap_err();
        let text = "the tokens of the call would wait longer than max_wait, 1s; so many never fit";
        assert_eq!(error.to_string(), text);
    }
    assert_eq!((shaper.stats().refused, shaper.stats().sent), (3, 0));
    shaper
        .schedule_units("key", 1, &[("tokens", 110)])
        .await
        .unwrap();
    let error = shaper.schedule_units("other", 12, &[]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the call would wait longer than max_wait, 1s; its cost never fits"
    );
}

/// The store still decides when the call is dropped.
#[tokio::test(start_paused = true)]
async fn shape_call_dropped_during_a_round_trip_gives_back_both_paces() {
    let remote = Remote::new(10 * MS);
    let shaper = over(&remote, model(Duration::from_secs(60)), OnError::Closed);
    let call = shaper.schedule_units("key", 1, &[("tokens", 500)]);
    assert!(timeout(3 * MS, call).await.is_err());
    sleep(100 * MS).await;
    assert_eq!((remote.decisions(), remote.settled()), (1, 1));
    assert_eq!(times(&shaper, &[1, 1]).await, [10, 110]);
}

#[tokio::test(start_paused = true)]
async fn shape_unused_tokens_let_the_calls_that_wait_leave_earlier() {
    let shaper = minute();
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 100)])
        .await
        .unwrap();
    let start = Instant::now();
    let waits = tokio::spawn({
        let shaper = shaper.clone();
        async move {
            shaper
                .schedule_units("key", 1, &[("tokens", 50)])
                .await
                .unwrap();
            start.elapsed().as_millis()
        }
    });
    tokio::task::yield_now().await;
    usage.settle("tokens", 20).unwrap();
    assert_eq!(times(&shaper, &[30, 30, 30]).await, [700, 1_000, 1_300]);
    assert_eq!(waits.await.unwrap(), 200);
}

#[tokio::test(start_paused = true)]
async fn shape_tokens_beyond_the_estimate_delay_the_next_call() {
    let shaper = minute();
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 20)])
        .await
        .unwrap();
    usage.settle("tokens", 50).unwrap();
    assert_eq!(times(&shaper, &[10, 10, 10]).await, [500, 600, 700]);
    // Time in which no call leaves pays as well.
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 20)])
        .await
        .unwrap();
    usage.settle("tokens", 500).unwrap();
    sleep(4_900 * MS).await;
    assert_eq!(times(&shaper, &[10, 10, 10]).await, [100, 200, 300]);
    // So does the part of a request's time that its tokens do not need.
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 4)])
        .await
        .unwrap();
    usage.settle("tokens", 10).unwrap();
    assert_eq!(times(&shaper, &[10, 10]).await, [100, 200]);
}

#[tokio::test(start_paused = true)]
async fn shape_debt_beyond_the_longest_wait_refuses_calls_meanwhile() {
    let shaper = model(Duration::from_secs(1)).build().unwrap();
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 10)])
        .await
        .unwrap();
    usage.settle("tokens", 310).unwrap();
    sleep(100 * MS).await;
    let mut left = Vec::new();
    let start = Instant::now();
    while left.len() < 4 {
        match shaper.schedule_units("key", 1, &[("tokens", 10)]).await {
            Ok(_) => left.push(start.elapsed().as_millis()),
            Err(error) => sleep(error.queue_full().unwrap().retry_after.unwrap()).await,
        }
    }
    assert_eq!(left, [3_000, 3_100, 3_200, 3_300]);
}

#[tokio::test(start_paused = true)]
async fn shape_usage_is_settled_once_and_by_name() {
    let shaper = minute();
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 40), ("tokens", 2)])
        .await
        .unwrap();
    assert_eq!((usage.taken("tokens"), usage.taken("words")), (42, 0));
    assert_eq!(usage.units().collect::<Vec<_>>(), ["tokens"]);
    assert_eq!(format!("{usage:?}"), r#"{"tokens": 42}"#);
    let unknown = UsageError::UnknownUnit {
        name: "words".to_owned(),
        known: vec!["tokens".to_owned()],
    };
    assert_eq!(usage.settle("words", 1), Err(unknown.clone()));
    usage.clone().settle("tokens", 1).unwrap();
    assert_eq!(
        usage.settle("tokens", 1),
        Err(UsageError::Settled {
            name: "tokens".to_owned()
        })
    );
    let error = shaper
        .schedule_units("key", 1, &[("words", 1)])
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ShapeError::UnknownUnit(error) if *error == unknown),
        "{error}"
    );
    assert_eq!(error.to_string(), unknown.to_string());
    assert!(error.to_string().contains(r#""words""#), "{error}");
    assert_eq!(shaper.stats().sent, 1);
}

#[tokio::test(start_paused = true)]
async fn shape_reset_forgets_what_was_used_as_well() {
    let shaper = minute();
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 10)])
        .await
        .unwrap();
    usage.settle("tokens", 5_000).unwrap();
    shaper.reset("key").await.unwrap();
    assert_eq!(times(&shaper, &[10, 10, 10]).await, [0, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn shape_three_paces_make_one_turn() {
    let shaper = model(Duration::from_secs(60))
        .by_unit("out", Rate::per_second(10))
        .build()
        .unwrap();
    let start = Instant::now();
    for (units, at) in [
        ([("tokens", 20), ("out", 3)], 0),
        ([("tokens", 50), ("out", 4)], 300),
    ] {
        shaper.schedule_units("key", 1, &units).await.unwrap();
        assert_eq!(start.elapsed(), at * MS);
    }
    // What was not used of one unit helps only as far as no other one needs the time.
    let usage = shaper
        .schedule_units("key", 1, &[("tokens", 100), ("out", 6)])
        .await
        .unwrap();
    assert_eq!(start.elapsed(), 800 * MS);
    usage.settle("tokens", 0).unwrap();
    shaper
        .schedule_units("key", 1, &[("tokens", 1), ("out", 1)])
        .await
        .unwrap();
    assert_eq!(start.elapsed(), 1_400 * MS);
}

#[test]
fn shape_units_are_checked_when_the_shaper_is_built() {
    let text = |builder: ShaperBuilder| builder.build().unwrap_err().to_string();
    let second = Duration::from_secs(1);
    let twice = text(model(second).by_unit("tokens", Rate::per_second(5)));
    assert!(
        twice.contains("unit") && twice.contains("each unit has one pace"),
        "{twice}"
    );
    let requests = text(model(second).by_unit("requests", Rate::per_second(5)));
    assert!(requests.contains("the pace of requests"), "{requests}");
    for name in ["", "a b", "é"] {
        assert!(text(model(second).by_unit(name, Rate::per_second(5))).contains("ASCII letters"));
    }
    let never = text(model(second).by_unit("words", Rate::per_second(0)));
    assert!(never.contains("words") && never.contains("rate"), "{never}");
    let layer: ShapeLayer<u64, u64> = ShapeLayer::of(model(second).build().unwrap());
    let unknown = layer
        .clone()
        .by_unit("words", |_| 1)
        .unwrap_err()
        .to_string();
    assert!(
        unknown.contains(r#"no unit named "words" is paced"#) && unknown.contains("tokens"),
        "{unknown}"
    );
    let twice = layer
        .by_unit("tokens", |_| 1)
        .unwrap()
        .by_unit("tokens", |_| 1)
        .unwrap_err()
        .to_string();
    assert!(twice.contains("one estimate"), "{twice}");
    let one_pace = ShapeLayer::<u64, ()>::new(Pace::new(Rate::per_second(5))).unwrap();
    let none = one_pace.by_unit("tokens", |_| 1).unwrap_err().to_string();
    assert!(
        none.contains("add .by_unit(…) to the shaper's builder"),
        "{none}"
    );
}

/// A model that answers with the tokens that it was asked for.
fn answers() -> impl Service<u64, Response = Response<u64>, Error = Infallible, Future: Send> + Clone
{
    service_fn(async |tokens: u64| Ok(Response::new(tokens)))
}

#[tokio::test(start_paused = true)]
async fn shape_layer_settles_what_a_response_says() {
    let layer = ShapeLayer::of(model(Duration::from_secs(60)).build().unwrap())
        .by_unit("tokens", |_: &u64| 100)
        .unwrap();
    let mut service = layer
        .settle_with(|response: &mut Response<u64>, usage| {
            usage.settle("tokens", *response.body()).unwrap();
        })
        .layer(answers());
    let start = Instant::now();
    for (at, tokens) in [(0, 30), (300, 1), (400, 60), (1_000, 30)] {
        service.ready().await.unwrap().call(tokens).await.unwrap();
        assert_eq!(start.elapsed(), at * MS);
    }
    assert_eq!(service.layer().stats().sent, 4);
}

#[tokio::test(start_paused = true)]
async fn shape_response_is_settled_by_each_function_in_the_order_given() {
    let pace = model(Duration::from_secs(60)).build().unwrap();
    let layer = ShapeLayer::of(pace)
        .by_unit("tokens", |tokens: &u64| *tokens)
        .unwrap()
        .settle_with(|response: &mut Response<u64>, _| *response.body_mut() += 1)
        .settle_with(|response: &mut Response<u64>, _| *response.body_mut() *= 10)
        .obey_upstream();
    let response = layer.layer(answers()).oneshot(2).await.unwrap();
    assert_eq!(response.into_body(), 30);
}

#[tokio::test(start_paused = true)]
async fn shape_layer_hands_the_usage_to_the_caller() {
    let layer = ShapeLayer::of(model(Duration::from_secs(60)).build().unwrap());
    let estimated = layer
        .cost(|_| 0)
        .by_unit("tokens", |tokens: &u64| *tokens)
        .unwrap();
    let handing = estimated.settle_with(|response: &mut Response<u64>, usage| {
        response.extensions_mut().insert(usage);
    });
    let mut service = handing.layer(answers());
    let response = service.ready().await.unwrap().call(200).await.unwrap();
    let usage: &ShapeUsage = response.extensions().get().unwrap();
    assert_eq!(usage.taken("tokens"), 200);
    usage.settle("tokens", 20).unwrap();
    let start = Instant::now();
    service.ready().await.unwrap().call(1).await.unwrap();
    assert_eq!(start.elapsed(), 200 * MS);
    // A call that costs nothing of any unit is not delayed, and has nothing to settle.
    let response = service.ready().await.unwrap().call(0).await.unwrap();
    assert!(response.extensions().get::<ShapeUsage>().is_none());
    assert_eq!(start.elapsed(), 200 * MS);
}

#[tokio::test(start_paused = true)]
async fn shape_deadline_holds_for_the_turn_by_all_paces() {
    let layer = ShapeLayer::of(model(Duration::from_secs(60)).build().unwrap());
    let layer = layer
        .by_unit("tokens", |tokens: &u64| *tokens)
        .unwrap()
        .deadline(|_| Some(300 * MS));
    let mut service = layer.layer(answers());
    service.call(20).await.unwrap();
    let mut fits = Box::pin(service.call(10));
    assert!(poll(&mut fits).is_pending());
    let refused = service.call(11).await.unwrap_err();
    let full = refused.queue_full().unwrap();
    assert_eq!(
        (full.bound, full.unit, full.retry_after),
        (Bound::Deadline, Some("tokens"), Some(10 * MS))
    );
    fits.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shape_pause_of_an_upstream_holds_for_the_turn_by_all_paces() {
    let refusal = say(429, &[("retry-after", "3")]);
    let model = service_fn(move |tokens: u64| {
        let answer = if tokens == 99 {
            refusal.clone()
        } else {
            Response::new(())
        };
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let pace = crate::units::model(Duration::from_secs(60));
    let layer = ShapeLayer::of(pace.build().unwrap())
        .by_unit("tokens", |tokens: &u64| *tokens)
        .unwrap()
        .obey_upstream();
    let mut service = layer
        .settle_with(|response: &mut Response<()>, usage| {
            if response.status() == StatusCode::TOO_MANY_REQUESTS {
                usage.settle("tokens", 0).unwrap();
            }
        })
        .layer(model);
    let start = Instant::now();
    assert_eq!(service.call(99).await.unwrap().status(), 429);
    let calls = [30, 5, 40, 1].map(|tokens| service.call(tokens));
    let mut times = Vec::new();
    for call in calls {
        call.await.unwrap();
        times.push(start.elapsed().as_millis());
    }
    assert_eq!(times, [3_000, 3_300, 3_400, 3_800]);
}

#[tokio::test(start_paused = true)]
async fn shape_share_of_a_failed_store_counts_all_paces() {
    let remote = Remote::new(Duration::ZERO);
    let shaper = over(&remote, model(Duration::from_secs(60)), OnError::local(3));
    remote.fail(true);
    assert_eq!(times(&shaper, &[10, 1, 20, 1]).await, [0, 300, 600, 1_200]);
    // A single request fits a share even if no call may wait.
    let remote = Remote::new(Duration::ZERO);
    let shaper = over(&remote, model(Duration::ZERO), OnError::local(3));
    remote.fail(true);
    shaper
        .schedule_units("key", 1, &[("tokens", 10)])
        .await
        .unwrap();
    assert!(
        shaper
            .schedule_units("key", 1, &[("tokens", 10)])
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn shape_shapers_of_one_pace_and_of_two_share_the_pace_of_requests() {
    let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
    let second = Duration::from_secs(1);
    let two = model(second)
        .name("api")
        .backend(memory.clone())
        .build()
        .unwrap();
    let same = model(second)
        .name("api")
        .backend(memory.clone())
        .build()
        .unwrap();
    let one = Pace::new(Rate::per_second(10)).max_wait(second);
    let one = Shaper::builder(one)
        .headroom(Duration::ZERO)
        .name("api")
        .backend(memory)
        .build()
        .unwrap();
    two.schedule_units("key", 1, &[("tokens", 50)])
        .await
        .unwrap();
    assert_eq!(wait(&one, "key").await, 100 * MS);
    assert_eq!(times(&same, &[1]).await, [400]);
}

/// A wrong number stops a key for a minute, and not for ever.
#[tokio::test(start_paused = true)]
async fn shape_debt_is_at_most_a_minute_or_the_longest_wait() {
    async fn check(shaper: Shaper, owed: u64) {
        let start = Instant::now();
        let usage = shaper
            .schedule_units("key", 1, &[("tokens", 10)])
            .await
            .unwrap();
        usage.settle("tokens", u64::MAX).unwrap();
        sleep(10 * MS).await;
        let left = loop {
            match shaper.schedule_units("key", 1, &[("tokens", 10)]).await {
                Ok(_) => break start.elapsed().as_millis() as u64,
                Err(error) => sleep(error.queue_full().unwrap().retry_after.unwrap()).await,
            }
        };
        assert!((owed - 100..=owed + 100).contains(&left), "{left}");
    }
    for (max_wait, owed) in [(1, 60_000), (90, 90_000)] {
        let builder = || model(Duration::from_secs(max_wait));
        let memory = MemoryBackend::builder().clock(TokioClock::new()).build();
        check(builder().build().unwrap(), owed).await;
        check(
            builder().name("model").backend(memory).build().unwrap(),
            owed,
        )
        .await;
        check(over(&Remote::new(2 * MS), builder(), OnError::Closed), owed).await;
    }
}

/// There is no charge to correct.
#[tokio::test(start_paused = true)]
async fn shape_unit_that_was_estimated_at_nothing_delays_the_next_call() {
    let shaper = minute();
    let usage = shaper.schedule_units("key", 1, &[]).await.unwrap();
    usage.settle("tokens", 50).unwrap();
    assert_eq!(times(&shaper, &[1]).await, [500]);
}

#[test]
fn shape_name_has_room_for_its_units() {
    let text = |name: &str| {
        model(Duration::ZERO)
            .name(name)
            .build()
            .map(drop)
            .map_err(|error| error.to_string())
    };
    let plus = text("api+out").unwrap_err();
    assert!(
        plus.contains("no '+'") && plus.contains(r#""api+out""#),
        "{plus}"
    );
    assert_eq!(text(&"x".repeat(57)), Ok(()));
    let long = text(&"x".repeat(58)).unwrap_err();
    assert!(
        long.contains("at most 57 characters") && !long.contains("x+tokens"),
        "{long}"
    );
}

/// Two callers that come back at the earliest time they may: each time there is just room for one
/// call.
#[tokio::test(start_paused = true)]
async fn shape_callers_that_come_just_in_time_pay_what_they_owe() {
    let shaper = model(Duration::from_secs(1)).build().unwrap();
    let start = Instant::now();
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let shaper = shaper.clone();
            tokio::spawn(async move {
                let mut used = 0;
                while start.elapsed() < Duration::from_secs(60) {
                    match shaper.schedule_units("key", 1, &[("tokens", 10)]).await {
                        Ok(usage) => {
                            usage.settle("tokens", 30).unwrap();
                            used += 30;
                        }
                        Err(error) => sleep(error.queue_full().unwrap().retry_after.unwrap()).await,
                    }
                }
                used
            })
        })
        .collect();
    let mut used = 0;
    for caller in callers {
        used += caller.await.unwrap();
    }
    // 100 a second, a debt that is not paid yet, and what waits at the end.
    assert!((5_000..=6_600).contains(&used), "{used}");
}
