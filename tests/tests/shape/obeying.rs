//! Shapers obey the limits that an upstream states in its responses, within bounds.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_tower::shape::{PauseCause, Shaper, TokioClock};
use throttle_tower::{
    Constant, FixedWindow, MemoryBackend, OnError, Pace, Rate, ShapeLayer, ThrottleLayer, limit,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{MS, Remote, over, ten};

type Shaped<Body = ()> = ShapeLayer<Request<()>, Response<Body>>;

pub(crate) fn obeying<Body>(per_second: u64) -> Shaped<Body> {
    let pace = Pace::new(Rate::per_second(per_second)).max_wait(Duration::from_secs(3_600));
    ShapeLayer::of(
        Shaper::builder(pace)
            .headroom(Duration::ZERO)
            .build()
            .unwrap(),
    )
    .obey_upstream()
}

/// An upstream whose response depends on the number of the call.
pub(crate) fn upstream(
    answer: impl Fn(usize) -> Response<()> + Clone + Send + 'static,
) -> impl Service<Request<()>, Response = Response<()>, Error = std::convert::Infallible, Future: Send>
+ Clone
+ Send {
    let calls = Arc::new(AtomicUsize::new(0));
    service_fn(move |_: Request<()>| {
        let answer = answer(calls.fetch_add(1, Ordering::SeqCst));
        async move { Ok(answer) }
    })
}

pub(crate) fn say(status: u16, fields: &[(&'static str, &str)]) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in fields {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

/// The time at which the second call leaves, after this response to the first.
async fn second_leaves(layer: Shaped, first: Response<()>) -> Duration {
    let (status, headers) = (first.status(), first.headers().clone());
    let mut service = layer.layer(upstream(move |call| {
        let mut response = Response::new(());
        if call == 0 {
            (*response.status_mut(), *response.headers_mut()) = (status, headers.clone());
        }
        response
    }));
    let answer = service.call(Request::new(())).await.unwrap();
    assert_eq!(answer.status(), status, "passed on untouched");
    let start = Instant::now();
    service.call(Request::new(())).await.unwrap();
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn shape_error_with_a_stated_wait_pauses_the_key_whatever_its_status() {
    for status in [400, 413, 418, 420, 429, 430, 403, 500, 502, 503, 504, 529] {
        for text in ["7", "7s", "0m7s"] {
            let wait = second_leaves(obeying(10), say(status, &[("retry-after", text)])).await;
            assert_eq!(wait, Duration::from_secs(7), "{status}");
        }
    }
    let amazon = say(400, &[("x-amz-retry-after", "7000")]);
    assert_eq!(
        second_leaves(obeying(10), amazon).await,
        Duration::from_secs(7)
    );
}

#[tokio::test(start_paused = true)]
async fn shape_success_with_a_stated_wait_pauses_nothing() {
    for status in [200, 202, 301, 304] {
        let wait = second_leaves(obeying(10), say(status, &[("retry-after", "7")])).await;
        assert_eq!(wait, 100 * MS, "{status}");
    }
    for response in [
        say(403, &[]),
        say(400, &[("retry-after", "soon")]),
        say(500, &[]),
    ] {
        assert_eq!(second_leaves(obeying(10), response).await, 100 * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn shape_refusal_if_adds_refusals() {
    let layer = || {
        obeying(10).refusal_if(|status, headers| status == 400 && headers.contains_key("x-limit"))
    };
    let limit = [("x-limit", "1")];
    assert_eq!(
        second_leaves(layer(), say(400, &limit)).await,
        Duration::from_secs(1)
    );
    assert_eq!(second_leaves(layer(), say(400, &[])).await, 100 * MS);
    assert_eq!(
        second_leaves(layer(), say(429, &[])).await,
        Duration::from_secs(1)
    );
}

#[tokio::test(start_paused = true)]
async fn shape_shaper_of_a_layer_obeys_with_the_settings_of_the_layer() {
    let layer = obeying::<()>(10)
        .longest_pause(Duration::from_secs(20))
        .refusal_if(|status, _| status == 400);
    let shaper = layer.shaper().clone();
    let year = say(400, &[("retry-after", "31536000")]);
    shaper.obey("key", Instant::now(), year.status(), year.headers());
    let start = Instant::now();
    shaper.schedule("key", 1).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(20));
}

/// As where a server in front of the API answers from another clock, or the client's is wrong.
#[tokio::test(start_paused = true)]
async fn shape_instants_are_compared_with_the_date_of_their_response() {
    let date = ("date", "Sat, 21 Nov 2026 12:00:00 GMT");
    for (name, text) in [
        ("retry-after", "Sat, 21 Nov 2026 12:00:30 GMT"),
        ("retry-after", "1795262430"),
        ("retry-after", "2026-11-21T12:00:30Z"),
    ] {
        let wait = second_leaves(obeying(10), say(429, &[date, (name, text)])).await;
        assert_eq!(wait, Duration::from_secs(30), "{text}");
    }
    let reset = [
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1795262430"),
        date,
    ];
    assert_eq!(
        second_leaves(obeying(10), say(403, &reset)).await,
        Duration::from_secs(30)
    );
}

#[tokio::test(start_paused = true)]
async fn shape_stated_wait_replaces_the_reset_of_its_response() {
    for (seconds, retry_after) in [(3, "5"), (50, "3")] {
        let window = format!(r#""api";r=0;t={seconds}"#);
        let both = say(429, &[("ratelimit", &window), ("retry-after", retry_after)]);
        let wait = Duration::from_secs(retry_after.parse().unwrap());
        assert_eq!(second_leaves(obeying(10), both).await, wait);
    }
}

/// The answer of the next call shows whether the reset is the end of a window.
#[tokio::test(start_paused = true)]
async fn shape_nothing_left_of_an_answered_call_is_tried_once() {
    let used_up = || say(200, &[("ratelimit", r#""api";r=0;t=12"#)]);
    assert_eq!(
        second_leaves(obeying(10), used_up()).await,
        Duration::from_secs(1)
    );
    let soon = say(
        200,
        &[("ratelimit-remaining", "0"), ("ratelimit-reset", "0.5")],
    );
    assert_eq!(second_leaves(obeying(10), soon).await, 500 * MS);
    let refusal = say(429, &[("ratelimit", r#""api";r=0;t=11"#)]);
    let service = obeying(10).layer(upstream(move |call| match call {
        1 => refusal.clone(),
        _ => used_up(),
    }));
    let times = answers(&service, 4).await;
    // Tried after a second; the window's end; the next window is over as well.
    assert_eq!(
        times,
        [(0, 200), (1_000, 429), (12_000, 200), (24_000, 200)]
    );
}

#[tokio::test(start_paused = true)]
async fn shape_nothing_left_of_a_quota_that_refills_pauses_nothing() {
    let full = || say(200, &[("ratelimit", r#""api";r=0;t=3600"#)]);
    let service = obeying(10).layer(upstream(move |_| full()));
    let times: Vec<_> = answers(&service, 5)
        .await
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    assert_eq!(times, [0, 1_000, 1_100, 1_200, 1_300]);
    // A wait that is much shorter than the reset shows the same.
    let refusal = say(
        429,
        &[("ratelimit", r#""api";r=0;t=3600"#), ("retry-after", "4")],
    );
    let service = obeying(10).layer(upstream(move |call| match call {
        0 => refusal.clone(),
        _ => full(),
    }));
    let times: Vec<_> = answers(&service, 4)
        .await
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    assert_eq!(times, [0, 4_000, 4_100, 4_200]);
}

#[tokio::test(start_paused = true)]
async fn shape_what_is_left_is_not_spread() {
    let some = say(200, &[("ratelimit", r#""api";r=58;t=3600"#)]);
    let service = obeying(10).layer(upstream(move |_| some.clone()));
    let times: Vec<_> = answers(&service, 50)
        .await
        .into_iter()
        .map(|(at, _)| at)
        .collect();
    assert_eq!(times, (0..50).map(|call| call * 100).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn shape_pause_is_bounded_whatever_the_upstream_asks_for() {
    for fields in [
        [("retry-after", "31536000")],
        [("retry-after", "99999999999999999999999")],
        [("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")],
        [("ratelimit", r#""api";r=0;t=999999999999999"#)],
        [("ratelimit", r#""api";r=1;t=999999999999999"#)],
    ] {
        let wait = second_leaves(obeying(10), say(429, &fields)).await;
        assert!(wait <= Duration::from_secs(3_600), "{fields:?}: {wait:?}");
        let wait = second_leaves(
            obeying(10).longest_pause(Duration::from_secs(2)),
            say(429, &fields),
        )
        .await;
        assert!(wait <= Duration::from_secs(2), "{fields:?}: {wait:?}");
    }
    let year = || say(429, &[("retry-after", "31536000")]);
    assert_eq!(
        second_leaves(obeying(10), year()).await,
        Duration::from_secs(3_600),
        "an hour, unless configured"
    );
    let longer = obeying(10).longest_pause(Duration::from_secs(90));
    assert_eq!(second_leaves(longer, year()).await, Duration::from_secs(90));
    let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(3_600));
    let before = ShapeLayer::new(pace)
        .unwrap()
        .longest_pause(Duration::from_secs(2))
        .obey_upstream();
    assert_eq!(
        second_leaves(before, year()).await,
        Duration::from_secs(2),
        "whatever the order of the options"
    );
}

#[tokio::test(start_paused = true)]
async fn shape_longest_pause_of_zero_disables_pauses() {
    for refusal in [
        say(429, &[]),
        say(429, &[("retry-after", "7")]),
        say(429, &[("ratelimit", r#""api";r=0;t=7"#)]),
    ] {
        let layer = obeying(10).longest_pause(Duration::ZERO);
        let (shaper, wait) = (layer.shaper().clone(), second_leaves(layer, refusal).await);
        assert_eq!(wait, 100 * MS, "the pace alone");
        assert_eq!((shaper.stats().refusals, shaper.stats().paused), (1, 0));
    }
    let paused = obeying(10).longest_pause(MS * 1_000);
    let wait = second_leaves(paused, say(429, &[("retry-after", "7")])).await;
    assert_eq!(wait, Duration::from_secs(1));
}

/// A function says which responses describe the present: not those of a cache.
#[tokio::test(start_paused = true)]
async fn shape_response_without_a_head_pauses_nothing() {
    let layer = || {
        obeying(10).obey_upstream_of(|response: &Response<()>| {
            let is_cached = response.headers().contains_key("age");
            (!is_cached).then(|| (response.status(), response.headers()))
        })
    };
    let refusal = say(429, &[("retry-after", "7")]);
    let cached = say(429, &[("retry-after", "7"), ("age", "5")]);
    let wait = second_leaves(layer(), refusal).await;
    assert_eq!(wait, Duration::from_secs(7));
    assert_eq!(second_leaves(layer(), cached).await, 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn shape_jitter_lengthens_the_longest_pause_too_and_at_most_doubles_it() {
    let mut waits = Vec::new();
    for _ in 0..50 {
        let layer = obeying(10)
            .pause_jitter(u8::MAX)
            .longest_pause(Duration::from_secs(10));
        waits.push(
            second_leaves(layer, say(429, &[("retry-after", "100")]))
                .await
                .as_millis(),
        );
    }
    assert!(
        waits.iter().all(|wait| (10_000..=20_001).contains(wait)),
        "{waits:?}"
    );
    assert!(
        waits.iter().any(|wait| *wait > 15_001),
        "the hundredth percent counts as much: {waits:?}"
    );
}

/// Calls that wait when the pause begins, and calls that come during it, leave after it in order,
/// at the pace.
#[tokio::test(start_paused = true)]
async fn shape_waiting_calls_leave_in_order_after_the_pause() {
    let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(100));
    let shaper = Shaper::builder(pace)
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    let start = Instant::now();
    let mut waiting = JoinSet::new();
    let call = |number: u64| {
        let shaper = shaper.clone();
        async move {
            shaper.schedule("key", 1).await.unwrap();
            (number, start.elapsed().as_millis())
        }
    };
    for number in 0..10 {
        waiting.spawn(call(number));
    }
    sleep(250 * MS).await;
    // Further and longer pauses, as the responses to several calls come in.
    shaper.pause("key", Duration::from_secs(1));
    shaper.pause("key", Duration::from_secs(3));
    shaper.pause("other", Duration::from_secs(30));
    sleep(500 * MS).await;
    for number in 10..15 {
        waiting.spawn(call(number));
    }
    sleep(Duration::from_secs(2)).await;
    shaper.pause("key", Duration::from_secs(1));
    for number in 15..20 {
        waiting.spawn(call(number));
    }
    let mut left = waiting.join_all().await;
    left.sort_by_key(|(_, at)| *at);
    let numbers: Vec<_> = left.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "{left:?}");
    assert_eq!(
        left[..3].iter().map(|(_, at)| *at).collect::<Vec<_>>(),
        [0, 100, 200]
    );
    assert!((3_749..=3_752).contains(&left[3].1), "{left:?}");
    for pair in left[3..].windows(2) {
        assert!(pair[1].1 - pair[0].1 >= 99, "{left:?}");
    }
    assert!(
        left[19].1 <= 3_750 + 1_601 + 1,
        "and no later than they must: {left:?}"
    );
    sleep(100 * MS).await;
    assert_eq!(shaper.stats().paused, 1, "the other key is paused still");
}

#[tokio::test(start_paused = true)]
async fn shape_call_that_a_pause_delays_too_long_is_refused() {
    let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(2));
    let shaper = Shaper::builder(pace)
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    shaper.pause("key", Duration::from_secs(5));
    let error = shaper.schedule("key", 1).await.unwrap_err();
    assert_eq!(
        error.queue_full().unwrap().retry_after,
        Some(Duration::from_secs(3))
    );
    sleep(Duration::from_secs(3)).await;
    shaper.schedule("key", 1).await.unwrap();
    shaper.pause("key", Duration::MAX);
    assert!(shaper.schedule("key", 1).await.is_err());
    shaper.reset("key").await.unwrap();
    shaper.schedule("key", 1).await.unwrap();
}

/// A call leaves with the first of its units, and is bounded by the last one, however they are
/// spaced.
#[tokio::test(start_paused = true)]
async fn shape_last_unit_of_a_call_decides_whether_it_fits_after_a_pause() {
    let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(2));
    let shaper = Shaper::builder(pace)
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    let start = Instant::now();
    shaper.pause("key", Duration::from_secs(1));
    let error = shaper.schedule("key", 12).await.unwrap_err();
    assert_eq!(
        error.queue_full().unwrap().retry_after,
        Some(100 * MS),
        "the last of twelve leaves after 2.1 s"
    );
    shaper.schedule("key", 11).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(1), "the pause is over");
}

/// A window of ten requests in two seconds, and a pace of fifty: what is left is counted near its
/// end, so few calls are refused, and each leaves as soon as its window allows.
#[tokio::test(start_paused = true)]
async fn shape_calls_under_way_are_counted_near_the_end_of_a_quota() {
    let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    let window = FixedWindow::new(Rate::new(10, Duration::from_secs(2)));
    let throttle = ThrottleLayer::builder(limit("upstream", window).by(Constant))
        .backend(store)
        .build()
        .unwrap();
    let answers =
        service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let throttled = throttle.layer(answers);
    let service = obeying(50).layer(service_fn(move |request| {
        let throttled = throttled.clone();
        async move {
            sleep(50 * MS).await;
            let response = throttled.oneshot(request).await;
            sleep(50 * MS).await;
            response
        }
    }));
    let (start, refused) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
    let mut calling = JoinSet::new();
    for _ in 0..40 {
        let (service, refused) = (service.clone(), Arc::clone(&refused));
        calling.spawn(async move {
            while service
                .clone()
                .oneshot(Request::new(()))
                .await
                .unwrap()
                .status()
                != 200
            {
                refused.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    calling.join_all().await;
    let (refused, took) = (refused.load(Ordering::SeqCst), start.elapsed());
    assert!(refused <= 2, "{refused}");
    assert!(took <= 8_500 * MS, "{took:?}");
}

/// A deadline and the longest wait are absolute: a pause moves neither.
#[tokio::test(start_paused = true)]
async fn shape_waiting_calls_that_a_pause_makes_late_fail_when_it_begins() {
    let shaper = ten(10_000).build().unwrap();
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for call in 0..60_u64 {
        let shaper = shaper.clone();
        calls.spawn(async move {
            let left = shaper
                .schedule("key", 1)
                .await
                .map_err(|error| *error.queue_full().unwrap());
            (call, left, start.elapsed().as_millis())
        });
    }
    sleep(950 * MS).await;
    shaper.pause("key", 7_000 * MS);
    let paused = shaper.paused_until("key").unwrap();
    assert_eq!(
        (paused.until - start, paused.cause),
        (7_950 * MS, PauseCause::Program)
    );
    let mut ended = calls.join_all().await;
    ended.sort_by_key(|(call, ..)| *call);
    for (call, left, at) in ended {
        match call {
            0..10 => assert!(left.is_ok() && at == u128::from(call) * 100),
            // The first at the end of the pause, the others an interval apart.
            10..31 => assert!(
                left.is_ok() && at == 7_950 + 100 * u128::from(call - 10),
                "{call} {at}"
            ),
            _ => {
                let full = left.unwrap_err();
                assert_eq!((at, full.pause), (950, Some(paused)));
                assert_eq!(full.retry_after, Some(50 * MS), "{call}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shape_pause_holds_for_the_key_of_the_response() {
    let layer = obeying(10).by(|request: &Request<()>| request.uri().path().into());
    let mut service = layer.layer(upstream(|call| {
        say(if call == 0 { 429 } else { 200 }, &[("retry-after", "7")])
    }));
    let to = |path: &str| Request::get(path).body(()).unwrap();
    service.call(to("/paused")).await.unwrap();
    let start = Instant::now();
    service.call(to("/other")).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    service.call(to("/paused")).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(7));
}

/// Positions of a key that has been idle since its last pause save nothing up.
#[tokio::test(start_paused = true)]
async fn shape_second_pause_of_an_idle_key_is_followed_by_no_burst() {
    let pace = Pace::new(Rate::per_second(10)).max_wait(Duration::from_secs(100));
    let shaper = Shaper::builder(pace)
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    shaper.pause("key", Duration::from_secs(1));
    sleep(Duration::from_secs(10)).await;
    shaper.pause("key", Duration::from_secs(1));
    let start = Instant::now();
    let calls: JoinSet<_> = (0..5)
        .map(|_| {
            let shaper = shaper.clone();
            async move {
                shaper.schedule("key", 1).await.unwrap();
                start.elapsed().as_millis()
            }
        })
        .collect();
    let mut times = calls.join_all().await;
    times.sort_unstable();
    for (call, at) in times.into_iter().enumerate() {
        let due = 1_000 + 100 * call as u128;
        assert!(
            (due..=due + 1).contains(&at),
            "call {call} left after {at} ms"
        );
    }
}

/// How many calls an upstream sees in an hour that refuses all, with each of 8 callers calling
/// again at once.
async fn calls_in_an_hour(layer: Shaped, refusal: Response<()>) -> usize {
    let (status, headers) = (refusal.status(), refusal.headers().clone());
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let service = layer.layer(service_fn(move |_: Request<()>| {
        count.fetch_add(1, Ordering::SeqCst);
        let mut response = Response::new(());
        (*response.status_mut(), *response.headers_mut()) = (status, headers.clone());
        async move {
            sleep(50 * MS).await;
            Ok::<_, std::convert::Infallible>(response)
        }
    }));
    let mut calling = JoinSet::new();
    for _ in 0..8 {
        let mut service = service.clone();
        calling.spawn(async move {
            loop {
                let call = service.ready().await.unwrap().call(Request::new(()));
                if let Err(error) = call.await {
                    sleep(error.retry_after().unwrap().max(MS)).await;
                }
            }
        });
    }
    sleep(Duration::from_secs(3_600)).await;
    calls.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn shape_refusals_without_a_usable_wait_pause_longer_and_longer() {
    for refusal in [
        say(429, &[]),
        say(503, &[("retry-after", "0")]),
        say(200, &[("grpc-status", "8")]),
    ] {
        let calls = calls_in_an_hour(obeying(10), refusal).await;
        // Ten pauses until they are as long as they may be, and sixty in the hour; the response
        // takes half of what the pace takes for a call, so one call after each pause.
        assert!((60..=72).contains(&calls), "{calls} calls");
    }
}

/// After each longest pause one call leaves, and is refused again.
#[tokio::test(start_paused = true)]
async fn shape_wait_beyond_the_longest_pause_costs_one_call_each() {
    let layer = obeying(100).longest_pause(Duration::from_secs(60));
    let calls = calls_in_an_hour(layer, say(429, &[("retry-after", "3600")])).await;
    // At a hundred a second, five calls leave before the first response.
    assert!((60..=66).contains(&calls), "{calls} calls");
}

/// One call finds out whether the upstream answers again. Each answer lets one call more be under
/// way.
#[tokio::test(start_paused = true)]
async fn shape_calls_under_way_double_after_a_refusal() {
    let calls = Arc::new(AtomicUsize::new(0));
    let service = obeying(100).layer(service_fn(move |_: Request<()>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(100 * MS).await;
            let refusal = say(429, &[("retry-after", "2")]);
            Ok::<_, Infallible>(if call == 0 {
                refusal
            } else {
                Response::new(())
            })
        }
    }));
    assert_eq!(answers(&service, 1).await, [(100, 429)]);
    let times = answers(&service, 30).await;
    let answered_by = |until| times.iter().filter(|(at, _)| *at <= until).count();
    // A round trip takes 100 ms, and the pace spaces calls by 10 ms.
    let answered = [2_000, 2_100, 2_210, 2_340, 2_490].map(answered_by);
    assert_eq!(answered, [0, 1, 3, 7, 15], "{times:?}");
}

/// It says nothing, and its place is free again.
#[tokio::test(start_paused = true)]
async fn shape_call_that_is_dropped_after_a_refusal_gives_its_place_back() {
    let calls = Arc::new(AtomicUsize::new(0));
    let service = obeying(100).layer(service_fn(move |_: Request<()>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            if call == 1 {
                sleep(Duration::from_secs(1_000)).await;
            }
            let refusal = say(429, &[("retry-after", "2")]);
            Ok::<_, Infallible>(if call == 0 {
                refusal
            } else {
                Response::new(())
            })
        }
    }));
    answers(&service, 1).await;
    let start = Instant::now();
    let lost = timeout(2_500 * MS, service.clone().oneshot(Request::new(())));
    let waits = service.clone().oneshot(Request::new(()));
    let (lost, waited) = tokio::join!(lost, waits);
    assert!(lost.is_err() && waited.is_ok());
    assert_eq!(start.elapsed(), 2_500 * MS);
}

/// A call that is held for an answer leaves when its bound ends.
#[tokio::test(start_paused = true)]
async fn shape_call_that_is_held_for_an_answer_is_not_refused() {
    let calls = Arc::new(AtomicUsize::new(0));
    let layer = obeying(10).deadline(|_| Some(Duration::from_secs(3)));
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(if call == 0 { 1_000 * MS } else { 5_000 * MS }).await;
            let refusal = say(429, &[("retry-after", "2")]);
            Ok::<_, Infallible>(if call == 0 {
                refusal
            } else {
                Response::new(())
            })
        }
    }));
    assert_eq!(answers(&service, 1).await, [(1_000, 429)]);
    let times = answers(&service, 2).await;
    // The first leaves after the pause, and the other 100 ms before its three seconds are over.
    assert_eq!(times, [(7_000, 200), (7_900, 200)]);
}

/// When each of so many calls at once is answered, in milliseconds, and with which status.
async fn answers<S>(service: &S, calls: usize) -> Vec<(u128, u16)>
where
    S: Service<Request<()>, Response = Response<()>, Error: std::fmt::Debug + Send, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let start = Instant::now();
    let mut calling = JoinSet::new();
    for _ in 0..calls {
        let call = service.clone().oneshot(Request::new(()));
        calling.spawn(async move {
            let status = call.await.unwrap().status().as_u16();
            (start.elapsed().as_millis(), status)
        });
    }
    let mut answers = calling.join_all().await;
    answers.sort_unstable();
    answers
}

/// It left before the refusal, so it says nothing of the time after it.
#[tokio::test(start_paused = true)]
async fn shape_response_of_a_call_from_before_a_pause_ends_no_pause() {
    let calls = Arc::new(AtomicUsize::new(0));
    let inner = service_fn(move |_: Request<()>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            if call == 0 {
                sleep(2_000 * MS).await;
            }
            Ok::<_, Infallible>(say(if call == 0 { 200 } else { 429 }, &[]))
        }
    });
    let service = obeying(10).layer(inner);
    // 1 s and then 2 s, although a call is answered meanwhile.
    let times = answers(&service, 4).await;
    assert_eq!(
        times,
        [(100, 429), (1_100, 429), (2_000, 200), (3_100, 429)]
    );
}

/// While calls are held for an answer, the call whose bound ends leaves before the first one, also
/// over a store that has to be waited for.
#[tokio::test(start_paused = true)]
async fn shape_call_whose_bound_ends_passes_those_that_are_held() {
    async fn departures(shaper: Shaper) -> Vec<(String, u128)> {
        let (start, left) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let notes = Arc::clone(&left);
        let layer = ShapeLayer::of(shaper)
            .by(|_: &Request<()>| "key".into())
            .deadline(|call| (call.uri().path() == "/short").then_some(3_000 * MS))
            .obey_upstream();
        let service = layer.layer(service_fn(move |call: Request<()>| {
            let path = call.uri().path().to_owned();
            let is_first = path == "/first";
            notes
                .lock()
                .unwrap()
                .push((path, start.elapsed().as_millis()));
            async move {
                if !is_first {
                    sleep(Duration::from_secs(30)).await;
                }
                let refusal = say(429, &[("retry-after", "1")]);
                Ok::<_, Infallible>(if is_first { refusal } else { Response::new(()) })
            }
        }));
        let call = |path: &str| {
            service
                .clone()
                .oneshot(Request::get(path).body(()).unwrap())
        };
        call("/first").await.unwrap();
        let calls: JoinSet<_> = ["/a", "/b", "/short"].into_iter().map(call).collect();
        assert!(calls.join_all().await.iter().all(Result::is_ok));
        left.lock().unwrap().clone()
    }
    let remote = Remote::new(2 * MS);
    for left in [
        departures(ten(60_000).build().unwrap()).await,
        departures(over(&remote, ten(60_000), OnError::Closed)).await,
    ] {
        let (paths, times): (Vec<_>, Vec<_>) = left.iter().cloned().unzip();
        assert_eq!(paths, ["/first", "/a", "/short", "/b"], "{left:?}");
        // After the pause; an interval before the bound; two seconds later, when the answers of the
        // others are given up.
        for (at, due) in times.into_iter().zip([0, 1_000, 2_900, 4_900]) {
            assert!((due..due + 20).contains(&at), "{left:?}");
        }
    }
}
