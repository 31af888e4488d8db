//! Shapers obey the limits that an upstream states in its responses, within bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_tower::shape::{HttpHead, Shaper, TokioClock};
use throttle_tower::{
    Constant, Gcra, LeakyBucket, MemoryBackend, Rate, ShapeLayer, ThrottleLayer, limit,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::MS;

type Shaped = ShapeLayer<Request<()>, MemoryBackend<TokioClock>, HttpHead>;

pub(crate) fn obeying(per_second: u64) -> Shaped {
    let bucket =
        LeakyBucket::new(Rate::per_second(per_second)).max_wait(Duration::from_secs(3_600));
    ShapeLayer::of(
        Shaper::builder(bucket)
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
async fn shape_retry_after_pauses_the_key() {
    for status in [429, 503] {
        let wait = second_leaves(obeying(10), say(status, &[("retry-after", "7")])).await;
        assert_eq!(wait.as_secs_f32().round(), 7.0, "{status}: {wait:?}");
    }
    let fields = [("retry-after", "7")];
    let ignored = [
        say(429, &[]),
        say(429, &[("retry-after", "soon")]),
        say(500, &fields),
        say(200, &fields),
    ];
    for response in ignored {
        assert_eq!(second_leaves(obeying(10), response).await, 100 * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn shape_success_with_nothing_remaining_pauses_the_key() {
    let wait = second_leaves(obeying(10), say(200, &[("ratelimit", r#""api";r=0;t=3"#)])).await;
    assert_eq!(wait, Duration::from_secs(3));
    let trio = [
        ("x-ratelimit-limit", "60"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "12"),
    ];
    assert_eq!(
        second_leaves(obeying(10), say(200, &trio)).await,
        Duration::from_secs(12)
    );
    // The longer of the two applies.
    for (seconds, retry_after) in [(3, "5"), (5, "3")] {
        let window = format!(r#""api";r=0;t={seconds}"#);
        let both = say(429, &[("ratelimit", &window), ("retry-after", retry_after)]);
        assert_eq!(
            second_leaves(obeying(10), both).await,
            Duration::from_secs(5)
        );
    }
    // One unit is not nothing: the next call may use it.
    let one = say(200, &[("ratelimit", r#""api";r=1;t=10"#)]);
    assert_eq!(second_leaves(obeying(10), one).await, 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn shape_remaining_units_are_spread_over_their_window() {
    // Five in ten seconds at ten a second would be used up in half a second.
    let some = say(200, &[("ratelimit", r#""api";r=5;t=10"#)]);
    let service = obeying(10).layer(upstream(move |call| {
        if call == 0 {
            some.clone()
        } else {
            Response::new(())
        }
    }));
    let mut service = service;
    service.call(Request::new(())).await.unwrap();
    let start = Instant::now();
    let mut times = Vec::new();
    for _ in 0..8 {
        service.call(Request::new(())).await.unwrap();
        times.push(start.elapsed().as_millis());
    }
    assert_eq!(
        times[..6],
        [100, 2_100, 4_100, 6_100, 8_100, 10_100],
        "{times:?}"
    );
    assert_eq!(times[7] - times[6], 100, "what it said is over");
    sleep(100 * MS).await;
    assert_eq!(service.layer().stats().paused, 0, "and forgotten");

    let plenty = say(200, &[("ratelimit", r#""api";r=500;t=10"#)]);
    assert_eq!(second_leaves(obeying(10), plenty).await, 100 * MS);
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
        assert!(wait <= Duration::from_secs(60), "{fields:?}: {wait:?}");
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
        Duration::from_secs(60),
        "a minute, unless configured"
    );
    let longer = obeying(10).longest_pause(Duration::from_secs(90));
    assert_eq!(second_leaves(longer, year()).await, Duration::from_secs(90));
    let bucket = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(3_600));
    let before = ShapeLayer::new(bucket)
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
    let pace = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(100));
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
    let pace = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(2));
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
    let pace = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(2));
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

/// Calls whose turn has come keep to a limit that is stated while they leave: they neither exceed
/// it nor stop.
#[tokio::test(start_paused = true)]
async fn shape_concurrent_calls_keep_to_a_limit_stated_meanwhile() {
    let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    let limits = limit("upstream", Gcra::new(Rate::per_second(25)).burst(25)).by(Constant);
    let throttle = ThrottleLayer::new(limits).unwrap().backend(store).unwrap();
    let inner = service_fn(|_: Request<()>| async {
        Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    });
    let service = obeying(50).layer(throttle.layer(inner));
    let start = Instant::now();
    let mut calling = JoinSet::new();
    for _ in 0..200 {
        let call = service.clone().oneshot(Request::new(()));
        calling.spawn(async move { (call.await.unwrap().status(), start.elapsed()) });
    }
    let mut left = calling.join_all().await;
    left.sort_by_key(|(_, at)| *at);
    assert!(left.iter().all(|(status, _)| *status == StatusCode::OK));
    let longest = left
        .windows(2)
        .map(|pair| pair[1].1 - pair[0].1)
        .max()
        .unwrap();
    assert!(longest <= 80 * MS, "no call stands still: {longest:?}");
    let took = left.last().unwrap().1;
    assert!(
        (6_800 * MS..=8_500 * MS).contains(&took),
        "25 a second, and the burst: {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn shape_deadline_counts_a_slower_pace_too() {
    let bucket = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(20));
    let shaper = Shaper::builder(bucket)
        .headroom(Duration::ZERO)
        .build()
        .unwrap();
    let within = Duration::from_secs(1);
    let layer = ShapeLayer::of(shaper)
        .deadline(move |_| Some(within))
        .obey_upstream();
    let slow = say(200, &[("ratelimit", r#""api";r=5;t=50"#)]);
    let mut service = layer.layer(upstream(move |call| {
        if call == 0 {
            slow.clone()
        } else {
            Response::new(())
        }
    }));
    service.call(Request::new(())).await.unwrap();
    let start = Instant::now();
    let calls: JoinSet<_> = (0..20).map(|_| service.call(Request::new(()))).collect();
    let mut answered = 0;
    for answer in calls.join_all().await {
        answered += usize::from(answer.is_ok());
    }
    assert!((1..=2).contains(&answered), "{answered} of 20");
    assert!(
        start.elapsed() <= within + MS,
        "no call leaves after its deadline: {:?}",
        start.elapsed()
    );
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
    let pace = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(100));
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
                let _ = service.ready().await.unwrap().call(Request::new(())).await;
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

#[tokio::test(start_paused = true)]
async fn shape_wait_beyond_the_longest_pause_is_kept_in_steps_of_one_call() {
    let calls = calls_in_an_hour(obeying(100), say(429, &[("retry-after", "3600")])).await;
    // At a hundred a second, five calls leave before the first response.
    assert!((60..=66).contains(&calls), "{calls} calls");
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

#[tokio::test(start_paused = true)]
async fn shape_steps_end_with_the_first_call_that_is_not_refused() {
    let layer = obeying(10).longest_pause(Duration::from_secs(10));
    let refusal = say(429, &[("retry-after", "3600")]);
    let service = layer.layer(upstream(move |call| {
        if call < 2 {
            refusal.clone()
        } else {
            Response::new(())
        }
    }));
    let start = Instant::now();
    let left = answers(&service, 6).await;
    // Refused; refused after a step; admitted after a step; then the next step's end, and the pace.
    assert_eq!(
        left,
        [
            (0, 429),
            (10_000, 429),
            (20_000, 200),
            (30_000, 200),
            (30_100, 200),
            (30_200, 200)
        ]
    );
    let mut service = service;
    service.call(Request::new(())).await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 30_300, "and no further step");
    assert_eq!(service.layer().stats().paused, 0);
}

/// A call that left before the refusal says nothing about the wait that the refusal announced.
#[tokio::test(start_paused = true)]
async fn shape_success_of_a_call_from_before_a_refusal_ends_no_steps() {
    let layer = obeying(10).longest_pause(Duration::from_secs(10));
    let calls = Arc::new(AtomicUsize::new(0));
    let inner = service_fn(move |_: Request<()>| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        async move {
            if call == 0 {
                sleep(5_000 * MS).await;
                return Ok::<_, std::convert::Infallible>(Response::new(()));
            }
            Ok(say(429, &[("retry-after", "25")]))
        }
    });
    let service = layer.layer(inner);
    let left = answers(&service, 4).await;
    assert_eq!(
        left,
        [(100, 429), (5_000, 200), (10_100, 429), (20_100, 429)]
    );
}

#[tokio::test(start_paused = true)]
async fn shape_server_error_ends_no_steps_and_a_shorter_wait_replaces_them() {
    let layer = obeying(10).longest_pause(Duration::from_secs(10));
    let service = layer.layer(upstream(|call| match call {
        0 => say(429, &[("retry-after", "3600")]),
        1 => say(500, &[]),
        2 => say(429, &[("retry-after", "2")]),
        _ => Response::new(()),
    }));
    let left = answers(&service, 5).await;
    let expected = [
        (0, 429),
        (10_000, 500),
        (20_000, 429),
        (30_000, 200),
        (30_100, 200),
    ];
    assert_eq!(left, expected, "the step that had begun is the last one");
}

/// A call is refused if it would wait too long should the upstream go on to refuse.
#[tokio::test(start_paused = true)]
async fn shape_call_that_would_have_to_wait_for_several_steps_is_refused() {
    let pace = LeakyBucket::new(Rate::per_second(10)).max_wait(Duration::from_secs(30));
    let layer = ShapeLayer::of(
        Shaper::builder(pace)
            .headroom(Duration::ZERO)
            .build()
            .unwrap(),
    )
    .obey_upstream();
    let service = layer.layer(upstream(|_| say(429, &[("retry-after", "3600")])));
    service.clone().oneshot(Request::new(())).await.unwrap();
    let start = Instant::now();
    sleep(Duration::from_secs(29)).await;
    let error = service.clone().oneshot(Request::new(())).await.unwrap_err();
    assert_eq!(
        error.queue_full().unwrap().retry_after,
        Some(Duration::from_secs(1)),
        "sooner than the step ends"
    );
    sleep(Duration::from_secs(1)).await;
    let waiting = tokio::spawn(service.clone().oneshot(Request::new(())));
    sleep(MS).await;
    let behind = service.clone().oneshot(Request::new(())).await.unwrap_err();
    let retry_after = behind.queue_full().unwrap().retry_after.unwrap();
    assert_eq!(retry_after, Duration::from_secs(60) - MS, "a step longer");
    assert_eq!(waiting.await.unwrap().unwrap().status(), 429);
    assert_eq!(start.elapsed(), Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn shape_success_with_nothing_left_for_long_is_kept_in_steps_too() {
    let layer = obeying(10).longest_pause(Duration::from_secs(10));
    let used_up = say(
        200,
        &[
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "25"),
        ],
    );
    let mut service = layer.layer(upstream(move |call| {
        if call == 0 {
            used_up.clone()
        } else {
            Response::new(())
        }
    }));
    let start = Instant::now();
    let mut times = Vec::new();
    for _ in 0..4 {
        service.call(Request::new(())).await.unwrap();
        times.push(start.elapsed().as_millis());
    }
    assert_eq!(times, [0, 10_000, 20_000, 20_100]);
}
