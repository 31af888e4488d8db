use std::fmt;
use std::sync::Arc;

use throttle_core::{Backend, MemoryBackend};
use tower_layer::Layer;

use super::current::{Current, Live};
use super::service::Throttle;
use crate::event::LayerInfo;
use crate::usage::Settlements;

/// Refuses requests that exceed their limits: 429, with `RateLimit` headers and a `Retry-After`
/// after which a client is admitted.
///
/// It works in axum's `Router::layer` and `route_layer`, in `ServiceBuilder`, and around any
/// `Service<Request<B>>` that is `Clone` and whose response is an `http::Response`. Clones share
/// the limiter. The inner service's errors pass through unchanged, and it is not called for
/// requests that are refused.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use throttle_tower::{Constant, Gcra, Header, Rate, ThrottleLayer, TokenBucket, all, limit};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # fn is_issued(key: &[u8]) -> bool { [&b"ada"[..], b"bob"].contains(&key) }
/// // All invented keys together have one budget.
/// let key = Header::new("x-api-key").accept(is_issued);
/// let throttle = ThrottleLayer::new(all([
///     limit("all", Gcra::new(Rate::per_second(1_000))).by(Constant),
///     limit("per-key", TokenBucket::new("2/hour".parse()?)).by(key),
/// ]))?;
/// let service = throttle.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new("hello"))
/// }));
/// let mut statuses = Vec::new();
/// for key in ["ada", "ada", "ada", "bob"] {
///     let request = Request::get("/").header("x-api-key", key).body(())?;
///     statuses.push(service.clone().oneshot(request).await?.status());
/// }
/// assert_eq!(
///     statuses,
///     [
///         StatusCode::OK,
///         StatusCode::OK,
///         StatusCode::TOO_MANY_REQUESTS,
///         StatusCode::OK
///     ]
/// );
/// # Ok(())
/// # }
/// ```
///
/// # Deployment
///
/// * The peer's address comes from axum's `ConnectInfo<SocketAddr>`: enable the feature `axum` and
///   serve with `app.into_make_service_with_connect_info::<SocketAddr>()`. Without it there is no
///   address: by default all requests share one budget, and a
///   [warning](crate::ThrottleBuilder::on_warning) is logged. tonic's server needs the feature
///   `tonic` only. With another server, insert a [`PeerAddr`](crate::extract::PeerAddr) into the
///   request's extensions. Behind a proxy the peer is the proxy: see
///   [`client_ip`](crate::client_ip).
/// * As the outermost layer it limits every request, preflights included. Inside a CORS layer it
///   does not see preflights, and its refusals carry the CORS headers that browsers need. See
///   [`is_preflight`](crate::is_preflight) and
///   [`Dialect::exposed_names`](crate::Dialect::exposed_names).
/// * In tonic's `Server::builder().layer(…)` it refuses [as gRPC clients read
///   it](crate::ThrottleBuilder::grpc_refusals). A `MemoryBackend` or a layer that an axum app uses
///   too makes them share one budget. gRPC clients in browsers read `grpc-status`, `grpc-message`
///   and `grpc-status-details-bin` only where a CORS layer exposes them.
/// * gRPC health checks are limited like every other call. Exempt them with
///   `.when(|parts: &Parts| !parts.uri.path().starts_with("/grpc.health.v1.Health/"))`.
/// * A refused request's body is not read. Over HTTP/2, hyper then resets the stream, and a client
///   that is still sending a large upload, such as curl, may report a stream error instead of the
///   429.
/// * The [`Route`](crate::Route) is known to layers added with `Router::layer` or `route_layer`,
///   not to a layer around the whole router;
///   [`on_warning`](crate::ThrottleBuilder::on_warning) reports that.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ThrottleLayer<B: Backend = MemoryBackend> {
    pub(crate) current: Arc<Live<B>>,
}

impl<B: Backend> ThrottleLayer<B> {
    /// Returns what this layer enforces now.
    ///
    /// ```
    /// use throttle_tower::{Constant, Gcra, InFlight, Rate, ThrottleLayer, all, limit};
    ///
    /// let per_second = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
    /// let in_flight = limit("in-flight", InFlight::new(20)).by(Constant);
    /// let throttle = ThrottleLayer::new(all((per_second, in_flight)))?;
    /// let info = throttle.info();
    /// let names: Vec<_> = info.limits().iter().map(|limit| limit.name.as_str()).collect();
    /// assert_eq!(names, ["all", "in-flight"]);
    /// assert_eq!(info.limits()[1].permits, Some(20));
    /// throttle.replace(())?;
    /// assert!(throttle.info().limits().is_empty() && !info.is_in_use());
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    #[must_use]
    pub fn info(&self) -> LayerInfo {
        self.current.with(|shared| shared.version.info().clone())
    }

    /// Returns how many permits of a limit on [requests in flight](crate::InFlight) are taken now,
    /// by the requests of all keys together. `None` if no limit on requests in flight has the name.
    #[must_use]
    pub fn in_flight(&self, name: &str) -> Option<u64> {
        self.current.with(|shared| shared.permits.taken(name))
    }

