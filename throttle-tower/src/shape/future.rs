use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use throttle_core::{Backend, Key};
use tower_service::Service;

use super::asking::Asking;
use super::error::ShapeError;
use super::heed::UpstreamHead;
use super::layer::ShapeLayer;
use super::obey::Obey;
use super::pace::{Answer, Ask, Pace};
use super::slot::{Slot, Turn};

pin_project! {
    /// The answer of a [`Shape`](crate::Shape).
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits for its turn, its slot is given back; while the store is asked, too, once that has answered. After
    /// that the service is called, and what dropping it means is the service's business.
    ///
    /// # Panics
    ///
    /// When polled again after it has answered, as futures do; and when it has to wait outside of a tokio runtime that
    /// has its timers enabled.
    pub struct ShapeFuture<S, Req, B, H>
    where
        S: Service<Req>,
        B: Backend,
    {
        #[pin]
        state: State<S, Req, B>,
        learner: Option<Learner<B, H>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, B>
    where
        S: Service<Req>,
        B: Backend,
    {
        /// Boxed, because it is large and seldom: futures of this type are moved about on every call.
        Waiting { queued: Pin<Box<Queued<S, Req, B>>> },
        Calling { #[pin] response: S::Future },
        Refused { error: Option<ShapeError> },
    }
}

pin_project! {
    /// A call that waits, with the service that was found ready for it.
    struct Queued<S, Req, B>
    where
        B: Backend,
    {
        #[pin]
        stage: Stage<B>,
        held: Option<(S, Req)>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<B>
    where
        B: Backend,
    {
        Asking { asking: Asking<B> },
        Turn { #[pin] turn: Turn<B> },
    }
}

impl<S: Service<Req>, Req, B: Backend, H> ShapeFuture<S, Req, B, H> {
    #[inline]
    pub(super) fn calling(response: S::Future, learner: Option<Learner<B, H>>) -> Self {
        Self { state: State::Calling { response }, learner }
    }

    pub(super) fn refused(error: ShapeError) -> Self {
        Self { state: State::Refused { error: Some(error) }, learner: None }
    }

    pub(super) fn waiting(slot: Slot<B>, inner: S, request: Req, learner: Option<Learner<B, H>>) -> Self {
        Self::queued(Stage::Turn { turn: slot.into_future() }, inner, request, learner)
    }

    pub(super) fn asking(asking: Asking<B>, inner: S, request: Req, learner: Option<Learner<B, H>>) -> Self {
        Self::queued(Stage::Asking { asking }, inner, request, learner)
    }

    fn queued(stage: Stage<B>, inner: S, request: Req, learner: Option<Learner<B, H>>) -> Self {
        let queued = Box::pin(Queued { stage, held: Some((inner, request)) });
        Self { state: State::Waiting { queued }, learner }
    }
}

impl<S, Req, B, H> Future for ShapeFuture<S, Req, B, H>
where
    S: Service<Req>,
    B: Backend,
    H: UpstreamHead<S::Response>,
{
    type Output = Result<S::Response, ShapeError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                StateProj::Waiting { queued } => match ready!(queued.as_mut().poll(cx)) {
                    Ok((mut inner, request)) => State::Calling { response: inner.call(request) },
                    Err(error) => State::Refused { error: Some(error) },
                },
                StateProj::Calling { response } => {
                    let answered = ready!(response.poll(cx));
                    if let (Some(learner), Ok(response)) = (this.learner.take(), &answered) {
                        learner.learn(response);
                    }
                    return Poll::Ready(answered.map_err(ShapeError::Inner));
                }
                StateProj::Refused { error } => {
                    let error = error.take().expect(POLLED_AGAIN);
                    return Poll::Ready(Err(error.widen()));
                }
            };
            this.state.set(next);
        }
    }
}

impl<S, Req, B: Backend> Future for Queued<S, Req, B> {
    type Output = Result<(S, Req), ShapeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Asking { asking } => match ready!(Pin::new(asking).poll(cx))? {
                    Answer::Go => break,
                    Answer::Wait(slot) => this.stage.set(Stage::Turn { turn: slot.into_future() }),
                },
                StageProj::Turn { turn } => {
                    ready!(turn.poll(cx));
                    break;
                }
            }
        }
        Poll::Ready(Ok(this.held.take().expect(POLLED_AGAIN)))
    }
}

/// The one way to get there breaks the contract of `Future`.
const POLLED_AGAIN: &str = "a ShapeFuture was polled after it had answered";

/// Learns from the response to one call, of whose key it is.
pub(super) struct Learner<B: Backend, H> {
    pace: Arc<Pace<B>>,
    key: Key,
    obey: Obey,
    heed: H,
}

impl<B: Backend, H: Clone> Learner<B, H> {
    pub(super) fn new<Req>(layer: &ShapeLayer<Req, B, H>, ask: &Ask) -> Self {
        let (pace, key) = (Arc::clone(&layer.shaper.pace), ask.key.clone());
        Self { pace, key, obey: layer.obey, heed: layer.heed.clone() }
    }

    fn learn<Res>(&self, response: &Res)
    where
        H: UpstreamHead<Res>,
    {
        if let Some((status, headers)) = self.heed.head(response) {
            self.obey.learn(&self.pace, &self.key, status, headers);
        }
    }
}

impl<S: Service<Req>, Req, B: Backend, H> fmt::Debug for ShapeFuture<S, Req, B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShapeFuture")
    }
}
