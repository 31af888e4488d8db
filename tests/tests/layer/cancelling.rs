//! The charges of requests that are dropped.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use throttle_core::BackendErrorKind;
use throttle_tower::{
    Constant, Gcra, LimitReport, OnError, OnMissing, Rate, ThrottleLayer, all, limit,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::common::{Remote, Strict, Text, get, left, memory, poll, shared};

const BURST: u64 = 5;

#[tokio::test]
async fn nothing_if_it_was_never_polled() {
    let backend = Remote::slow(9, 9);
    let layer = ThrottleLayer::builder(shared("p", BURST))
        .backend(backend.clone())
        .build()
        .unwrap();
    let mut service = layer.layer(Strict::default());
    drop(service.ready().await.unwrap().call(get()));
    assert_eq!(left(&backend.memory, "p", BURST), BURST);
    assert_eq!(backend.decisions.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn nothing_on_the_way_to_the_store_and_once_on_the_way_back() {
    let backend = Remote::slow(0, 0);
    let layer = ThrottleLayer::builder(shared("p", BURST))
        .backend(backend.clone())
        .build()
        .unwrap();
    let mut service = layer.layer(Strict::default());

    let mut going = Box::pin(service.ready().await.unwrap().call(get()));
    assert!(poll(&mut going).is_pending());
    drop(going);
    assert_eq!(left(&backend.memory, "p", BURST), BURST);

    backend.let_in();
    let mut returning = Box::pin(service.ready().await.unwrap().call(get()));
    assert!(poll(&mut returning).is_pending());
    assert_eq!(left(&backend.memory, "p", BURST), BURST - 1);
    assert!(
        poll(&mut returning).is_pending(),
        "polling again decides nothing again"
    );
    drop(returning);
    assert_eq!(
        left(&backend.memory, "p", BURST),
        BURST - 1,
        "once, and it stays charged"
    );
    assert_eq!(
        backend.decisions.load(Ordering::SeqCst),
        2,
        "one for each request"
    );
    assert_eq!(service.get_ref().calls(), 0);

    // The service stays usable.
    backend.let_in();
    backend.let_out();
    assert_eq!(
        service.oneshot(get()).await.unwrap().status(),
        StatusCode::OK
    );
}

/// Where a limit refunds for this reason alone: the service fails, or the client leaves before the
/// service responds.
#[tokio::test]
async fn refund_of_a_request_without_a_response() {
    let memory = memory();
    let limits = all([
        shared("refunding", BURST).refund_aborted(),
        shared("keeping", BURST),
    ]);
    let layer = ThrottleLayer::builder(limits)
        .backend(memory.clone())
        .build()
        .unwrap();
    let left = || ["refunding", "keeping"].map(|name| left(&memory, name, BURST));

    let failing = service_fn(async |_: Request<Text>| Err::<Response<Text>, _>("broken"));
    assert_eq!(
        layer.layer(failing).oneshot(get()).await.map(drop),
        Err("broken")
    );
    assert_eq!(left(), [BURST, BURST - 1]);

    let slow = service_fn(async |_: Request<Text>| {
        std::future::pending::<Result<Response<Text>, Infallible>>().await
    });
    let mut waiting = Box::pin(layer.layer(slow).oneshot(get()));
    assert!(poll(&mut waiting).is_pending());
    assert_eq!(left(), [BURST - 1, BURST - 2]);
    drop(waiting);
    assert_eq!(left(), [BURST, BURST - 2]);

    drop(layer.layer(Strict::default()).oneshot(get()).await.unwrap());
    assert_eq!(
        (left(), layer.settlements().settled),
        ([BURST - 1, BURST - 3], 2),
        "a response is none of its rules"
    );
}

/// The store cannot be recalled, so the decision is awaited in the background. Only a limit with
/// such a rule refunds.
#[tokio::test]
async fn law_10_refund_of_a_request_dropped_while_the_store_decides() {
    for waits in [false, true] {
        let backend = Remote::slow(0, 0);
        let refunding = shared("refunding", BURST).refund_aborted();
        let refunding = if waits {
            refunding.wait_up_to(Duration::from_millis(1))
        } else {
            refunding
        };
        let layer = ThrottleLayer::builder(all([refunding, shared("keeping", BURST)]))
            .backend(backend.clone())
            .build()
            .unwrap();
        let mut service = layer.layer(Strict::default());
        let left = || ["refunding", "keeping"].map(|name| left(&backend.memory, name, BURST));

        let mut going = Box::pin(service.ready().await.unwrap().call(get()));
        assert!(poll(&mut going).is_pending());
        drop(going);
        assert_eq!(
            (left(), layer.settlements().pending),
            ([BURST; 2], 1),
            "the store has not decided yet"
        );
        backend.let_in();
        backend.let_out();
        settled(&layer).await;
        assert_eq!(
            (left(), layer.settlements().settled),
            ([BURST, BURST - 1], 1)
        );

        backend.let_in();
        let mut returning = Box::pin(service.ready().await.unwrap().call(get()));
        assert!(poll(&mut returning).is_pending());
        assert_eq!(
            left(),
            [BURST - 1, BURST - 2],
            "charged, and the answer is on its way"
        );
        drop(returning);
        backend.let_out();
        settled(&layer).await;
        assert_eq!(
            (left(), layer.settlements().settled),
            ([BURST, BURST - 2], 2)
        );
        assert_eq!(
            backend.decisions.load(Ordering::SeqCst),
            2,
            "one question for each request"
        );

        // A request that gets its response keeps its charge.
        backend.let_in();
        backend.let_out();
        assert_eq!(
            service
                .ready()
                .await
                .unwrap()
                .call(get())
                .await
                .unwrap()
                .status(),
            StatusCode::OK
        );
        assert_eq!(
            (left(), layer.settlements().settled),
            ([BURST - 1, BURST - 3], 2)
        );
    }
}

/// An error after which the request may have been charged leaves a charge that is not given back.
#[tokio::test]
async fn refund_of_a_dropped_request_fails_if_the_store_may_have_charged() {
    for (kind, settled_and_failed) in [
        (BackendErrorKind::Saturated, (1, 0)),
        (BackendErrorKind::Timeout, (0, 1)),
    ] {
        let backend = Remote::slow_and_faltering(0, 0);
        let limit = shared("p", BURST)
            .refund_aborted()
            .on_error(OnError::Closed);
        let layer = ThrottleLayer::builder(limit)
            .backend(backend.clone())
            .build()
            .unwrap();
        let mut going = Box::pin(layer.layer(Strict::default()).oneshot(get()));
        assert!(poll(&mut going).is_pending());
        drop(going);
        backend.trouble(Some(kind));
        backend.let_in();
        backend.let_out();
        settled(&layer).await;
        let settlements = layer.settlements();
        assert_eq!(
            (settlements.settled, settlements.failed),
            settled_and_failed,
            "{kind:?}"
        );
    }
}

/// What the store has charged to a dropped request counts in this process's share, less what was
/// given back.
#[tokio::test]
async fn share_is_charged_for_a_dropped_request_like_the_store() {
    let backend = Remote::slow_and_faltering(0, 0);
    let limits = all([
        shared("refunding", 4).refund_aborted(),
        shared("keeping", 4),
    ]);
    let layer = ThrottleLayer::builder(limits)
        .on_error(OnError::local(2))
        .local_store(&memory())
        .report_in(throttle_tower::ReportIn::Both)
        .backend(backend.clone())
        .build()
        .unwrap();
    let service = layer.layer(Strict::default());
    let mut going = Box::pin(service.clone().oneshot(get()));
    assert!(poll(&mut going).is_pending());
    drop(going);
    backend.let_in();
    backend.let_out();
    settled(&layer).await;
    assert_eq!(
        ["refunding", "keeping"].map(|name| left(&backend.memory, name, 4)),
        [4, 3]
    );

    backend.trouble(Some(BackendErrorKind::Unavailable));
    backend.let_in();
    backend.let_out();
    let admitted = service.oneshot(get()).await.unwrap();
    let report = admitted.extensions().get::<LimitReport>().unwrap();
    let remaining: Vec<_> = report
        .statuses()
        .map(|(_, status)| status.remaining())
        .collect();
    assert_eq!(
        remaining,
        [1, 0],
        "each share has two, and this request took one"
    );
}

/// The task of the request may be dropped by a thread without a runtime.
#[tokio::test]
async fn law_10_refund_of_a_request_dropped_outside_of_its_runtime() {
    let backend = Remote::slow(0, 0);
    let layer = ThrottleLayer::builder(shared("p", BURST).refund_aborted())
        .backend(backend.clone())
        .build()
        .unwrap();
    let mut going = Box::pin(layer.layer(Strict::default()).oneshot(get()));
    assert!(poll(&mut going).is_pending());
    std::thread::spawn(move || drop(going)).join().unwrap();
    backend.let_in();
    backend.let_out();
    settled(&layer).await;
    assert_eq!(
        (
            layer.settlements().settled,
            left(&backend.memory, "p", BURST)
        ),
        (1, BURST)
    );
}

async fn settled(layer: &ThrottleLayer<Remote>) {
    while layer.settlements().pending > 0 {
        tokio::task::yield_now().await;
    }
}

/// Also if the key of another limit in the set was known at once.
#[tokio::test]
async fn nothing_while_a_key_is_looked_up() {
    let backend = Remote::slow(9, 9);
    let limits = all([
        shared("p", BURST),
        limit("q", Gcra::new(Rate::per_second(5)))
            .by_async(|_| std::future::pending::<Option<u64>>()),
    ]);
    let layer = ThrottleLayer::builder(limits)
        .backend(backend.clone())
        .build()
        .unwrap();
    let mut service = layer.layer(Strict::default());
    let mut keying = Box::pin(service.ready().await.unwrap().call(get()));
    assert!(poll(&mut keying).is_pending());
    drop(keying);
    assert_eq!(left(&backend.memory, "p", BURST), BURST);
    assert_eq!(backend.decisions.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn nothing_where_a_required_key_turns_out_to_be_missing() {
    let backend = Remote::slow(9, 9);
    let required = limit("q", Gcra::new(Rate::per_second(5)))
        .by_async(|_| std::future::ready(None::<u64>))
        .on_missing(OnMissing::Reject(StatusCode::UNAUTHORIZED));
    let layer = ThrottleLayer::builder(all([shared("p", BURST), required]))
        .backend(backend.clone())
        .build()
        .unwrap();
    let service = layer.layer(Strict::default());
    assert_eq!(
        service.clone().oneshot(get()).await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );
    assert_eq!(left(&backend.memory, "p", BURST), BURST);
    assert_eq!(
        (
            backend.decisions.load(Ordering::SeqCst),
            service.get_ref().calls()
        ),
        (0, 0)
    );
}

/// Each key is looked up once, each limit gets its own key, and one decision covers all.
#[tokio::test]
async fn once_for_keys_that_come_in_any_order() {
    for first in 0..2 {
        let lookups = Arc::new(AtomicUsize::new(0));
        let gates: [_; 2] = std::array::from_fn(|_| Arc::new(tokio::sync::Semaphore::new(0)));
        let slow = |name: &str, burst, gate: &Arc<tokio::sync::Semaphore>| {
            let (gate, lookups) = (Arc::clone(gate), Arc::clone(&lookups));
            limit(name, Gcra::new(Rate::per_minute(1)).burst(burst)).by_async(move |_| {
                lookups.fetch_add(1, Ordering::SeqCst);
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    Some(throttle_tower::Key::CONSTANT)
                }
            })
        };
        let limits = all([
            slow("a", 3, &gates[0]),
            shared("p", BURST),
            slow("b", 7, &gates[1]),
        ]);
        let backend = Remote::slow(9, 9);
        let layer = ThrottleLayer::builder(limits)
            .backend(backend.clone())
            .build()
            .unwrap();
        let mut service = layer.layer(Strict::default());
        let mut response = Box::pin(service.ready().await.unwrap().call(get()));
        assert!(poll(&mut response).is_pending());
        gates[first].add_permits(1);
        assert!(poll(&mut response).is_pending(), "one key is still to come");
        assert_eq!(backend.decisions.load(Ordering::SeqCst), 0);
        gates[1 - first].add_permits(1);
        assert_eq!(response.await.unwrap().status(), StatusCode::OK);
        assert_eq!(
            (
                lookups.load(Ordering::SeqCst),
                backend.decisions.load(Ordering::SeqCst)
            ),
            (2, 1)
        );
        let memory = &backend.memory;
        assert_eq!(
            (
                left(memory, "a", 3),
                left(memory, "p", BURST),
                left(memory, "b", 7)
            ),
            (2, BURST - 1, 6)
        );
    }
}

/// A decision that needs no waiting is made in `call`, and the inner service is called there too.
#[tokio::test]
async fn once_in_memory_even_if_the_answer_is_never_polled() {
    let memory = crate::common::memory();
    let limits = limit("p", Gcra::new(Rate::per_minute(1)).burst(BURST)).by(Constant);
    let mut service = ThrottleLayer::builder(limits)
        .backend(memory.clone())
        .build()
        .unwrap()
        .layer(Strict::default());
    drop(service.ready().await.unwrap().call(get()));
    assert_eq!(
        (left(&memory, "p", BURST), service.get_ref().calls()),
        (BURST - 1, 1)
    );
}
