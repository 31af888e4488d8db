use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

use super::request_guard::RequestGuard;

pin_project! {
    /// The body of a response that went through a [`Throttle`](crate::Throttle): the inner
    /// service's own, or a refusal's.
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
        let this = self.project();
        match this.body.project() {
            BodyKindProj::Inner { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                // Not left to the drop: a client that has read the last byte may come back before
                // that. Trailers are the end, which not every body knows of itself.
                let goes_on = matches!(&frame, Some(Ok(frame)) if !frame.is_trailers());
                if !goes_on || body.is_end_stream() {
                    drop(std::mem::take(this.guard));
                }
                Poll::Ready(frame)
            }
            BodyKindProj::Refusal { body } => body.poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            BodyKind::Inner { body } => body.is_end_stream(),
            BodyKind::Refusal { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            BodyKind::Inner { body } => body.size_hint(),
            BodyKind::Refusal { body } => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use http::{HeaderMap, Request, Response};
    use http_body_util::BodyExt;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{Constant, InFlight, ThrottleLayer, limit};

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
            .layer(inner)
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
