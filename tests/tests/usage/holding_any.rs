//! Requests that are held for one member of an `any`.

use std::time::Duration;

use http::StatusCode;
use throttle_tower::shape::TokioClock;
use throttle_tower::{Constant, Gcra, Limit, MemoryBackend, Rate, ThrottleLayer, any, limit};
use tokio::time::{Instant, sleep};

use crate::holding::{MS, app, paused, poll, send};

/// One each such period.
fn one_each(name: &str, period: Duration) -> Limit {
    limit(name, Gcra::new(Rate::new(1, period)).burst(1)).by(Constant)
}

/// The member that waits may stand anywhere.
#[tokio::test(start_paused = true)]
async fn charge_any_waits_for_a_member_beside_one_that_does_not_wait() {
    let limits = || {
        [
            one_each("own", 10_000 * MS).wait_up_to(20_000 * MS),
            one_each("pool", 60_000 * MS),
        ]
    };
    let [own, pool] = limits();
    for limits in [limits(), [pool, own]] {
        let (app, start) = (app(&paused(any(limits))), Instant::now());
        for seconds in [0, 0, 10] {
            assert_eq!(send(&app, 1).await.status(), StatusCode::OK);
            assert_eq!(start.elapsed().as_secs(), seconds);
        }
    }
}

/// Another layer takes the unit that the request waits for, and the next one comes after the
/// longest wait. The other member would wait, but it has room only later.
#[tokio::test(start_paused = true)]
async fn charge_request_waits_no_longer_than_its_member_of_an_any_allows() {
    let store = MemoryBackend::builder().clock(TokioClock::new()).build();
    let own = || one_each("own", 400 * MS);
    let patient = any([
        own().wait_up_to(500 * MS),
        one_each("pool", 10_000 * MS).wait_up_to(60_000 * MS),
    ]);
    let patient = app(&ThrottleLayer::builder(patient)
        .backend(store.clone())
        .build()
        .unwrap());
    let other = app(&ThrottleLayer::builder(own())
        .backend(store)
        .build()
        .unwrap());
    for _ in 0..2 {
        assert_eq!(send(&patient, 1).await.status(), StatusCode::OK);
    }
    let (mut held, start) = (Box::pin(send(&patient, 1)), Instant::now());
    assert!(poll(&mut held).is_pending());
    sleep(410 * MS).await;
    assert_eq!(send(&other, 1).await.status(), StatusCode::OK);
    assert_eq!(held.await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(start.elapsed() < 500 * MS, "{:?}", start.elapsed());
}
