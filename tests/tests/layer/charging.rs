//! Charges that the layer makes after the decision.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::{Backend, BackendErrorKind, ManualClock};
use throttle_tower::{
    Constant, FixedWindow, InFlight, LimitReport, MemoryBackend, OnError, Rate, ThrottleBuilder,
    ThrottleLayer, Usage, all, limit,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::common::{Remote, Strict, Text, get, left, memory, poll, shared, take};

const BURST: u64 = 9;
const TOKENS: &str = "tokens";

/// A layer whose limit charges one unit before the handler reports its usage.
fn afterwards(remote: &Remote, on_error: OnError) -> ThrottleLayer<Remote> {
    builder(remote, on_error).build().unwrap()
}

fn builder(remote: &Remote, on_error: OnError) -> ThrottleBuilder<Remote> {
    let tokens = shared(TOKENS, BURST).settled_later().on_error(on_error);
    // Nothing is left of a limit that does not apply.
    let beside = shared("beside", BURST).when(|_| false).on_error(on_error);
    ThrottleLayer::builder(all([beside, tokens]))
        .local_store(&memory())
        .backend(remote.clone())
}

/// The handle of a request that the handler has not reported on yet, in the response that keeps its
/// charge open.
async fn open<B: Backend>(layer: &ThrottleLayer<B>) -> Response<impl Sized + Send + 'static> {
    let handler = async |request: Request<Text>| {
        let usage: Usage = request
            .extensions()
            .get()
            .cloned()
            .expect("the limit is settled later");
        let mut response = Response::new(Text::from("hello"));
        response.extensions_mut().insert(usage);
        Ok::<_, std::convert::Infallible>(response)
    };
    layer
        .layer(service_fn(handler))
        .oneshot(get())
        .await
        .unwrap()
}

fn usage<B>(response: &Response<B>) -> Usage {
    response
        .extensions()
        .get::<Usage>()
        .expect("the handler has handed it out")
        .clone()
}

/// Waits until nothing is charged any more, and returns how many charges were made and how many
/// failed.
async fn settled<B: Backend>(layer: &ThrottleLayer<B>) -> (u64, u64) {
    for _ in 0..1_000 {
        if layer.settlements().pending == 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    let settlements = layer.settlements();
    assert_eq!(settlements.pending, 0, "it does not end");
    (settlements.settled, settlements.failed)
}

/// Before each of the next decisions of the store another request takes two units. Then the store
/// may fail.
fn rivalling(remote: &Remote, mut rivals: usize, trouble: Option<BackendErrorKind>) {
    let (memory, failing) = (remote.memory.clone(), remote.clone());
    remote.before_each(move || match rivals.checked_sub(1) {
        Some(left) => {
            take(&memory, TOKENS, BURST, 2);
            rivals = left;
        }
        None => failing.trouble(trouble),
    });
}

fn elsewhere<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(act).join().unwrap()
}

/// A thread without a runtime reports the usage. A store that can fail is then asked on the
/// request's own runtime.
#[tokio::test]
async fn charge_reported_outside_of_a_runtime_is_made_in_that_of_the_request() {
    let remote = Remote::faltering(false);
    let layer = afterwards(&remote, OnError::Closed);
    let response = open(&layer).await;
    let reported = usage(&response);
    assert_eq!(
        elsewhere(move || reported.add(TOKENS, 4)),
        Ok(true),
        "a running charge"
    );
    assert_eq!(
        (settled(&layer).await, left(&remote.memory, TOKENS, BURST)),
        ((1, 0), 5)
    );
    drop(response);

    let response = open(&layer).await;
    let reported = usage(&response);
    assert_eq!(
        elsewhere(move || reported.settle(TOKENS, 2)),
        Ok(()),
        "a charge at the end"
    );
    assert_eq!(
        (settled(&layer).await, left(&remote.memory, TOKENS, BURST)),
        ((2, 0), 3)
    );
}

/// The handler has done its work, so the response does not change.
#[tokio::test]
async fn charge_that_fails_after_the_response_is_counted() {
    let remote = Remote::faltering(false);
    let layer = afterwards(&remote, OnError::Closed);
    let response = open(&layer).await;
    remote.trouble(Some(BackendErrorKind::Unavailable));
    assert_eq!(usage(&response).add(TOKENS, 2), Ok(false));
    assert_eq!(settled(&layer).await, (0, 1));
}

