//! Requests in flight: permits are held to the end of the body, and no longer.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request as AxumRequest;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::request::Parts;
use http::{Request, StatusCode, Version};
use http_body_util::BodyExt;
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use throttle_core::{Clock, SystemClock, Timestamp};
use throttle_tower::{
    Constant, FixedWindow, InFlight, MemoryBackend, Permit, Rate, ThrottleBody, ThrottleLayer,
    Usage, all, any, limit,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::disconnects::AtMost;
use crate::site::{Site, estimate, layer, number, until};
use crate::store::{Store, budget};

/// Responds `hello` at `/`; at `/slow`, sends the head at once and the body when a permit is given.
pub(crate) fn app(bodies: &Arc<Semaphore>) -> Router {
    let bodies = Arc::clone(bodies);
    let slow = move || async move {
        let late = async move {
            bodies.acquire().await.unwrap().forget();
            Bytes::from("done")
        };
        Body::new(Late(Some(Box::pin(late))))
    };
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/slow", get(slow))
}

/// A body of one frame, which is sent when a future completes.
struct Late(Option<Pin<Box<dyn Future<Output = Bytes> + Send>>>);

impl hyper::body::Body for Late {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(late) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let data = ready!(late.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

#[tokio::test]
async fn attack_37_permits_are_held_to_the_end_of_the_body() {
    for store in Store::both().await {
        let (name, bodies) = (store.name, Arc::new(Semaphore::new(0)));
        let limits = all((
            budget("requests", 100),
            limit("in-flight", InFlight::new(2)).by(Constant),
        ));
        let site = Site::new(store, limits, app(&bodies)).await;
        let first = site.send("/slow", &[]).await;
        let second = site.send("/slow", &[]).await;
        assert_eq!(
            (first.status(), second.status()),
            (StatusCode::OK, StatusCode::OK),
            "{name}"
        );
        assert_eq!(
            site.layer.in_flight("in-flight"),
            Some(2),
            "{name}: both have a head and no body yet"
        );

        let full = site.get("/", &[]).await;
        assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE, "{name}");
        assert_eq!(full.headers()["content-type"], "application/problem+json");
        assert_eq!(full.headers()["cache-control"], "no-store");
        assert!(
            full.body()
                .ends_with(br#""status":503,"violated-policies":["in-flight"]}"#),
            "{:?}",
            full.body()
        );
        assert_eq!(
            site.left("requests", 100).await,
            98,
            "{name}: what found no permit was not charged"
        );

        bodies.add_permits(1);
        assert_eq!(
            first.into_body().collect().await.unwrap().to_bytes(),
            "done"
        );
        until(|| site.layer.in_flight("in-flight") == Some(1)).await;
        assert_eq!(site.status("/").await, StatusCode::OK, "{name}");

        // A client that disconnects in the middle of a body returns its permit.
        drop(second);
        until(|| site.layer.in_flight("in-flight") == Some(0)).await;
        assert_eq!(site.left("requests", 100).await, 97, "{name}");
    }
}

/// axum's body passes through as it is where nothing is held, and holds what is.
#[tokio::test]
async fn permit_and_open_charge_are_held_until_the_body_ends_over_both_versions_of_http() {
    for is_http2 in [false, true] {
        let bodies = Arc::new(Semaphore::new(0));
        let handler =
            middleware::from_fn(async |usage: Usage, request: AxumRequest, next: Next| {
                usage.add("tokens", 2).unwrap();
                next.run(request).await
            });
        let limits = all((
            budget("tokens", 100).cost(estimate).settled_later(),
            limit("in-flight", InFlight::new(1)).by(Constant),
        ));
        let site = Site::new(Store::memory(), limits, app(&bodies).layer(handler)).await;
        let site = if is_http2 { site.over_http2() } else { site };
        for is_read in [true, false] {
            let response = site.send("/slow", &[("x-estimate", 5)]).await;
            assert_eq!(response.version() == Version::HTTP_2, is_http2);
            let used = site.store.used("tokens", 100).await;
            assert_eq!(used % 10, if is_read { 5 } else { 7 }, "the estimate");
            assert_eq!(site.layer.in_flight("in-flight"), Some(1));
            if is_read {
                bodies.add_permits(1);
                let body = response.into_body().collect().await.unwrap();
                assert_eq!(body.to_bytes(), "done");
            } else {
                drop(response);
            }
            until(|| site.layer.in_flight("in-flight") == Some(0)).await;
            let left = site.left("tokens", 100).await;
            assert_eq!(left, if is_read { 98 } else { 96 }, "the running total");
        }
    }
}

/// A body of one frame or one error. Only after the frame it knows that it has ended.
struct Once(Option<Result<&'static str, &'static str>>, bool);

impl hyper::body::Body for Once {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.1 = self.0.is_some_and(|result| result.is_ok());
        Poll::Ready(
            self.0
                .take()
                .map(|result| result.map(|text| Frame::data(Bytes::from(text)))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.1
    }
}

/// A client that has read the last byte may come back before the body is dropped, and a body that
/// failed is over.
#[tokio::test]
async fn charge_permit_returns_with_the_last_frame_and_with_an_error() {
    for end in [Ok("done"), Err("broken")] {
        let layer = ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant)).unwrap();
        let handler = move |_: Request<()>| {
            std::future::ready(Ok::<_, Infallible>(http::Response::new(Once(
                Some(end),
                false,
            ))))
        };
        let service = tower::Layer::layer(
            &layer,
            tower::service_fn(handler).map_response(ThrottleBody::wrap),
        );
        let mut body = service.oneshot(Request::new(())).await.unwrap().into_body();
        assert_eq!(layer.in_flight("in-flight"), Some(1), "{end:?}");
        assert_eq!(body.frame().await.unwrap().map(drop), end.map(drop));
        assert_eq!(layer.in_flight("in-flight"), Some(0), "{end:?}");
    }
}

/// A pool that is full beside an `any` within an `any` stays to blame, whatever the inner one
/// finds.
#[tokio::test]
async fn charge_saturation_of_nested_pools_names_all_that_are_to_blame() {
    let bodies = Arc::new(Semaphore::new(0));
    let pool = |name: &str, most| limit(name, InFlight::new(most)).by(Constant);
    let inner = any([pool("spent", 1), pool("spare", 9)]).charge_every_admitting();
    let nested = any((pool("own", 1), all((inner, pool("lane", 1))))).charge_every_admitting();
    let site = Site::new(Store::memory(), nested, app(&bodies)).await;
    let _held = site.send("/slow", &[]).await;
    let full = site.get("/", &[]).await;
    assert!(
        full.body().ends_with(br#"["own","lane"]}"#),
        "{:?}",
        full.body()
    );
}

#[tokio::test]
async fn law_05_charge_no_more_are_in_flight_than_permitted() {
    for store in Store::both().await {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, highest) = (Arc::clone(&now), Arc::clone(&most));
        let handler = move || async move {
            let here = counted.fetch_add(1, Ordering::SeqCst) + 1;
            highest.fetch_max(here, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
            counted.fetch_sub(1, Ordering::SeqCst);
            "done"
        };
        let name = store.name;
        let pools = any([
            limit("a", InFlight::new(2)).by(Constant),
            limit("b", InFlight::new(3)).by(Constant),
        ]);
        let limits = all((budget("requests", 100_000), pools));
        let layer = layer(&store, limits);
        let app = Router::new().route("/", get(handler)).layer(layer.clone());
        let mut racing = JoinSet::new();
        for _ in 0..64 {
            let app = app.clone();
            racing.spawn(async move {
                let mut admitted = 0;
                for _ in 0..20 {
                    let response = app
                        .clone()
                        .oneshot(Request::new(Body::empty()))
                        .await
                        .unwrap();
                    match response.status() {
                        StatusCode::OK => admitted += 1,
                        status => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE),
                    }
                    drop(response);
                }
                admitted
            });
        }
        let admitted: u64 = racing.join_all().await.into_iter().sum();
        assert!(most.load(Ordering::SeqCst) <= 5, "{name}: {most:?} at once");
        assert!(admitted > 20, "{name}: {admitted}");
        assert_eq!(
            (layer.in_flight("a"), layer.in_flight("b")),
            (Some(0), Some(0)),
            "{name}"
        );
        assert_eq!(
            store.used("requests", 100_000).await,
            admitted,
            "{name}: charged what was let in"
        );
    }
}

#[tokio::test]
async fn attack_35_permit_returns_wherever_the_client_disconnects() {
    for store in Store::both().await {
        let layer = layer(
            &store,
            all((
                budget("requests", 100_000),
                limit("in-flight", InFlight::new(1)).by(Constant),
            )),
        );
        let handler = || async {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            "hello"
        };
        let app = Router::new().route("/", get(handler)).layer(layer.clone());
        let (mut completed, mut stays) = (false, 0);
        while !completed {
            assert!(stays < 200, "it never ends");
            let mut polls = stays;
            {
                let request = Request::new(Body::empty());
                let response = pin!(app.clone().oneshot(request));
                if let Some(response) = (AtMost {
                    future: response,
                    polls: &mut polls,
                })
                .await
                {
                    assert_eq!(
                        response.as_ref().unwrap().status(),
                        StatusCode::OK,
                        "after {stays} polls"
                    );
                    let mut body = response.unwrap().into_body();
                    completed = loop {
                        match (AtMost {
                            future: body.frame(),
                            polls: &mut polls,
                        })
                        .await
                        {
                            Some(Some(_)) => {}
                            Some(None) => break true,
                            None => break false,
                        }
                    };
                }
            }
            assert_eq!(
                layer.in_flight("in-flight"),
                Some(0),
                "{}: after {stays} polls",
                store.name
            );
            stays += 1;
        }
        assert!(stays > 3);
    }
}

/// A connection that has switched protocols counts as in flight as long as its task holds the
/// permit.
#[tokio::test]
async fn attack_33_a_permit_is_held_to_the_end_of_an_upgrade() {
    let upgrade = |permit: Permit, mut request: AxumRequest| async move {
        let connection = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut connection = TokioIo::new(connection.await.unwrap());
            let mut said = String::new();
            connection.read_to_string(&mut said).await.unwrap();
            assert_eq!(said, "hello");
            drop(permit);
        });
        let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        response
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "hello")
            .body(Body::empty())
            .unwrap()
    };
    let app = Router::new().route("/", get(upgrade));
    let site = Site::new(
        Store::memory(),
        limit("in-flight", InFlight::new(1)).by(Constant),
        app,
    )
    .await;
    let response = site.upgrade("/", "hello").await;
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut connection = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(site.layer.in_flight("in-flight"), Some(1));
    assert_eq!(site.status("/").await, StatusCode::SERVICE_UNAVAILABLE);
    connection.write_all(b"hello").await.unwrap();
    connection.shutdown().await.unwrap();
    drop(connection);
    until(|| site.layer.in_flight("in-flight") == Some(0)).await;
}

