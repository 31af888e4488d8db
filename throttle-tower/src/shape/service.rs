use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use throttle_core::{Backend, MemoryBackend};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::clock::TokioClock;
use super::error::ShapeError;
use super::future::ShapeFuture;
use super::layer::ShapeLayer;
use super::obey_upstream::ResponseReader;
use super::reserve::Reservation;
use super::units::{Reserving, ShapeUsage};
use super::upstream_head::{IgnoreUpstream, UpstreamHead};
use crate::inner_service::inner_service_accessors;

/// A service whose calls are delayed to the pace of a [`ShapeLayer`]. Clones share the schedule.
///
/// ```
/// use throttle_tower::shape::Shape;
/// use throttle_tower::{LeakyBucket, Rate, ShapeLayer};
/// use tower::Layer;
///
/// let service = tower::service_fn(|_: u64| async { Ok::<_, std::io::Error>(()) });
/// let shaped: Shape<_, u64> = ShapeLayer::new(LeakyBucket::new(Rate::per_second(5)))?.layer(service);
/// assert_eq!(shaped.layer().stats().waiting, 0);
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
pub struct Shape<S, Req, B: Backend = MemoryBackend<TokioClock>, H = IgnoreUpstream> {
    inner: S,
    layer: ShapeLayer<Req, B, H>,
}

impl<S, Req, B: Backend, H: Clone> Layer<S> for ShapeLayer<Req, B, H> {
    type Service = Shape<S, Req, B, H>;

    fn layer(&self, inner: S) -> Self::Service {
        Shape { inner, layer: self.clone() }
    }
}

impl<S, Req, B: Backend, H> Shape<S, Req, B, H> {
    inner_service_accessors!();

    /// The layer of this service: for its [statistics](ShapeLayer::stats), or to pace other services together with this
    /// one.
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
        if self.layer.shaper.schedule.units.is_some() {
            return self.call_by_units(request);
        }
        let Some(wanted) = self.layer.fields.read(&request) else {
            return ShapeFuture::calling(self.inner.call(request), None);
        };
        let ShapeLayer { shaper, obey, head, .. } = &self.layer;
        let schedule = &shaper.schedule;
        let reader = H::LOOKS.then(|| {
            let (schedule, key, head) = (Arc::clone(schedule), wanted.key.clone(), head.clone());
            Box::new(ResponseReader { schedule, key, obey: *obey, head, left: Instant::now(), usage: None })
        });
        match schedule.reserve_at_once(&wanted) {
            Some(Ok(Reservation::LeaveNow)) => ShapeFuture::calling(self.inner.call(request), reader),
            Some(Ok(Reservation::Wait(slot))) => ShapeFuture::waiting(slot, self.take_ready(), request, reader),
            Some(Err(refused)) => ShapeFuture::refused(refused),
            None => ShapeFuture::waiting(schedule.reserve(wanted), self.take_ready(), request, reader),
        }
    }
}

impl<S, Req, B, H> Shape<S, Req, B, H>
where
    S: Service<Req> + Clone,
    B: Backend,
    H: UpstreamHead<S::Response>,
{
    #[inline(never)]
    fn call_by_units(&mut self, request: Req) -> ShapeFuture<S, Req, B, H> {
        let ShapeLayer { shaper, fields, obey, head } = &self.layer;
        let schedule = &shaper.schedule;
        let wanted = schedule.units.as_ref().and_then(|units| Some((units, fields.read_units(&request, units)?)));
        let Some((units, (key, costs, deadline))) = wanted else {
            return ShapeFuture::calling(self.inner.call(request), None);
        };
        let reader = H::LOOKS.then(|| {
            let usage = Some(ShapeUsage::new(schedule, costs.units.clone()));
            let (schedule, key, head) = (Arc::clone(schedule), key.clone(), head.clone());
            Box::new(ResponseReader { schedule, key, obey: *obey, head, left: Instant::now(), usage })
        });
        let usage = reader.as_ref().and_then(|reader| reader.usage.as_ref());
        match schedule.reserve_units(units, key, &costs, deadline, usage) {
            Reserving::Done(Ok(Reservation::LeaveNow)) => ShapeFuture::calling(self.inner.call(request), reader),
            Reserving::Done(Ok(Reservation::Wait(slot))) => {
                ShapeFuture::waiting(slot, self.take_ready(), request, reader)
            }
            Reserving::Done(Err(refused)) => ShapeFuture::refused(refused),
            Reserving::Pending(reserving) => ShapeFuture::waiting(reserving, self.take_ready(), request, reader),
        }
    }
}

impl<S: Clone, Req, B: Backend, H> Shape<S, Req, B, H> {
    /// Takes the service that `poll_ready` prepared; the clone that stays is not ready.
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
