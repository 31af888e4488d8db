//! The body of a response that passes through the throttle is the inner service's, frame by frame.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use throttle_tower::{ThrottleBody, ThrottleLayer};
use tower::{Layer, ServiceExt};

use crate::common::{Remote, Text, get, shared};

#[derive(Clone, Debug, Default, PartialEq)]
struct Broken(u8);

/// A body that returns the given parts, is pending where a part is `None`, and has a size hint of
/// its own.
#[derive(Clone, Debug, Default)]
struct Script(VecDeque<Option<Part>>);

#[derive(Clone, Debug)]
enum Part {
    Data(&'static str),
    Trailer(&'static str),
    Error(u8),
}

impl Body for Script {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let Some(part) = self.0.pop_front() else {
            return Poll::Ready(None);
        };
        let Some(part) = part else {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        Poll::Ready(Some(match part {
            Part::Data(text) => Ok(Frame::data(Bytes::from(text))),
            Part::Trailer(value) => {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-checksum", value.parse().unwrap());
                Ok(Frame::trailers(trailers))
            }
            Part::Error(code) => Err(Broken(code)),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(3);
        hint.set_upper(30);
        hint
    }
}

/// What the throttle makes of a body, with and without a decision that is waited for.
async fn through(parts: impl IntoIterator<Item = Option<Part>>) -> [ThrottleBody<Script>; 2] {
    let script = Script(parts.into_iter().collect());
    let inner = tower::service_fn(move |_: Request<Text>| {
        let script = script.clone();
        async { Ok::<_, Infallible>(Response::new(script)) }
    });
    let builder = ThrottleLayer::builder(shared("p", 1));
    let at_once = builder
        .clone()
        .build()
        .unwrap()
        .layer(inner.clone().map_response(ThrottleBody::wrap))
        .oneshot(get())
        .await
        .unwrap();
    let waited = builder
        .backend(Remote::slow(1, 1))
        .build()
        .unwrap()
        .layer(inner.map_response(ThrottleBody::wrap))
        .oneshot(get())
        .await
        .unwrap();
    [at_once.into_body(), waited.into_body()]
}

#[tokio::test]
async fn frames_and_trailers_come_through_in_order() {
    let parts = [
        Some(Part::Data("one")),
        None,
        Some(Part::Data("two")),
        Some(Part::Trailer("7")),
    ];
    for mut body in through(parts).await {
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "one"
        );
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "two"
        );
        assert!(!body.is_end_stream(), "the trailers are still to come");
        assert_eq!(
            body.frame()
                .await
                .unwrap()
                .unwrap()
                .into_trailers()
                .unwrap()["x-checksum"],
            "7"
        );
        assert!(body.is_end_stream());
        assert!(body.frame().await.is_none());
    }
}

/// A body without data that knows its size, and has trailers.
struct TrailersAlone(Option<HeaderMap>);

impl Body for TrailersAlone {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

/// A server that finds a body ended sends none of its trailers.
#[tokio::test]
async fn a_body_of_trailers_alone_has_not_ended() {
    let inner = tower::service_fn(|_: Request<Text>| async {
        Ok::<_, Infallible>(Response::new(TrailersAlone(Some(HeaderMap::new()))))
    });
    let mut body = ThrottleLayer::new(shared("p", 1))
        .unwrap()
        .layer(inner.map_response(ThrottleBody::wrap))
        .oneshot(get())
        .await
        .unwrap()
        .into_body();
    assert!(body.size_hint().exact() == Some(0) && !body.is_end_stream());
    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    assert!(body.is_end_stream());
}

#[tokio::test]
async fn errors_come_through_as_they_are() {
    for mut body in through([
        Some(Part::Data("one")),
        Some(Part::Error(7)),
        Some(Part::Data("more")),
    ])
    .await
    {
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(body.frame().await.unwrap().unwrap_err(), Broken(7));
        assert!(
            body.frame().await.unwrap().is_ok(),
            "what follows an error is the inner body's matter"
        );
    }
}

#[tokio::test]
async fn the_size_hint_is_the_inner_bodys() {
    for body in through([Some(Part::Data("one"))]).await {
        assert_eq!(
            (body.size_hint().lower(), body.size_hint().upper()),
            (3, Some(30))
        );
    }
    let [empty, _] = through([]).await;
    assert!(empty.is_end_stream());
}

#[tokio::test]
async fn a_refusals_body_has_an_exact_size_and_one_frame() {
    let inner = tower::service_fn(|_: Request<Text>| async {
        Ok::<_, Infallible>(Response::new(Script::default()))
    });
    let service = ThrottleLayer::new(shared("p", 1))
        .unwrap()
        .layer(inner.map_response(ThrottleBody::wrap));
    service.clone().oneshot(get()).await.unwrap();
    let mut body = service.oneshot(get()).await.unwrap().into_body();
    assert!(!body.is_end_stream());
    let size = body.size_hint().exact().unwrap();
    let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(data.len() as u64, size);
    assert!(data.ends_with(br#""violated-policies":["p"]}"#), "{data:?}");
    assert!(body.is_end_stream());
    assert!(body.frame().await.is_none());
}

/// Outer layers, such as a timeout, require it.
#[tokio::test]
async fn the_default_is_the_inner_bodys_default() {
    let mut body = ThrottleBody::<Script>::default();
    assert_eq!(body.size_hint().upper(), Some(30));
    assert!(body.frame().await.is_none());
}