/// A clock that runs a step of the test when a decision reads it.
#[derive(Clone, Default)]
struct Meanwhile(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl Clock for Meanwhile {
    fn now(&self) -> Timestamp {
        if let Some(act) = self.0.get() {
            act();
        }
        SystemClock::new().now()
    }
}

/// A request with its cost in `x-cost`, of a hundred units an hour.
fn costing(cost: u64) -> Request<Body> {
    Request::get("/")
        .header("x-cost", cost)
        .body(Body::empty())
        .unwrap()
}

fn hundred_and_one_permit(clock: &Meanwhile) -> ThrottleLayer<MemoryBackend<Meanwhile>> {
    let hundred = limit(
        "units",
        FixedWindow::new(Rate::new(100, Duration::from_secs(3650 * 86_400))),
    );
    let limits = all((
        hundred
            .by(throttle_tower::Constant)
            .cost(|parts: &Parts| number(parts, "x-cost")),
        limit("in-flight", InFlight::new(1)).by(Constant),
    ));
    ThrottleLayer::builder(limits)
        .backend(MemoryBackend::builder().clock(clock.clone()).build())
        .build()
        .unwrap()
}

/// Law 10: the last permit is taken by another request while the limits decide. Exactly the charge
/// is given back.
#[tokio::test]
async fn law_10_charge_is_given_back_when_permits_run_out_meanwhile() {
    let clock = Meanwhile::default();
    let layer = hundred_and_one_permit(&clock);
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer.clone());
    let other = Arc::new(std::sync::Mutex::new(None));
    let (first, held) = (app.clone(), Arc::clone(&other));
    let overtake = move || {
        if let Ok(mut held) = held.try_lock()
            && held.is_none()
        {
            let mut overtaking = Box::pin(first.clone().oneshot(costing(7)));
            match overtaking
                .as_mut()
                .poll(&mut Context::from_waker(std::task::Waker::noop()))
            {
                Poll::Ready(response) => *held = Some(response.unwrap()),
                Poll::Pending => unreachable!("memory answers at once"),
            }
        }
    };
    assert!(clock.0.set(Box::new(overtake)).is_ok());
    let late = app.clone().oneshot(costing(30)).await.unwrap();
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    let held = other.lock().unwrap().take().unwrap();
    assert_eq!(
        (held.status(), layer.in_flight("in-flight")),
        (StatusCode::OK, Some(1))
    );
    *other.lock().unwrap() = Some(Response::new(Body::empty()));
    drop(held);
    assert_eq!(
        app.clone().oneshot(costing(93)).await.unwrap().status(),
        StatusCode::OK,
        "100 less 7 are left"
    );
    assert_eq!(
        app.oneshot(costing(1)).await.unwrap().status(),
        StatusCode::TOO_MANY_REQUESTS
    );
}