    /// Returns how many refunds, settlements and other background charges are pending, done and
    /// failed, for all clones of this layer and the layers of [`with_limits`](Self::with_limits).
    /// Before a process exits, wait until none is pending: pending ones are lost.
    #[must_use]
    pub fn settlements(&self) -> Settlements {
        self.current
            .with(|shared| shared.options.background.counters.read())
    }

    /// Returns the backend that decides. Clones of a backend share one store.
    ///
    /// ```
    /// use throttle_tower::{Constant, Dialect, Gcra, Rate, ThrottleLayer, limit};
    ///
    /// let limits = |count| limit("all", Gcra::new(Rate::per_second(count))).by(Constant);
    /// let throttle = ThrottleLayer::new(limits(10))?;
    /// let next = ThrottleLayer::builder(limits(20)).headers(Dialect::Draft07);
    /// throttle.replace_with(next.backend(throttle.backend()))?; // What was used stays used.
    /// assert_eq!(throttle.backend().keys(), 0, "no request has come yet");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    #[must_use]
    pub fn backend(&self) -> B {
        self.current.with(|shared| shared.backend.clone())
    }

    /// Returns a function that finds this layer as long as it, a clone or a service is left, and
    /// keeps neither the layer nor its backend: for what replaces limits, and need not outlive the
    /// services.
    ///
    /// ```
    /// use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    ///
    /// let throttle = ThrottleLayer::new(limit("all", Gcra::new(Rate::per_second(9))).by(Constant))?;
    /// let find = throttle.downgrade();
    /// assert_eq!(find().map(|layer| layer.info().limits().len()), Some(1));
    /// drop(throttle);
    /// assert!(find().is_none());
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn downgrade(&self) -> impl Fn() -> Option<Self> + Send + Sync + use<B> {
        let current = Arc::downgrade(&self.current);
        move || {
            Some(Self {
                current: current.upgrade()?,
            })
        }
    }
}

impl<S, B: Backend> Throttle<S, B> {
    /// Returns a layer that limits other services together with this one.
    pub fn to_layer(&self) -> ThrottleLayer<B> {
        ThrottleLayer {
            current: Arc::clone(self.current.live()),
        }
    }
}

impl<S, B: Backend> Layer<S> for ThrottleLayer<B> {
    type Service = Throttle<S, B>;

    fn layer(&self, inner: S) -> Throttle<S, B> {
        Throttle::new(inner, Current::new(&self.current))
    }
}

impl<B: Backend> fmt::Debug for ThrottleLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self
            .current
            .with(|shared| Arc::clone(&shared.announced.policies));
        f.debug_struct("ThrottleLayer")
            .field("policies", &policies)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response, StatusCode};
    use throttle_core::{Gcra, ManualClock, Rate};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::failing_backend::FailingBackend;
    use crate::limit::Limit;
    use crate::{Constant, Dialect, OnError, limit};

    fn one(name: &str) -> Limit {
        limit(name, Gcra::new(Rate::per_hour(1))).by(Constant)
    }

    async fn ask<B: Backend>(layer: &ThrottleLayer<B>) -> Response<crate::ThrottleBody<()>> {
        let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(())));
        layer.layer(inner).oneshot(Request::new(())).await.unwrap()
    }

    #[tokio::test]
    async fn layer_for_other_limits_has_the_settings_and_the_store_of_its_template() {
        let store = MemoryBackend::builder()
            .clock(ManualClock::default())
            .build();
        let template = ThrottleLayer::builder(one("outer"))
            .backend(store.clone())
            .headers(Dialect::Draft07)
            .response(|refusal| {
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = refusal.status;
                response.headers_mut().insert("x-own", 1.into());
                response
            })
            .build()
            .unwrap();
        let [inner, again] = [(); 2].map(|()| {
            template
                .with_limits(one("inner").refund_if(limit::successful))
                .unwrap()
        });
        assert_eq!(
            ask(&inner).await.headers()["ratelimit"],
            "limit=1, remaining=1, reset=0"
        );
        assert_eq!(
            (template.settlements().settled, again.settlements().settled),
            (1, 1),
            "they count together"
        );
        let plain = template.with_limits(one("inner")).unwrap();
        assert_eq!(ask(&plain).await.status(), StatusCode::OK);
        let refused = ask(&again).await;
        assert_eq!(
            (refused.status(), &refused.headers()["x-own"]),
            (StatusCode::TOO_MANY_REQUESTS, &1.into())
        );
        assert_eq!(store.keys(), 1, "both have the store of the template");
    }

    #[tokio::test]
    async fn rule_for_a_failing_store_is_written_once_for_a_template_and_its_layers() {
        let error = ThrottleLayer::builder(one("outer"))
            .backend(FailingBackend)
            .build()
            .unwrap_err();
        assert_eq!(error.field(), "on_error");
        let template = ThrottleLayer::builder(one("outer"))
            .on_error(OnError::local(1))
            .backend(FailingBackend)
            .build()
            .unwrap();
        let inner = template.with_limits(one("inner")).unwrap();
        let same = template.with_limits(one("inner")).unwrap();
        let mut statuses = Vec::new();
        for layer in [&inner, &same, &template, &template] {
            statuses.push(ask(layer).await.status().as_u16());
        }
        assert_eq!(
            statuses,
            [200, 429, 200, 429],
            "layers of one template have one share"
        );
    }
}
