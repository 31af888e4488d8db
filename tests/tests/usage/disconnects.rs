//! Clients that disconnect at any point.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use http_body_util::BodyExt;
use throttle_core::BoxBackend;
use throttle_test_servers::Shared;
use throttle_tower::Usage;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::site::{Books, Tokens, estimate, layer, settled};
use crate::store::{Store, budget, redis};

const UNITS: u64 = 10_000;
const ESTIMATE: u64 = 20;

/// Polls a future at most a given number of times; `None` if it did not complete.
pub(crate) struct AtMost<'a, F> {
    pub(crate) future: F,
    pub(crate) polls: &'a mut usize,
}

impl<F: Future + Unpin> Future for AtMost<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(left) = self.polls.checked_sub(1) else {
            return Poll::Ready(None);
        };
        *self.polls = left;
        if let Poll::Ready(output) = Pin::new(&mut self.future).poll(cx) {
            return Poll::Ready(Some(output));
        }
        if left == 0 {
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

/// A handler that waits twice before it responds, and then streams.
fn app(books: &Books, started: &Arc<AtomicBool>) -> Router {
    let (books, started) = (books.clone(), Arc::clone(started));
    let handler = move |usage: Usage| async move {
        started.store(true, Ordering::SeqCst);
        tokio::task::yield_now().await;
        books.note(3);
        usage.add("tokens", 3).unwrap();
        tokio::task::yield_now().await;
        let pause = Duration::from_micros(10);
        Body::new(Tokens {
            left: 90,
            step: 9,
            pause,
            usage,
            books,
            stops: false,
            sleep: None,
        })
    };
    Router::new().route("/", get(handler))
}

/// Law 10, with a client that stays for 0, 1, 2, … polls of the response and its body. In the end
/// the charge is what was used. It is the estimate if the handler had begun and used nothing, and
/// before that the estimate or nothing.
#[tokio::test]
async fn law_10_charge_is_exact_wherever_the_client_disconnects() {
    for store in Store::both().await {
        let name = store.name;
        let layer = layer(
            &store,
            budget("tokens", UNITS).cost(estimate).settled_later(),
        );
        let (mut charged, mut completed, mut stays) = (0, false, 0);
        while !completed {
            assert!(stays < 500, "it never ends");
            let (books, started) = (Books::default(), Arc::new(AtomicBool::new(false)));
            let app = app(&books, &started).layer(layer.clone());
            let request = Request::get("/")
                .header("x-estimate", ESTIMATE)
                .body(Body::empty())
                .unwrap();
            let mut polls = stays;
            {
                let response = pin!(app.oneshot(request));
                if let Some(response) = (AtMost {
                    future: response,
                    polls: &mut polls,
                })
                .await
                {
                    let mut body = response.unwrap().into_body();
                    completed = loop {
                        match (AtMost {
                            future: body.frame(),
                            polls: &mut polls,
                        })
                        .await
                        {
                            Some(Some(frame)) => drop(frame.unwrap()),
                            Some(None) => break true,
                            None => break false,
                        }
                    };
                }
            }
            settled(&layer).await;
            // A decision that was under way may still be made.
            let mut now = store.used("tokens", UNITS).await;
            if !started.load(Ordering::SeqCst) && name == "redis" {
                tokio::time::sleep(Duration::from_millis(20)).await;
                now = store.used("tokens", UNITS).await;
            }
            let this = now - charged;
            charged = now;
            match (started.load(Ordering::SeqCst), books.total()) {
                (false, _) => assert!(
                    [0, ESTIMATE].contains(&this),
                    "{name}: {this} after {stays} polls"
                ),
                (true, 0) => assert_eq!(this, ESTIMATE, "{name}: after {stays} polls"),
                (true, used) => assert_eq!(this, used, "{name}: after {stays} polls"),
            }
            stays += 1;
        }
        assert!(stays > 5, "{name}: there is more to it than {stays} polls");
        assert_eq!(layer.settlements().failed, 0, "{name}");
    }
}

/// Clients disconnect while Redis decides: their charges are refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_10_refund_of_requests_aborted_while_redis_decides() {
    use throttle_core::BoxBackend;
    use throttle_test_servers::{Proxy, Server};
    use tower::{Layer, service_fn};

    let server = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let proxy = Proxy::start(server.port());
    let backend = BoxBackend::new(crate::store::redis(
        &proxy.url(),
        "p",
        Duration::from_secs(5),
    ));
    let store = Store {
        name: "redis",
        backend,
    };
    let layer = layer(&store, budget("p", UNITS).refund_aborted());
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(()))
    }));
    assert_eq!(
        service
            .clone()
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .status(),
        200
    );
    proxy.delay_replies(Duration::from_millis(50));
    for _ in 0..10 {
        let asking = service.clone().oneshot(Request::new(()));
        assert!(
            tokio::time::timeout(Duration::from_millis(5), asking)
                .await
                .is_err()
        );
    }
    settled(&layer).await;
    let settlements = layer.settlements();
    assert_eq!((settlements.settled, settlements.failed), (10, 0));
    proxy.delay_replies(Duration::ZERO);
    assert_eq!(store.used("p", UNITS).await, 1);
}

/// Far more streams than Redis decides within a deadline are opened and dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn law_10_many_dropped_streams_leave_no_charge_that_is_refunded() {
    const STREAMS: u64 = 20_000;
    const AT_ONCE: u64 = 2_000;
    let shared = tokio::task::spawn_blocking(Shared::new).await.unwrap();
    let store = Store {
        name: "redis",
        backend: BoxBackend::new(redis(
            &shared.url(),
            shared.prefix(),
            Duration::from_millis(100),
        )),
    };
    let layer = layer(&store, budget("streams", STREAMS).refund_aborted());
    let waits = get(std::future::pending::<&'static str>);
    let app = Router::new().route("/", waits).layer(layer.clone());
    app.clone()
        .oneshot(Request::get("/other").body(Body::empty()).unwrap())
        .await
        .unwrap();
    let began = store.used("streams", STREAMS).await;
    let answered = Arc::new(AtomicU64::new(0));
    for round in 0..STREAMS / AT_ONCE {
        let mut streams = JoinSet::new();
        for _ in 0..AT_ONCE {
            let answered = Arc::clone(&answered);
            let request = Request::get("/").body(Body::empty()).unwrap();
            let request = app.clone().oneshot(request);
            streams.spawn(async move {
                drop(request.await);
                answered.fetch_add(1, Ordering::SeqCst);
            });
        }
        tokio::time::sleep(Duration::from_millis(round % 20)).await;
        streams.shutdown().await;
    }
    settled(&layer).await;
    let settlements = layer.settlements();
    assert_eq!(settlements.failed, 0, "{settlements:?}");
    assert!(settlements.settled > STREAMS / 10, "{settlements:?}");
    // A request that is answered, because its decision was late, is not aborted.
    let answered = answered.load(Ordering::SeqCst);
    let kept = store.used("streams", STREAMS).await - began;
    assert!(kept <= answered, "{kept} of {answered}, {settlements:?}");
    assert!(answered < STREAMS / 2, "{answered} answered");
}
