//! Held requests whose futures are kept and not polled, or dropped: the other requests of their key
//! go on.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use throttle_core::Backend;
use throttle_tower::{Constant, Gcra, Rate, Throttle, ThrottleLayer, limit};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep, timeout};
use tower::{Layer, ServiceExt};

use crate::holding::{Hello, MS, app, paused, per_second, poll, send};
use crate::holding_over_a_store::Distant;

type Sending = Pin<Box<dyn Future<Output = StatusCode> + Send>>;

fn sending<B: Backend>(service: &Throttle<Hello, B>) -> Sending {
    let response = service.clone().oneshot(Request::new(()));
    Box::pin(async { response.await.unwrap().status() })
}

/// Pages that are fetched ahead, as by `buffered(3)`: three at once, and none while the stream is
/// not polled.
struct Pages {
    under_way: VecDeque<Result<StatusCode, Sending>>,
}

impl Pages {
    async fn next(&mut self) -> StatusCode {
        poll_fn(|context| {
            for page in self.under_way.iter_mut().take(3) {
                if let Err(sending) = page
                    && let Poll::Ready(status) = sending.as_mut().poll(context)
                {
                    *page = Ok(status);
                }
            }
            let Some(Ok(status)) = self.under_way.front() else {
                return Poll::Pending;
            };
            let status = *status;
            self.under_way.pop_front();
            Poll::Ready(status)
        })
        .await
    }
}

/// The details of each page are fetched before the next page is polled.
#[tokio::test(start_paused = true)]
async fn law_15_nested_request_is_admitted_beside_pages_that_are_not_polled() {
    let service = paused(per_second(20, Duration::from_secs(2))).layer(Hello);
    let mut pages = Pages {
        under_way: (0..4).map(|_| Err(sending(&service))).collect(),
    };
    let start = Instant::now();
    for number in 0..4 {
        assert_eq!(pages.next().await, StatusCode::OK, "page {number}");
        let asked = Instant::now();
        assert_eq!(sending(&service).await, StatusCode::OK, "detail {number}");
        assert!(
            asked.elapsed() <= 150 * MS,
            "detail {number} after {:?}",
            asked.elapsed()
        );
    }
    assert!(
        start.elapsed() <= 400 * MS,
        "eight at one each 50 ms: {:?}",
        start.elapsed()
    );
}

/// The caller keeps the future and does something else, like the loser of a `select!`.
#[tokio::test(start_paused = true)]
async fn law_15_kept_request_costs_no_turn_and_has_the_next_one_when_polled() {
    let app = app(&paused(per_second(20, Duration::from_secs(1))));
    let start = Instant::now();
    assert_eq!(send(&app, 1).await.status(), StatusCode::OK);
    let [mut kept, mut forgotten] = [0, 1].map(|_| Box::pin(send(&app, 1)));
    assert!(poll(&mut kept).is_pending() && poll(&mut forgotten).is_pending());
    for number in 1..=10 {
        assert_eq!(send(&app, 1).await.status(), StatusCode::OK, "{number}");
        let (due, at) = (number * 50 * MS, start.elapsed());
        assert!((due..=due + 10 * MS).contains(&at), "{number} at {at:?}");
    }
    let mut behind = [0, 1].map(|_| Box::pin(send(&app, 1)));
    for behind in &mut behind {
        assert!(poll(behind).is_pending());
    }
    assert!(
        poll(&mut kept).is_pending(),
        "the turn is taken by the first one that is polled"
    );
    let [second, fourth] = behind;
    let at = |request: Pin<Box<dyn Future<Output = Response<Body>>>>| async move {
        assert_eq!(request.await.status(), StatusCode::OK);
        start.elapsed().as_millis() / 50
    };
    let (second, kept, fourth) = tokio::join!(at(second), at(kept), at(fourth));
    assert_eq!([second, kept, fourth], [11, 12, 13]);
}

/// Its own wait is over, so it takes no turn of those that wait.
#[tokio::test(start_paused = true)]
async fn law_15_kept_request_is_refused_after_its_longest_wait_if_others_wait() {
    let app = app(&paused(per_second(20, 200 * MS)));
    assert_eq!(send(&app, 1).await.status(), StatusCode::OK);
    let mut kept = Box::pin(send(&app, 1));
    assert!(poll(&mut kept).is_pending());
    for _ in 0..6 {
        assert_eq!(send(&app, 1).await.status(), StatusCode::OK);
    }
    let mut waits = Box::pin(send(&app, 1));
    assert!(poll(&mut waits).is_pending());
    let Poll::Ready(refused) = poll(&mut kept) else {
        panic!("it is not refused at once")
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(waits.await.status(), StatusCode::OK);
}

/// The large request leaves long before its turn, and the second one is not polled to notice that
/// it is the first.
#[tokio::test(start_paused = true)]
async fn law_15_turn_of_a_dropped_request_passes_one_that_is_not_polled() {
    let cost =
        |parts: &http::request::Parts| parts.headers["x-user"].to_str().unwrap().parse().unwrap();
    let ten = limit("held", Gcra::new(Rate::per_second(10)).burst(50))
        .by(Constant)
        .cost(cost);
    let app = app(&paused(ten.wait_up_to(Duration::from_secs(10))));
    assert_eq!(send(&app, 50).await.status(), StatusCode::OK);
    let start = Instant::now();
    let (mut large, mut kept) = (Box::pin(send(&app, 50)), Box::pin(send(&app, 2)));
    let mut small = Box::pin(send(&app, 2));
    assert!(
        poll(&mut large).is_pending()
            && poll(&mut kept).is_pending()
            && poll(&mut small).is_pending()
    );
    drop(large);
    assert_eq!(small.await.status(), StatusCode::OK);
    assert!(start.elapsed() <= 260 * MS, "{:?}", start.elapsed());
    assert_eq!(kept.await.status(), StatusCode::OK);
    assert!(start.elapsed() <= 410 * MS, "{:?}", start.elapsed());
}

/// What becomes of a request that does not wait for its response.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Dropped after so many milliseconds.
    Dropped(u64),
    /// Polled for so long, then kept without being polled, then polled again or dropped.
    Kept { polled: u64, kept: u64, again: bool },
}

