use std::fmt;
use std::mem;
use std::task::{Context, Poll};

use http::{Request, Response};
use throttle_core::{Backend, MemoryBackend};
use tower_service::Service;

use super::current::Current;
use super::future::ResponseFuture;
use super::response_body::ResponseBody;
use super::steps::judge::AdmittedRequest;
use super::steps::pipeline::{self, RequestStage};
use crate::inner_service::inner_service_accessors;

/// The service of a [`ThrottleLayer`](crate::ThrottleLayer): decides each request before the inner
/// service is called.
///
/// Clones share the limiter. `call` checks the limits, because they need the request; `poll_ready`
/// only polls the inner service.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let inner = service_fn(|_: Request<()>| async {
///     Ok::<_, std::convert::Infallible>(Response::new("hello"))
/// });
/// let throttle =
///     ThrottleLayer::new(limit("all", Gcra::new(Rate::per_hour(1)).burst(1)).by(Constant))?;
/// let service = throttle.layer(inner);
/// assert_eq!(
///     service.clone().oneshot(Request::new(())).await?.status(),
///     StatusCode::OK
/// );
/// assert_eq!(
///     service.oneshot(Request::new(())).await?.status(),
///     StatusCode::TOO_MANY_REQUESTS
/// );
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Throttle<S, B: Backend = MemoryBackend> {
    inner: S,
    pub(super) current: Current<B>,
}

impl<S, B: Backend> Throttle<S, B> {
    pub(super) fn new(inner: S, current: Current<B>) -> Self {
        Self { inner, current }
    }

    inner_service_accessors!();
}

impl<S, B, ReqBody, ResBody> Service<Request<ReqBody>> for Throttle<S, B>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
    ResBody: ResponseBody,
    B: Backend,
{
    type Response = Response<ResBody::Throttled>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let Self { inner, current } = self;
        let mut admitted = AdmittedRequest::default();
        match pipeline::start(current.now(), &mut parts, &mut admitted) {
            RequestStage::Passes => {
                ResponseFuture::calling(inner.call(Request::from_parts(parts, body)), admitted)
            }
            RequestStage::Refused(refused) => ResponseFuture::refused(refused),
            RequestStage::Waits(shared, request, lookups) => {
                // Takes the service that `poll_ready` prepared; a clone would not be ready.
                let clone = inner.clone();
                let inner = mem::replace(inner, clone);
                let verdict = pipeline::finish(shared, request, lookups, parts);
                ResponseFuture::waiting(Box::pin(verdict), inner, body)
            }
        }
    }
}

impl<S: fmt::Debug, B: Backend> fmt::Debug for Throttle<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.current.live().now();
        f.debug_struct("Throttle")
            .field("inner", &self.inner)
            .field("policies", &version.announced.policies)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Gcra, Rate};
    use tower::Layer;

    use crate::{Constant, ThrottleLayer, limit};

    #[test]
    fn debug_output_has_the_inner_service_and_the_policies() {
        let layer =
            ThrottleLayer::new(limit("per-ip", Gcra::new(Rate::per_second(1))).by(Constant))
                .unwrap();
        let shown = format!("{:?}", layer.layer("the site"));
        assert!(
            shown.starts_with("Throttle { inner: \"the site\", policies: [Policy { name: "),
            "{shown}"
        );
    }
}
