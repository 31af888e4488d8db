use std::fmt;
use std::mem;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

use super::error::ShapeError;
use super::future::{FutureState, PreparedCall, ShapeFuture};
use super::layer::ShapeLayer;
use super::response_reader::ResponseReader;
use super::start::Start;
use crate::inner_service::inner_service_accessors;

/// A service whose calls are delayed to the pace of a [`ShapeLayer`]. Clones share the schedule.
///
/// ```
/// use throttle_tower::shape::Shape;
/// use throttle_tower::{Pace, Rate, ShapeLayer};
/// use tower::Layer;
///
/// let service = tower::service_fn(|_: u64| async { Ok::<_, std::io::Error>("answer") });
/// let shaped: Shape<_, u64, &str> =
///     ShapeLayer::new(Pace::new(Rate::per_second(5)))?.layer(service);
/// assert_eq!(shaped.layer().stats().waiting, 0);
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
pub struct Shape<S, Req, Res> {
    inner: S,
    layer: ShapeLayer<Req, Res>,
}

impl<S, Req, Res> Layer<S> for ShapeLayer<Req, Res> {
    type Service = Shape<S, Req, Res>;

    fn layer(&self, inner: S) -> Self::Service {
        Shape {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S, Req, Res> Shape<S, Req, Res> {
    inner_service_accessors!();

    /// The layer of this service: for its [statistics](ShapeLayer::stats), or to pace other
    /// services together with this one.
    pub const fn layer(&self) -> &ShapeLayer<Req, Res> {
        &self.layer
    }
}

impl<S, Req, Res> Service<Req> for Shape<S, Req, Res>
where
    S: Service<Req, Response = Res> + Clone,
{
    type Response = Res;
    type Error = ShapeError<S::Error>;
    type Future = ShapeFuture<S, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(ShapeError::Inner)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let ShapeLayer { shaper, functions } = &self.layer;
        let Some(demand) = functions.demand(&request, &shaper.schedule.paces) else {
            let response = self.inner.call(request);
            return ShapeFuture {
                state: FutureState::Calling { response },
                reader: None,
            };
        };
        let mut reader = ResponseReader::new(&self.layer, &demand);
        let state = match shaper.schedule.start(demand) {
            Ok(Start::Left(receipt)) => {
                if let Some(reader) = &mut reader {
                    reader.left(receipt);
                }
                let response = self.inner.call(request);
                FutureState::Calling { response }
            }
            Ok(Start::Waits(turn)) => {
                // The clone is not ready; the service that `poll_ready` prepared waits.
                let clone = self.inner.clone();
                let call = PreparedCall {
                    turn,
                    inner: mem::replace(&mut self.inner, clone),
                    request,
                };
                FutureState::Waiting {
                    call: Some(Box::new(call)),
                }
            }
            Err(error) => FutureState::Refused {
                error: Some(Box::new(error)),
            },
        };
        ShapeFuture { state, reader }
    }
}

impl<S: Clone, Req, Res> Clone for Shape<S, Req, Res> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S: fmt::Debug, Req, Res> fmt::Debug for Shape<S, Req, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shape")
            .field("inner", &self.inner)
            .field("shaper", &self.layer.shaper)
            .finish()
    }
}
