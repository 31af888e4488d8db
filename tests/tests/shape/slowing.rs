//! An upstream's remaining units slow down the key that they belong to.

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use throttle_tower::shape::TokioClock;
use throttle_tower::{Constant, Dialect, FixedWindow, MemoryBackend, Rate, ThrottleLayer, limit};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, service_fn};

use crate::obeying::{obeying, say, upstream};
use crate::support::{MS, ten};

#[tokio::test(start_paused = true)]
async fn shape_pause_is_followed_by_the_slower_pace_of_the_same_response() {
    let both = say(
        429,
        &[("retry-after", "1"), ("ratelimit", r#""api";r=5;t=10"#)],
    );
    let mut service = obeying(10).layer(upstream(move |call| {
        if call == 0 {
            both.clone()
        } else {
            Response::new(())
        }
    }));
    let start = Instant::now();
    let mut times = Vec::new();
    for _ in 0..4 {
        service.call(Request::new(())).await.unwrap();
        times.push(start.elapsed().as_secs());
    }
    assert_eq!(times, [0, 1, 3, 5]);
}

#[tokio::test(start_paused = true)]
async fn shape_waiting_call_leaves_when_its_upstream_allows_the_rate_again() {
    let shaper = ten(60_000).build().unwrap();
    let obey = |said| {
        let headers =
            HeaderMap::from_iter([("ratelimit".parse().unwrap(), HeaderValue::from_static(said))]);
        shaper.obey("key", Instant::now(), StatusCode::OK, &headers);
    };
    obey(r#""api";r=5;t=50"#);
    shaper.schedule("key", 1).await.unwrap();
    let start = Instant::now();
    let waiting = tokio::spawn({
        let shaper = shaper.clone();
        async move { shaper.schedule("key", 1).await.unwrap() }
    });
    sleep(1_000 * MS).await;
    assert!(!waiting.is_finished(), "calls leave ten seconds apart");
    obey(r#""api";r=1000;t=50"#);
    waiting.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 1);
}

/// Of an upstream that allows 10 calls in 2 seconds and takes `trip` to respond: how many calls are
/// refused until 40 are admitted, and how long that takes.
async fn until_forty_are_admitted(dialect: Dialect, trip: Duration) -> (usize, Duration) {
    let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    let window = FixedWindow::new(Rate::new(10, Duration::from_secs(2)));
    let throttle = ThrottleLayer::new(limit("upstream", window).by(Constant))
        .unwrap()
        .headers(dialect);
    let answers =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let throttled = throttle.backend(store).unwrap().layer(answers);
    let mut service = obeying(1_000).layer(service_fn(move |request| {
        let mut throttled = throttled.clone();
        async move {
            tokio::time::sleep(trip).await;
            throttled.call(request).await
        }
    }));
    let (start, mut admitted, mut refused) = (Instant::now(), 0, 0);
    while admitted < 40 {
        match service.call(Request::new(())).await.unwrap().status() {
            StatusCode::OK => admitted += 1,
            _ => refused += 1,
        }
    }
    (refused, start.elapsed())
}

/// What is left is spread until a reset in whole seconds, rounded up. That takes longer than to run
/// into the limit, and no call is refused.
#[tokio::test(start_paused = true)]
async fn shape_stated_window_is_kept_in_twice_the_least_time() {
    for trip in [0, 1, 20, 100].map(Duration::from_millis) {
        let (refused, took) = until_forty_are_admitted(Dialect::Draft11, trip).await;
        assert_eq!(refused, 0, "{trip:?}");
        assert!((6..=12).contains(&took.as_secs()), "{trip:?}: {took:?}");
        let (refused, took) = until_forty_are_admitted(Dialect::None, trip).await;
        assert!(
            refused >= 3,
            "without a statement each window ends in a refusal: {refused}"
        );
        assert!((5..=9).contains(&took.as_secs()), "{trip:?}: {took:?}");
    }
}

/// Nothing is saved up while no call leaves: of calls that come at once, those that wait leave as
/// far apart as the upstream asks, within the longest wait, and the others are refused at once.
#[tokio::test(start_paused = true)]
async fn shape_calls_after_an_idle_time_in_a_slow_one_leave_within_their_bound() {
    let shaper = ten(25_000).build().unwrap();
    let headers = HeaderMap::from_iter([(
        "ratelimit".parse().unwrap(),
        HeaderValue::from_static(r#""api";r=5;t=50"#),
    )]);
    shaper.obey("key", Instant::now(), StatusCode::OK, &headers);
    shaper.schedule("key", 1).await.unwrap();
    sleep(25_000 * MS).await;
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for call in 0..5 {
        let shaper = shaper.clone();
        calls.spawn(async move {
            (
                call,
                shaper.schedule("key", 1).await.is_ok(),
                start.elapsed().as_secs(),
            )
        });
    }
    let mut left = calls.join_all().await;
    left.sort_unstable();
    assert_eq!(
        left,
        [
            (0, true, 0),
            (1, true, 10),
            (2, true, 20),
            (3, false, 0),
            (4, false, 0)
        ]
    );
}
