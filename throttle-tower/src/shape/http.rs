use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::error::{Bound, QueueFull, ShapeError};
use super::layer::ShapeLayer;
use crate::headers::Problem;
use crate::headers::retry_after::RetryAfter;
use crate::throttle::{ResponseBody, passed, refused};
use crate::time::micros;
use crate::uncached::uncached;

/// A [`ShapeLayer`] that answers refused calls with a response: its services have the errors of the
/// inner service only.
///
/// A call that would wait too long gets a 429, with `Retry-After` if a wait helps. If too many
/// calls wait already, or the store fails, the call gets a 503. The body is a problem document (RFC
/// 9457), with `Cache-Control: no-store`. Unless the store failed, the extensions of the response
/// contain the [`QueueFull`](super::QueueFull), by which it differs from a 429 of the upstream.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::{Pace, Rate, ShapeLayer};
/// use tower::{Layer, Service, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = tower::service_fn(|_: Request<()>| async {
///     Ok::<_, std::io::Error>(Response::new(String::new()))
/// });
/// let pace = Pace::new(Rate::per_second(1)).max_wait(std::time::Duration::ZERO);
/// let mut service = ShapeLayer::new(pace)?.http().layer(service);
/// assert_eq!(
///     service
///         .ready()
///         .await?
///         .call(Request::new(()))
///         .await?
///         .status(),
///     200
/// );
/// assert_eq!(
///     service
///         .ready()
///         .await?
///         .call(Request::new(()))
///         .await?
///         .status(),
///     429
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct HttpShapeLayer<L> {
    layer: L,
}

impl<Req, Res> ShapeLayer<Req, Res> {
    /// Returns a layer that answers refused calls with a 429 or 503 instead of an error. It needs
    /// services whose responses are HTTP.
    pub fn http(self) -> HttpShapeLayer<Self> {
        HttpShapeLayer { layer: self }
    }
}

impl<S, L: Layer<S>> Layer<S> for HttpShapeLayer<L> {
    type Service = HttpShape<L::Service>;

    fn layer(&self, inner: S) -> Self::Service {
        HttpShape {
            shape: self.layer.layer(inner),
        }
    }
}

/// The service of an [`HttpShapeLayer`]: delays calls, and answers the refused ones with a
/// response.
///
/// ```
/// use http::{Request, Response};
/// use throttle_tower::shape::{HttpShape, Shape};
/// use throttle_tower::{Pace, Rate, ShapeLayer};
/// use tower::Layer;
///
/// let service = tower::service_fn(|_: Request<()>| async {
///     Ok::<_, std::io::Error>(Response::new(String::new()))
/// });
/// let shaped: HttpShape<Shape<_, Request<()>, Response<String>>> =
///     ShapeLayer::new(Pace::new(Rate::per_second(5)))?
///         .http()
///         .layer(service);
/// assert_eq!(shaped.get_ref().layer().stats().waiting, 0);
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HttpShape<S> {
    shape: S,
}

impl<S> HttpShape<S> {
    /// The [`Shape`](super::Shape) that returns an error instead of a response for a refused call.
    #[must_use]
    pub const fn get_ref(&self) -> &S {
        &self.shape
    }
}

impl<S, Req, Body, E> Service<Req> for HttpShape<S>
where
    S: Service<Req, Response = Response<Body>, Error = ShapeError<E>>,
    Body: ResponseBody,
{
    type Response = Response<Body::Throttled>;
    type Error = E;
    type Future = HttpShapeFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), E>> {
        let only_inner = |error: ShapeError<E>| {
            error
                .into_inner()
                .expect("only the inner service's readiness can fail")
        };
        self.shape.poll_ready(cx).map_err(only_inner)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        HttpShapeFuture {
            future: self.shape.call(request),
        }
    }
}

pin_project! {
    /// The response future of an [`HttpShape`]. Cancellation and panics are those of a
    /// [`ShapeFuture`](super::ShapeFuture).
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::shape::HttpShapeFuture;
    /// use throttle_tower::{Pace, Rate, ShapeLayer};
    /// use tower::{Layer, Service};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let service = tower::service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::io::Error>(Response::new(String::new()))
    /// });
    /// let mut shaped = ShapeLayer::new(Pace::new(Rate::per_second(5)))?
    ///     .http()
    ///     .layer(service);
    /// let call: HttpShapeFuture<_> = shaped.call(Request::new(()));
    /// assert_eq!(call.await?.status(), 200);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct HttpShapeFuture<F> {
        #[pin]
        future: F,
    }
}

impl<F, Body, E> Future for HttpShapeFuture<F>
where
    F: Future<Output = Result<Response<Body>, ShapeError<E>>>,
    Body: ResponseBody,
{
    type Output = Result<Response<Body::Throttled>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().future.poll(cx)) {
            Ok(response) => Ok(passed(response, Default::default())),
            Err(ShapeError::Inner(error)) => Err(error),
            Err(ShapeError::QueueFull(full)) => Ok(refused::<Body>(full.response())),
            Err(ShapeError::Store(_) | ShapeError::UnknownUnit(_)) => {
                Ok(refused::<Body>(refusal(Problem::TemporaryReducedCapacity)))
            }
        })
    }
}

impl QueueFull {
    /// The refusal as an HTTP response: 429 if the call would have waited too long, 503 if too many
    /// calls wait already; with `Retry-After` where the wait is known, in whole seconds, rounded
    /// up. The response's extensions contain this `QueueFull`, which tells it from the upstream's
    /// own refusals.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        let problem = match self.bound {
            Bound::MaxWait | Bound::Deadline | Bound::Class => Problem::QuotaExceeded,
            Bound::MaxWaiting => Problem::TemporaryReducedCapacity,
        };
        let mut response = refusal(problem);
        response.extensions_mut().insert(*self);
        if let Some(wait) = self.retry_after {
            let wait = RetryAfter::from_micros(micros(wait));
            response
                .headers_mut()
                .insert(RETRY_AFTER, HeaderValue::from(wait.seconds()));
        }
        response
    }
}

fn refusal(problem: Problem) -> Response<Bytes> {
    uncached(problem.status(), Problem::CONTENT_TYPE, problem.body([]))
}
