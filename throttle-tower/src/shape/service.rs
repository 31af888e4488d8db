use std::fmt;
use std::mem;
use std::task::{Context, Poll};

use throttle_core::{Backend, MemoryBackend};
use tower_service::Service;

use super::clock::TokioClock;
use super::error::ShapeError;
use super::future::{Learner, ShapeFuture};
use super::heed::{IgnoreUpstream, UpstreamHead};
use super::layer::ShapeLayer;
use super::pace::Answer;

/// A service whose calls are paced: what a [`ShapeLayer`] makes of one.
///
/// Clones share the schedule.
pub struct Shape<S, Req, B: Backend = MemoryBackend<TokioClock>, H = IgnoreUpstream> {
    inner: S,
    layer: ShapeLayer<Req, B, H>,
}

impl<S, Req, B: Backend, H> Shape<S, Req, B, H> {
    pub(super) const fn new(inner: S, layer: ShapeLayer<Req, B, H>) -> Self {
        Self { inner, layer }
    }

    /// The inner service.
    #[must_use]
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change.
    #[must_use]
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, taken out.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// The layer that made it: for its [statistics](ShapeLayer::stats), or to pace other services together with this one.
    pub const fn layer(&self) -> &ShapeLayer<Req, B, H> {
        &self.layer
    }
}

impl<S, Req, B, H> Service<Req> for Shape<S, Req, B, H>
where
    S: Service<Req> + Clone,
    B: Backend,
    H: UpstreamHead<S::Response>,
{
    type Response = S::Response;
    type Error = ShapeError<S::Error>;
    type Future = ShapeFuture<S, Req, B, H>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(ShapeError::Inner)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let Some(ask) = self.layer.how.ask(&request) else {
            return ShapeFuture::calling(self.inner.call(request), None);
        };
        let pace = &self.layer.shaper.pace;
        let learner = |ask| H::LOOKS.then(|| Learner::new(&self.layer, ask));
        match pace.ask_at_once(&ask) {
            Some(Ok(Answer::Go)) => {
                let learner = learner(&ask);
                ShapeFuture::calling(self.inner.call(request), learner)
            }
            Some(Ok(Answer::Wait(slot))) => {
                let learner = learner(&ask);
                ShapeFuture::waiting(slot, self.take_ready(), request, learner)
            }
            Some(Err(refused)) => ShapeFuture::refused(refused),
            None => {
                let learner = learner(&ask);
                let asking = pace.ask(ask);
                ShapeFuture::asking(asking, self.take_ready(), request, learner)
            }
        }
    }
}

impl<S: Clone, Req, B: Backend, H> Shape<S, Req, B, H> {
    /// The service that was found ready. Its clone, which was not, stays.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

impl<S: Clone, Req, B: Backend, H: Clone> Clone for Shape<S, Req, B, H> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, Req, B: Backend, H> fmt::Debug for Shape<S, Req, B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape").field("inner", &self.inner).field("shaper", &self.layer.shaper).finish()
    }
}