/// Nested layers: the handler's permit is that of all of them.
#[tokio::test]
async fn charge_stacked_layers_hand_over_their_permits_together() {
    let layer =
        |name: &str| ThrottleLayer::new(limit(name, InFlight::new(1)).by(Constant)).unwrap();
    let (outer, inner) = (layer("outer"), layer("inner"));
    let (send, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |permit: Permit| async move { send.send(permit).unwrap() };
    let app = Router::new()
        .route("/", get(handler))
        .layer(inner.clone())
        .layer(outer.clone());
    let response = app
        .clone()
        .oneshot(Request::new(Body::empty()))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    let permit = kept.recv().await.unwrap();
    assert_eq!(
        permit.permits().collect::<Vec<_>>(),
        [("outer", 1), ("inner", 1)]
    );
    assert_eq!(
        (outer.in_flight("outer"), inner.in_flight("inner")),
        (Some(1), Some(1))
    );
    assert_eq!(
        app.clone()
            .oneshot(Request::new(Body::empty()))
            .await
            .unwrap()
            .status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    drop(permit);
    assert_eq!(
        (outer.in_flight("outer"), inner.in_flight("inner")),
        (Some(0), Some(0))
    );
    assert_eq!(
        app.oneshot(Request::new(Body::empty()))
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
}
