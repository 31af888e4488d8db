//! When the store fails, each shaper continues by its rule.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use throttle_core::BackendErrorKind;
use throttle_tower::shape::{Bound, ShapeError};
use throttle_tower::{Key, OnError, ShapeLayer};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};

use crate::support::{MS, Notes, Remote, over, ten, wait, waiting};

#[tokio::test(start_paused = true)]
async fn shape_failing_store_leaves_the_share_of_the_pace() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::local(4));
    shaper.schedule("key", 1).await.unwrap();
    remote.fail(true);
    let mut times = Vec::new();
    for _ in 0..4 {
        shaper.schedule("key", 1).await.unwrap();
        times.push(Instant::now());
    }
    // A quarter of ten a second. The share counts the decisions before the failure, so the first
    // call waits, too.
    for pair in times.windows(2) {
        // The store fails in half a round trip.
        assert!(
            (399 * MS..=402 * MS).contains(&(pair[1] - pair[0])),
            "{:?}",
            pair[1] - pair[0]
        );
    }
    assert_eq!(shaper.stats().degraded, 4);

    remote.fail(false);
    assert!(wait(&shaper, "other").await <= 2 * MS);
    assert_eq!(shaper.stats().degraded, 4, "the store decides again");
}

#[tokio::test(start_paused = true)]
async fn shape_failing_store_fails_calls_if_closed() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::Closed);
    remote.fail(true);
    let error = shaper.schedule("key", 1).await.unwrap_err();
    assert!(
        matches!(&error, ShapeError::Store(error) if error.kind() == BackendErrorKind::Unavailable),
        "{error}"
    );
    assert_eq!((shaper.stats().sent, shaper.stats().waiting), (0, 0));
    assert_eq!(
        (shaper.stats().refused, shaper.stats().degraded),
        (0, 1),
        "no bound has refused it"
    );
}

#[tokio::test(start_paused = true)]
async fn law_13_shape_keeps_the_pace_if_open_while_the_store_is_busy() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::Open);
    remote.be_busy();
    let start = Instant::now();
    for _ in 0..5 {
        shaper.schedule("key", 1).await.unwrap();
    }
    // Ten a second, with headroom: four intervals between five calls.
    assert!(
        (400 * MS..420 * MS).contains(&start.elapsed()),
        "{:?}",
        start.elapsed()
    );
    assert_eq!((shaper.stats().sent, shaper.stats().degraded), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn shape_failing_store_sends_calls_if_open() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::Open);
    remote.fail(true);
    let start = Instant::now();
    for _ in 0..5 {
        shaper.schedule("key", 1).await.unwrap();
    }
    assert!(start.elapsed() < 20 * MS);
    assert_eq!((shaper.stats().sent, shaper.stats().degraded), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn shape_share_goes_on_where_the_store_left_off() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::local(4));
    shaper.schedule("key", 1).await.unwrap();
    remote.fail(true);
    let waited = wait(&shaper, "key").await;
    assert!(waited > 300 * MS, "{waited:?}");
    let error = shaper.reset("key").await.unwrap_err();
    assert_eq!(
        error.kind(),
        BackendErrorKind::Unavailable,
        "the store is not"
    );
    assert!(wait(&shaper, "key").await <= 4 * MS, "and the share is");
}

/// Neither a pause that is over nor one that ends before the call's turn hides a unit of it.
#[tokio::test(start_paused = true)]
async fn shape_deadline_counts_every_unit_after_a_pause_too() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000), OnError::local(1));
    let service = ShapeLayer::of(shaper.clone())
        .cost(|call| *call)
        .deadline(|_| Some(300 * MS))
        .layer(Notes::new());
    shaper.pause(Key::CONSTANT, 100 * MS);
    sleep(Duration::from_secs(1)).await;
    remote.fail(true);
    let error = service.clone().oneshot(5).await.unwrap_err();
    let full = *error.queue_full().unwrap();
    assert_eq!(
        (full.bound, full.retry_after),
        (Bound::Deadline, None),
        "its last unit is due after 400 ms"
    );
    service.oneshot(4).await.unwrap();

    sleep(Duration::from_secs(1)).await;
    let service = ShapeLayer::of(shaper.clone())
        .cost(|call| *call)
        .deadline(|_| Some(450 * MS))
        .layer(Notes::new());
    shaper.pause(Key::CONSTANT, 30 * MS);
    let first = waiting(&shaper, Key::CONSTANT).await;
    let error = service.oneshot(5).await.unwrap_err();
    assert_eq!(
        error.queue_full().unwrap().bound,
        Bound::Deadline,
        "its turn comes after 130 ms, its last unit after 530"
    );
    first.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shape_call_that_the_share_decides_counts_once_as_waiting() {
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(10_000).max_waiting(1), OnError::local(2));
    remote.fail(true);
    shaper.schedule("key", 1).await.unwrap();
    shaper.schedule("key", 1).await.unwrap();
    assert_eq!((shaper.stats().sent, shaper.stats().refused), (2, 0));
}

/// However many turns are due at once.
#[tokio::test(start_paused = true)]
async fn shape_calls_are_woken_once_for_the_turns_of_a_store_that_fails_open() {
    #[derive(Default)]
    struct Wakes(AtomicUsize);
    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let remote = Remote::new(2 * MS);
    let shaper = over(&remote, ten(60_000), OnError::Open);
    shaper.schedule("key", 1).await.unwrap();
    remote.fail(true);
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut calls: Vec<_> = (0..300)
        .map(|_| Box::pin(shaper.schedule("key", 1)))
        .collect();
    for call in &mut calls {
        assert!(
            call.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    while wakes.0.load(Ordering::SeqCst) == 0 {
        sleep(MS).await;
    }
    for call in &mut calls {
        assert!(
            call.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        );
    }
    assert!(wakes.0.load(Ordering::SeqCst) <= 600, "{:?}", wakes.0);
}
