use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use pin_project_lite::pin_project;

use super::held::Held;

pin_project! {
    /// The body of a response that went through a [`Throttle`](crate::Throttle): the inner service's own, or a refusal's.
    #[derive(Debug)]
    pub struct ThrottleBody<B> {
        #[pin]
        body: Either<B>,
        // What is settled or given back when the body ends, or is dropped.
        held: Held,
    }
}

pin_project! {
    #[project = EitherProj]
    #[derive(Debug)]
    enum Either<B> {
        Inner { #[pin] body: B },
        Refusal { #[pin] body: Full<Bytes> },
    }
}

impl<B> ThrottleBody<B> {
    pub(crate) fn inner(body: B, held: Held) -> Self {
        Self { body: Either::Inner { body }, held }
    }

    pub(crate) fn refusal(body: Bytes) -> Self {
        Self { body: Either::Refusal { body: Full::new(body) }, held: Held::default() }
    }
}

impl<B: Default> Default for ThrottleBody<B> {
    fn default() -> Self {
        Self::inner(B::default(), Held::default())
    }
}

impl<B: Body<Data = Bytes>> Body for ThrottleBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match this.body.project() {
            EitherProj::Inner { mut body } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                // Not left to the drop: whoever has read the last byte may be back before that.
                if !matches!(frame, Some(Ok(_))) || body.is_end_stream() {
                    drop(std::mem::take(this.held));
                }
                Poll::Ready(frame)
            }
            EitherProj::Refusal { body } => body.poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Either::Inner { body } => body.is_end_stream(),
            Either::Refusal { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Either::Inner { body } => body.size_hint(),
            Either::Refusal { body } => body.size_hint(),
        }
    }
}
