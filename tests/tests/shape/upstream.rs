//! A real upstream counts at most the promised number of calls in any period.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use throttle_redis::RedisBackend;
use throttle_test_servers::Shared;
use throttle_tower::shape::{PauseCause, Shaper};
use throttle_tower::{OnError, Pace, Rate, ShapeLayer};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};

use super::counting::Upstream;

/// The most calls in a period. The headroom covers how much more a busy machine may delay one call
/// than another.
const COUNT: u64 = 80;
const PERIOD: Duration = Duration::from_secs(1);
const HEADROOM: Duration = Duration::from_millis(250);
const CALLS: usize = 192;

type Http = Client<HttpConnector, Empty<Bytes>>;

fn pace() -> Pace {
    Pace::new(Rate::new(COUNT, PERIOD)).max_wait(Duration::from_secs(60))
}

/// Each caller makes its next call after its last response.
async fn run(shapers: &[Shaper], callers: usize, upstream: &Upstream) {
    let mut calling = JoinSet::new();
    for caller in 0..callers {
        let http: Http = Client::builder(TokioExecutor::new()).build_http();
        let service = ShapeLayer::of(shapers[caller % shapers.len()].clone()).layer(http);
        let uri = format!("http://{}/", upstream.address);
        calling.spawn(async move {
            for _ in 0..CALLS / callers {
                let request = Request::get(&uri).body(Empty::new()).unwrap();
                assert_eq!(
                    service.clone().oneshot(request).await.unwrap().status(),
                    StatusCode::OK
                );
            }
        });
    }
    calling.join_all().await;
}

async fn keeps_the_promise(callers: usize) {
    let upstream = Upstream::start().await;
    let shaper = Shaper::builder(pace()).headroom(HEADROOM).build().unwrap();
    let start = Instant::now();
    run(&[shaper], callers, &upstream).await;
    check(&upstream, start.elapsed(), callers);
}

fn check(upstream: &Upstream, took: Duration, callers: usize) {
    assert_eq!(upstream.count(), CALLS);
    let most = upstream.most_within(PERIOD);
    assert!(
        most <= COUNT as usize,
        "{most} in a period of {PERIOD:?} from {callers} callers, promised {COUNT}"
    );
    // A shaper that is merely slow would pass without this check. A single caller waits for each
    // response, and so falls slightly behind.
    let due = (PERIOD + HEADROOM) * (CALLS as u32 - 1) / COUNT as u32;
    assert!(
        took < due * 3 / 2,
        "{took:?} for {CALLS} calls, due in {due:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shape_upstream_never_counts_more_than_promised_from_64_callers() {
    keeps_the_promise(64).await;
}

/// Three backends share nothing but the server, like three processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shape_upstream_never_counts_more_than_promised_over_redis() {
    let shared = Shared::new();
    let upstream = Upstream::start().await;
    let shapers = [(); 3].map(|()| {
        let backend = RedisBackend::builder(throttle_redis::Single::new(&shared.url()).unwrap())
            .prefix(shared.prefix())
            .deadline(Duration::from_secs(2))
            .build()
            .unwrap();
        let shaper = Shaper::builder(pace())
            .headroom(HEADROOM)
            .name("fleet")
            .on_error(OnError::Closed);
        shaper.backend(backend).build().unwrap()
    });
    let start = Instant::now();
    run(&shapers, 9 * 3, &upstream).await;
    let made = CALLS / 27 * 27;
    assert_eq!(upstream.count(), made);
    let most = upstream.most_within(PERIOD);
    assert!(
        most <= COUNT as usize,
        "{most} in a period, promised {COUNT}"
    );
    assert!(start.elapsed() < (PERIOD + HEADROOM) * made as u32 / COUNT as u32 * 3 / 2);
    let sent: u64 = shapers.iter().map(|shaper| shaper.stats().sent).sum();
    assert_eq!(sent, made as u64);
}

/// Two backends share nothing but the server, like two processes. The calls of one wait, and give
/// up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_15_given_up_calls_leave_the_whole_rate_to_another_over_redis() {
    let shared = Shared::new();
    let [one, other] = [(); 2].map(|()| {
        let backend = RedisBackend::builder(throttle_redis::Single::new(&shared.url()).unwrap())
            .prefix(shared.prefix())
            .deadline(Duration::from_secs(2))
            .build()
            .unwrap();
        let pace = Pace::new(Rate::per_second(20)).max_wait(Duration::from_secs(60));
        Shaper::builder(pace)
            .name("pace")
            .on_error(OnError::Closed)
            .backend(backend)
            .build()
            .unwrap()
    });
    let mut given_up = JoinSet::new();
    for _ in 0..100 {
        let one = one.clone();
        given_up.spawn(async move { one.schedule("key", 1).await });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    given_up.shutdown().await;
    let start = Instant::now();
    for _ in 0..20 {
        other.schedule("key", 1).await.unwrap();
    }
    // The hundred calls would take five seconds. The rest is for a busy machine.
    assert!(
        start.elapsed() < Duration::from_millis(2_500),
        "{:?}",
        start.elapsed()
    );
}

/// What the upstream says to one process pauses the other within a look at the store: calls that
/// wait there and could not leave in time fail, later ones as well, and the rest leaves after the
/// pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_16_shape_pause_heard_by_one_process_holds_in_another_over_redis() {
    const PAUSE: Duration = Duration::from_secs(3);
    let shared = Shared::new();
    let process = |max_wait| {
        let backend = RedisBackend::builder(throttle_redis::Single::new(&shared.url()).unwrap())
            .prefix(shared.prefix())
            .deadline(Duration::from_secs(2))
            .build()
            .unwrap();
        let pace = Pace::new(Rate::per_second(20)).max_wait(Duration::from_secs(max_wait));
        Shaper::builder(pace)
            .name("pace")
            .on_error(OnError::Closed)
            .share_pauses(Duration::from_secs(60))
            .backend(backend)
            .build()
            .unwrap()
    };
    let (one, other) = (process(60), process(2));
    let mut calls = JoinSet::new();
    for _ in 0..36 {
        let other = other.clone();
        calls.spawn(async move {
            let error = other.schedule("key", 1).await.err();
            (
                tokio::time::Instant::now(),
                error.map(|error| *error.queue_full().unwrap()),
            )
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let left = tokio::time::Instant::now();
    let headers = http::HeaderMap::from_iter([(http::header::RETRY_AFTER, 3.into())]);
    one.obey("key", left, StatusCode::TOO_MANY_REQUESTS, &headers);
    let ended = calls.join_all().await;
    let failed: Vec<_> = ended.iter().filter(|(_, full)| full.is_some()).collect();
    assert!(failed.len() >= 15, "{ended:?}");
    for (at, full) in failed {
        let paused = full.unwrap().pause.expect("the pause is the cause");
        assert_eq!(paused.cause, PauseCause::Fleet);
        assert!(
            paused.until.max(left + PAUSE) - paused.until.min(left + PAUSE) < PAUSE / 10,
            "{paused:?}"
        );
        // A look each quarter of a second, and time for a busy machine.
        assert!(*at < left + Duration::from_millis(900), "{:?}", *at - left);
    }
    let error = other.schedule("key", 1).await.unwrap_err();
    assert!(
        error.to_string().starts_with("paused by the fleet for "),
        "{error}"
    );
    let paused = other.paused_until("key").expect("a pause");
    tokio::time::sleep(error.retry_after().unwrap() + Duration::from_millis(50)).await;
    for shaper in [&one, &other] {
        shaper.schedule("key", 1).await.unwrap();
        assert!(tokio::time::Instant::now() >= paused.until.min(left + PAUSE));
    }
}