fn fate() -> impl Strategy<Value = Fate> {
    let kept = |(polled, kept, again)| Fate::Kept {
        polled,
        kept,
        again,
    };
    prop_oneof![
        (0..300_u64).prop_map(Fate::Dropped),
        (0..300_u64, 10..1_000_u64, any::<bool>()).prop_map(kept)
    ]
}

async fn meet(mut sending: Sending, fate: Fate) {
    match fate {
        Fate::Dropped(after) => drop(timeout(Duration::from_millis(after), sending).await),
        Fate::Kept {
            polled,
            kept,
            again,
        } => {
            if timeout(Duration::from_millis(polled), &mut sending)
                .await
                .is_err()
            {
                sleep(Duration::from_millis(kept)).await;
                if again {
                    sending.await;
                }
            }
        }
    }
}

/// Sends the next request after each response.
async fn call_without_end<B: Backend>(service: Throttle<Hello, B>) {
    loop {
        if sending(&service).await != StatusCode::OK {
            sleep(5 * MS).await;
        }
    }
}

const SECONDS: u64 = 2;

/// What the store admits in that time, per mille of the limit, beside requests with such fates.
async fn admitted(
    rate: u64,
    burst: u64,
    store: Distant,
    fates: Vec<(u64, Fate)>,
) -> Result<u64, TestCaseError> {
    let held = limit("held", Gcra::new(Rate::per_second(rate)).burst(burst)).by(Constant);
    let layer = ThrottleLayer::builder(held.wait_up_to(Duration::from_secs(2)))
        .backend(store.clone())
        .build()
        .unwrap();
    let (service, start) = (layer.layer(Hello), Instant::now());
    for _ in 0..4 {
        tokio::spawn(call_without_end(service.clone()));
    }
    for (at, fate) in fates {
        let service = service.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(at)).await;
            meet(sending(&service), fate).await;
        });
    }
    while start.elapsed() < Duration::from_secs(SECONDS) {
        sleep(10 * MS).await;
        let most = burst + rate * start.elapsed().as_micros() as u64 / 1_000_000;
        prop_assert!(
            store.admitted() as u64 <= most,
            "{} of {most} by {:?}",
            store.admitted(),
            start.elapsed()
        );
    }
    // The turn that is due in this moment may be under way.
    Ok((store.admitted() as u64 + 1) * 1_000 / (rate * SECONDS))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// In memory, and over a store with a round trip shorter than the interval of the limit.
    #[test]
    fn law_15_queue_admits_its_rate_beside_requests_that_are_dropped_or_kept(
        (rate, round_trip) in select(vec![(20, 0), (20, 10), (100, 0), (100, 4), (1_000, 0)]),
        burst in 1..4_u64,
        fates in vec((0..1_900_u64, fate()), 0..16),
    ) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let share = runtime.block_on(async {
            let store = Distant::at(Duration::from_millis(round_trip));
            admitted(rate, burst, store, fates).await
        })?;
        prop_assert!(share >= 980, "{share} ‰ of the limit");
    }
}

/// A runtime with held requests of its own.
fn other_runtime<B: Backend>(service: &Throttle<Hello, B>) -> Runtime
where
    Throttle<Hello, B>: Send,
{
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    for _ in 0..10 {
        runtime.spawn(call_without_end(service.clone()));
    }
    runtime.block_on(async { sleep(100 * MS).await });
    runtime
}

/// On the real clock, beside a runtime that ends or is not driven any longer. The best of several
/// rounds counts, because the machine may be busy.
#[test]
fn law_15_queue_goes_on_beside_a_runtime_that_ends_or_is_not_driven() {
    const RATE: u64 = 200;
    for round_trip in [0, 2] {
        for ends in [true, false] {
            let mut best = 0;
            for _ in 0..10 {
                let store = Distant::at(Duration::from_millis(round_trip));
                let layer = ThrottleLayer::builder(per_second(RATE, Duration::from_secs(2)))
                    .backend(store.clone())
                    .build()
                    .unwrap();
                let service = layer.layer(Hello);
                let runtime = Builder::new_current_thread().enable_time().build().unwrap();
                for _ in 0..4 {
                    runtime.spawn(call_without_end(service.clone()));
                }
                runtime.block_on(async { sleep(20 * MS).await });
                let mut other = std::thread::scope(|scope| {
                    let driven = scope.spawn(|| other_runtime(&service));
                    runtime.block_on(async { sleep(100 * MS).await });
                    Some(driven.join().unwrap())
                });
                if ends {
                    other.take();
                }
                let (start, before) = (Instant::now(), store.admitted() as u64);
                runtime.block_on(async { sleep(500 * MS).await });
                let due = RATE * start.elapsed().as_micros() as u64 / 1_000_000;
                let admitted = store.admitted() as u64 - before;
                assert!(admitted <= due + RATE / 20 + 2, "{admitted} of {due}");
                best = best.max(admitted * 1_000 / due);
                if best >= 900 {
                    break;
                }
            }
            assert!(
                best >= 900,
                "round trip {round_trip} ms, ends: {ends}: {best} ‰ in the best round"
            );
        }
    }
}
