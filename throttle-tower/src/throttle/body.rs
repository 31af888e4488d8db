use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

use super::request_guard::RequestGuard;

pin_project! {
    /// The body of a response that went through a [`Throttle`](crate::Throttle), where the inner
    /// service's own type cannot hold a permit until it ends: that body, or a refusal's.
    ///
    /// [`ResponseBody`](crate::ResponseBody) says which types that are.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use http_body_util::{BodyExt, Empty};
    /// use throttle_tower::{Constant, InFlight, ThrottleBody, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// type Body = Empty<bytes::Bytes>;
    /// let inner = service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(Body::new()))
    /// });
    /// let throttle = ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant))?;
    /// let body: ThrottleBody<Body> = throttle
    ///     .layer(inner)
    ///     .oneshot(Request::new(()))
    ///     .await?
    ///     .into_body();
    /// assert_eq!(
    ///     throttle.in_flight("in-flight"),
    ///     Some(1),
    ///     "the permit is held until the body ends"
    /// );
    /// body.collect().await?;
    /// assert_eq!(throttle.in_flight("in-flight"), Some(0));
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct ThrottleBody<B> {
        #[pin]
        body: BodyKind<B>,
        // Settled or given back when the body ends or is dropped.
        guard: RequestGuard,
    }
}

pin_project! {
    #[project = BodyKindProj]
    #[derive(Debug)]
    enum BodyKind<B> {
        Inner { #[pin] body: B },
        Refusal { #[pin] body: Full<Bytes> },
    }
}

impl<B> ThrottleBody<B> {
    pub(crate) fn inner(body: B, guard: RequestGuard) -> Self {
        Self {
            body: BodyKind::Inner { body },
            guard,
        }
    }

    pub(crate) fn refusal(body: Bytes) -> Self {
        Self {
            body: BodyKind::Refusal {
                body: Full::new(body),
            },
            guard: RequestGuard::default(),
        }
    }

    /// Wraps the body of a response, so that a throttle can return the response of a service whose
    /// body is no [`ResponseBody`](crate::ResponseBody).
    ///
    /// ```
    /// use std::convert::Infallible;
    ///
    /// use http::{Request, Response};
    /// use http_body_util::{BodyExt, Empty, combinators::MapErr};
    /// use throttle_tower::{Constant, Gcra, Rate, ThrottleBody, ThrottleLayer, limit};
    /// use tower::{ServiceBuilder, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let inner = service_fn(async |_: Request<()>| {
    ///     let body = Empty::<bytes::Bytes>::new().map_err(std::io::Error::other);
    ///     Ok::<_, Infallible>(Response::new(body))
    /// });
    /// let limits = limit("all", Gcra::new(Rate::per_second(5))).by(Constant);
    /// let service = ServiceBuilder::new()
    ///     .layer(ThrottleLayer::new(limits)?)
    ///     .map_response(ThrottleBody::wrap)
    ///     .service(inner);
    /// assert_eq!(service.oneshot(Request::new(())).await?.status(), 200);
    /// # Ok(())
    /// # }
    /// ```
    pub fn wrap(response: Response<B>) -> Response<Self> {
        response.map(|body| Self::inner(body, RequestGuard::default()))
    }

    /// Returns the inner service's body.
    ///
    /// # Errors
    ///
    /// Returns this body if something is held until it ends, or if it is a refusal's.
    pub fn into_inner(self) -> Result<B, Self> {
        match self.body {
            BodyKind::Inner { body } if self.guard.is_empty() => Ok(body),
            _ => Err(self),
        }
    }
}

/// A body that passes through several throttles is wrapped once.
impl<B> From<ThrottleBody<ThrottleBody<B>>> for ThrottleBody<B> {
    fn from(outer: ThrottleBody<Self>) -> Self {
        match outer.body {
            BodyKind::Inner { body } => Self {
                body: body.body,
                guard: body.guard.inside(outer.guard),
            },
            BodyKind::Refusal { body } => Self {
                body: BodyKind::Refusal { body },
                guard: outer.guard,
            },
        }
    }
}

impl<B: Default> Default for ThrottleBody<B> {
    fn default() -> Self {
        Self::inner(B::default(), RequestGuard::default())
    }
}

impl<B: Body<Data = Bytes>> Body for ThrottleBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(match this.body.as_mut().project() {
            BodyKindProj::Inner { body } => body.poll_frame(cx),
            BodyKindProj::Refusal { body } => body.poll_frame(cx).map_err(|never| match never {}),
        });
        // Not left to the drop: a client that has read the last byte may come back before that.
        // Trailers are the end, which not every body knows of itself.
        let goes_on = matches!(&frame, Some(Ok(frame)) if !frame.is_trailers());
        if !goes_on || this.body.is_end_stream() {
            drop(std::mem::take(this.guard));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            BodyKind::Inner { body } => body.size_hint(),
            BodyKind::Refusal { body } => body.size_hint(),
        }
    }
}

impl<B: Body> BodyKind<B> {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Inner { body } => body.is_end_stream(),
            Self::Refusal { body } => body.is_end_stream(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use http::{HeaderMap, Request};
    use http_body_util::BodyExt;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{Constant, Gcra, InFlight, LimitTree, Rate, ThrottleLayer, all, limit};

    /// A boxed body need not be boxed anew then.
    #[tokio::test]
    async fn body_is_wrapped_only_if_something_is_held_until_it_ends() {
        let rate = || limit("rate", Gcra::new(Rate::per_hour(9))).by(Constant);
        let refunds = || rate().refund_if(|status, _| status.is_server_error());
        let permits = || limit("in-flight", InFlight::new(1)).by(Constant);
        for (limits, is_wrapped) in [
            (LimitTree::from(rate()), false),
            (refunds().into(), false),
            (permits().into(), true),
            (all([LimitTree::from(refunds()), permits().into()]), true),
        ] {
            let inner =
                service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new("hello")));
            let throttle = ThrottleLayer::new(limits).unwrap();
            let response = throttle.layer(inner).oneshot(Request::new(())).await;
            let body = response.unwrap().into_body();
            assert_eq!(body.into_inner().is_err(), is_wrapped);
        }
    }

    /// Does not know that trailers are its end.
    #[derive(Default)]
    struct Frames(VecDeque<Frame<Bytes>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    #[tokio::test]
    async fn permit_is_held_until_the_trailers() {
        let inner = service_fn(async |_: Request<()>| {
            let frames = [
                Frame::data(Bytes::from("message")),
                Frame::trailers(HeaderMap::new()),
            ];
            Ok::<_, Infallible>(Response::new(Frames(frames.into())))
        });
        let throttle =
            ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant)).unwrap();
        let mut body = throttle
            .layer(inner.map_response(ThrottleBody::wrap))
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .into_body();
        for (is_trailers, permits) in [(false, 1), (true, 0)] {
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(
                (frame.is_trailers(), throttle.in_flight("in-flight")),
                (is_trailers, Some(permits))
            );
        }
        assert!(!body.is_end_stream(), "the body itself does not know");
    }
}
