use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_service::Service;

use super::error::ShapeError;
use super::response_reader::ResponseReader;
use super::waits::TurnWait;

pin_project! {
    /// The response future of a [`Shape`](super::Shape).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time. While it waits it holds nothing but its position among the
    /// calls that wait, and the next one has that immediately. A turn that the store has granted,
    /// and that no call takes, is given back. After the wait the inner service has been called, and
    /// dropping this future drops that service's future.
    ///
    /// A future that is kept and not polled does not hold up later calls: they get its turns.
    ///
    /// # Panics
    ///
    /// When polled after completion, and when it has to wait outside of a tokio runtime that has
    /// its timers enabled.
    ///
    /// ```
    /// use throttle_tower::shape::{ShapeError, ShapeFuture};
    /// use throttle_tower::{Pace, Rate, ShapeLayer};
    /// use tower::{Layer, Service};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = tower::service_fn(|n: u64| async move { Ok::<_, std::io::Error>(n + 1) });
    /// let mut shaped = ShapeLayer::new(Pace::new(Rate::per_second(5)))?.layer(service);
    /// let call: ShapeFuture<_, u64> = shaped.call(1);
    /// assert!(matches!(call.await, Ok::<_, ShapeError<_>>(2)));
    /// # Ok(())
    /// # }
    /// ```
    pub struct ShapeFuture<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        pub(super) state: FutureState<S, Req>,
        // Boxed, so that it takes no room where responses are not read.
        pub(super) reader: Option<Box<ResponseReader<Req, S::Response>>>,
    }
}

pin_project! {
    #[project = FutureStateProjection]
    pub(super) enum FutureState<S, Req>
    where
        S: Service<Req>,
    {
        /// Boxed, because it is large. `None` once it is over.
        Waiting { call: Option<Box<PreparedCall<S, Req>>> },
        Calling { #[pin] response: S::Future },
        Refused { error: Option<Box<ShapeError>> },
    }
}

/// A call that waits, with the ready service that `poll_ready` prepared for it.
pub(super) struct PreparedCall<S, Req> {
    pub(super) turn: TurnWait,
    pub(super) inner: S,
    pub(super) request: Req,
}

impl<S, Req> Future for ShapeFuture<S, Req>
where
    S: Service<Req>,
{
    type Output = Result<S::Response, ShapeError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                FutureStateProjection::Waiting { call } => {
                    let turn = &mut call.as_mut().expect(POLLED_AGAIN).turn;
                    let turn = ready!(Pin::new(turn).poll(cx));
                    let PreparedCall {
                        mut inner, request, ..
                    } = *call.take().expect(POLLED_AGAIN);
                    let receipt = turn.map_err(ShapeError::widen)?;
                    if let Some(reader) = this.reader {
                        reader.left(receipt);
                    }
                    let response = inner.call(request);
                    this.state.set(FutureState::Calling { response });
                }
                FutureStateProjection::Calling { response } => {
                    let mut response = ready!(response.poll(cx));
                    if let (Some(reader), Ok(response)) = (this.reader.take(), &mut response) {
                        reader.read(response);
                    }
                    return Poll::Ready(response.map_err(ShapeError::Inner));
                }
                FutureStateProjection::Refused { error } => {
                    let error = error.take().expect(POLLED_AGAIN);
                    return Poll::Ready(Err(error.widen()));
                }
            }
        }
    }
}

const POLLED_AGAIN: &str = "a ShapeFuture was polled after completion";

impl<S: Service<Req>, Req> fmt::Debug for ShapeFuture<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShapeFuture")
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::Ready;

    use super::*;

    /// Accepts everything.
    #[derive(Clone)]
    struct NoOp;

    impl Service<()> for NoOp {
        type Response = ();
        type Error = Infallible;
        type Future = Ready<Result<(), Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, (): ()) -> Self::Future {
            std::future::ready(Ok(()))
        }
    }

    #[test]
    fn shape_waiting_call_through_a_service_takes_at_most_600_bytes() {
        let future = size_of::<ShapeFuture<NoOp, ()>>();
        let prepared = size_of::<PreparedCall<NoOp, ()>>();
        let held = size_of::<super::super::queue::HeldCall>() + size_of::<tokio::time::Sleep>();
        assert!(
            future + prepared + held <= 600,
            "{future}, {prepared} and {held}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn shape_refusal_is_returned_once() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        use std::task::Waker;
        use std::time::Duration;

        use throttle_core::Rate;

        use super::super::pace::Pace;
        use tower::Layer;

        let pace = Pace::new(Rate::per_second(1)).max_wait(Duration::ZERO);
        let mut service = crate::ShapeLayer::new(pace).unwrap().layer(NoOp);
        service.call(()).await.unwrap();
        let mut refused = Box::pin(service.call(()));
        let mut poll = || {
            refused
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        };
        assert!(matches!(poll(), Poll::Ready(Err(ShapeError::QueueFull(_)))));
        let message = catch_unwind(AssertUnwindSafe(|| drop(poll()))).unwrap_err();
        assert_eq!(
            *message.downcast::<String>().unwrap_or_default(),
            "a ShapeFuture was polled after completion"
        );
    }
}
