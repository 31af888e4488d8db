use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use throttle_core::{Backend, MemoryBackend};
use tower_layer::Layer;
use tower_service::Service;

use super::clock::TokioClock;
use super::error::ShapeError;
use super::future::ShapeFuture;
use super::layer::ShapeLayer;
use super::obey_upstream::ResponseReader;
use super::start::Start;
use super::units::ShapeUsage;
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
/// let shaped: Shape<_, u64> =
///     ShapeLayer::new(LeakyBucket::new(Rate::per_second(5)))?.layer(service);
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
        Shape {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S, Req, B: Backend, H> Shape<S, Req, B, H> {
    inner_service_accessors!();

    /// The layer of this service: for its [statistics](ShapeLayer::stats), or to pace other
    /// services together with this one.
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
        let ShapeLayer {
            shaper,
            fields,
            head,
        } = &self.layer;
        let schedule = &shaper.schedule;
        let Some(wanted) = fields.read(&request, &schedule.paces) else {
            return ShapeFuture::calling(self.inner.call(request), None);
        };
        let mut reader = H::LOOKS.then(|| {
            let usage = schedule
                .paces
                .has_units()
                .then(|| ShapeUsage::new(schedule, &wanted));
            let (schedule, key, head) = (Arc::clone(schedule), wanted.key.clone(), head.clone());
            Box::new(ResponseReader {
                schedule,
                key,
                obey: shaper.obey.clone(),
                head,
                left: None,
                usage,
            })
        });
        match schedule.start(&wanted, || fields.class(&request)) {
            Ok(Start::Left(receipt)) => {
                if let Some(reader) = &mut reader {
                    reader.left(receipt);
                }
                ShapeFuture::calling(self.inner.call(request), reader)
            }
            Ok(Start::Waits(waits)) => {
                ShapeFuture::waiting(waits, self.take_ready(), request, reader)
            }
            Err(refused) => ShapeFuture::refused(refused),
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
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S: fmt::Debug, Req, B: Backend, H> fmt::Debug for Shape<S, Req, B, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape")
            .field("inner", &self.inner)
            .field("shaper", &self.layer.shaper)
            .finish()
    }
}