/// A request in whose course a window ends: five are charged before, and seven after.
#[tokio::test]
async fn charge_at_the_end_corrects_the_latest_window_first() {
    for (actual, remaining) in [(15, 10), (12, 13), (6, 19), (5, 20), (2, 20)] {
        let clock = ManualClock::default();
        let store = MemoryBackend::builder().clock(clock.clone()).build();
        let window = limit(TOKENS, FixedWindow::new(Rate::per_minute(20))).by(Constant);
        let layer = ThrottleLayer::builder(window.clone().cost(5).settled_later())
            .backend(store.clone())
            .build()
            .unwrap();
        let response = open(&layer).await;
        clock.advance(Duration::from_secs(60));
        assert_eq!(usage(&response).add(TOKENS, 12), Ok(true));
        assert_eq!(usage(&response).settle(TOKENS, actual), Ok(()));
        let looking = ThrottleLayer::builder(window.clone().cost(0))
            .report_in(throttle_tower::ReportIn::Both)
            .backend(store)
            .build()
            .unwrap()
            .layer(Strict::default())
            .oneshot(get())
            .await
            .unwrap();
        let report = looking
            .extensions()
            .get::<LimitReport>()
            .expect("there is a report");
        assert_eq!(report.decision().remaining(), remaining, "{actual}");
    }
}

/// Another request takes the last permit while the store decides. What every limit has charged is
/// given back.
#[tokio::test]
async fn charge_of_every_limit_is_given_back_where_permits_run_out() {
    let remote = Remote::slow(0, 0);
    let limits = all((
        shared("first", BURST),
        shared(TOKENS, BURST).cost(4),
        limit("in-flight", InFlight::new(1)).by(Constant),
    ));
    let layer = ThrottleLayer::builder(limits)
        .backend(remote.clone())
        .build()
        .unwrap();
    let service = layer.layer(Strict::default());
    let mut going = [(); 2].map(|()| Box::pin(service.clone().oneshot(get())));
    assert!(going.iter_mut().all(|request| poll(request).is_pending()));
    let mut held = Vec::new();
    for (request, status) in going
        .into_iter()
        .zip([StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE])
    {
        remote.let_in();
        remote.let_out();
        held.push(request.await.unwrap());
        assert_eq!(held.last().map(Response::status), Some(status));
    }
    assert_eq!(settled(&layer).await, (1, 0));
    assert_eq!(
        ["first", TOKENS].map(|name| left(&remote.memory, name, BURST)),
        [BURST - 1, BURST - 4]
    );
}

/// A panic would otherwise reach the code that drops a response.
#[tokio::test]
async fn charge_that_panics_in_the_store_has_failed() {
    let remote = Remote::faltering(false);
    let layer = afterwards(&remote, OnError::Closed);
    let response = open(&layer).await;
    remote.before_each(|| panic!("a mistake in the store"));
    assert_eq!(usage(&response).add(TOKENS, 2), Ok(false));
    assert_eq!(
        (settled(&layer).await, left(&remote.memory, TOKENS, BURST)),
        ((0, 1), BURST - 1)
    );
}

/// Each time that other requests take of what is left, the charge is tried again at what is left
/// then: three times, so that it ends however many requests there are.
#[tokio::test]
async fn charge_of_what_is_left_is_tried_four_times() {
    for (rivals, asked, taken) in [(0, 1, 9), (1, 2, 7), (3, 4, 3), (4, 4, 1)] {
        let remote = Remote::faltering(false);
        let layer = afterwards(&remote, OnError::Closed);
        let response = open(&layer).await;
        let before = remote.decisions.load(Ordering::SeqCst);
        rivalling(&remote, rivals, None);
        usage(&response).add(TOKENS, BURST).unwrap();
        assert_eq!(settled(&layer).await, (1, 0), "{rivals}");
        assert_eq!(
            remote.decisions.load(Ordering::SeqCst) - before,
            asked,
            "{rivals}"
        );
        assert_eq!(usage(&response).taken(TOKENS), taken, "{rivals}");
        assert_eq!(left(&remote.memory, TOKENS, BURST), 0, "{rivals}");
    }
}

/// The share is asked as often as the store, however often the store was asked before it failed.
#[tokio::test]
async fn charge_that_fails_at_its_last_try_is_made_in_the_share() {
    let remote = Remote::faltering(false);
    let layer = builder(&remote, OnError::local(1))
        .report_in(throttle_tower::ReportIn::Both)
        .build()
        .unwrap();
    let response = open(&layer).await;
    rivalling(&remote, 3, Some(BackendErrorKind::Unavailable));
    usage(&response).add(TOKENS, BURST).unwrap();
    assert_eq!(settled(&layer).await, (0, 1));
    let report = layer.layer(Strict::default()).oneshot(get()).await.unwrap();
    let report = report
        .extensions()
        .get::<LimitReport>()
        .expect("there is a report");
    assert_eq!(
        report.decision().remaining(),
        BURST - 1 - 2 - 1,
        "two were left at the store"
    );
}
