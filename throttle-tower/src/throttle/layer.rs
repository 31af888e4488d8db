use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use throttle_core::{Backend, BackendError, Clock, ConfigError, MemoryBackend};
use tower_layer::Layer;

use super::announced::Announced;
use super::build::{build, build_on, make_share};
use super::current::Current;
use super::local_shares::LocalStore;
use super::options::{Jitter, Options};
use super::permits::Permits;
use super::refusal::Refusal;
use super::response_builder::{Building, ResponseBuilder};
use super::response_options::ResponseOptions;
use super::service::Throttle;
use super::shared::Shared;
use super::warning::{Warning, Watch};
use crate::event::Event;

use crate::event::Observers;
use crate::headers::{Dialect, SdkHints};
use crate::limit::{Compiled, IntoLimitTree, OnError};
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
///   address: by default all requests share one budget, and a [warning](Self::on_warning) is
///   logged. tonic's server needs the feature `tonic` only. With another server, insert a
///   [`PeerAddr`](crate::extract::PeerAddr) into the request's extensions. Behind a proxy the peer
///   is the proxy: see [`client_ip`](crate::client_ip).
/// * As the outermost layer it limits every request, preflights included. Inside a CORS layer it
///   does not see preflights, and its refusals carry the CORS headers that browsers need. See
///   [`is_preflight`](crate::is_preflight) and [`Dialect::exposed_names`].
/// * In tonic's `Server::builder().layer(…)` it refuses [as gRPC clients read
///   it](Self::grpc_refusals). A `MemoryBackend` or a layer that an axum app uses too makes them
///   share one budget. gRPC clients in browsers read `grpc-status`, `grpc-message` and
///   `grpc-status-details-bin` only where a CORS layer exposes them.
/// * gRPC health checks are limited like every other call. Exempt them with
///   `.when(|parts: &Parts| !parts.uri.path().starts_with("/grpc.health.v1.Health/"))`.
/// * A refused request's body is not read. Over HTTP/2, hyper then resets the stream, and a client
///   that is still sending a large upload, such as curl, may report a stream error instead of the
///   429.
/// * The [`Route`](crate::Route) is known to layers added with `Router::layer` or `route_layer`,
///   not to a layer around the whole router; [`on_warning`](Self::on_warning) reports that.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct ThrottleLayer<B: Backend = MemoryBackend> {
    pub(crate) current: Current<B>,
}

impl ThrottleLayer {
    /// Enforces `limits` in this process, on a new [`MemoryBackend`] with up to a million keys.
    ///
    /// # Errors
    ///
    /// If a limit's configuration is wrong. The error names the policy, the field, the value and
    /// the bound.
    pub fn new(limits: impl IntoLimitTree) -> Result<Self, ConfigError> {
        let Compiled {
            set,
            applied,
            permits,
        } = limits.into_limit_tree().compile()?;
        let permits = Arc::new(Permits::new(permits));
        let options = (Options::default(), ResponseOptions::default());
        let shared = build(MemoryBackend::new(), set, applied, permits, options)?;
        Ok(Self {
            current: Current::fixed(shared),
        })
    }
}

impl<B: Backend> ThrottleLayer<B> {
    /// Returns a layer that enforces other limits on the same backend, with all that was set on
    /// this layer so far: for a stack of layers with something between them, such as
    /// authentication.
    ///
    /// What observes a layer is not taken over: call [`metrics`](Self::metrics),
    /// [`traced`](Self::traced) and the like for each layer. [`settlements`](Self::settlements)
    /// counts those of both. A layer that follows a rule file gives the settings that it has now.
    ///
    /// ```
    /// use throttle_tower::extract::Extension;
    /// use throttle_tower::{ClientIp, Dialect, Gcra, Rate, ThrottleLayer, limit};
    ///
    /// #[derive(Clone)]
    /// struct User(u64);
    ///
    /// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(20))).by(ClientIp::peer());
    /// let per_user = limit("per-user", Gcra::new(Rate::per_minute(60)))
    ///     .by(Extension::by(|user: &User| user.0));
    /// let outside = ThrottleLayer::new(per_ip)?
    ///     .headers(Dialect::Draft07)
    ///     .retry_jitter(10);
    /// let inside = outside.with_limits(per_user)?; // with the same headers and the same jitter
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a limit's configuration is wrong, or as [`backend`](Self::backend).
    pub fn with_limits(&self, limits: impl IntoLimitTree) -> Result<Self, ConfigError> {
        let Compiled {
            set,
            applied,
            permits,
        } = limits.into_limit_tree().compile()?;
        let permits = Arc::new(Permits::new(permits));
        let shared = self.current.with(|own| {
            let mut options = Options {
                observers: Observers::default(),
                ..own.options.clone()
            };
            if let Some(share) = &own.share {
                options.local_store = Some(share.store().clone());
            }
            let mut responses = own.announced.options.clone();
            responses.watch = responses.watch.of_another_layer();
            build(
                own.backend.clone(),
                set,
                applied,
                permits,
                (options, responses),
            )
        })?;
        Ok(Self {
            current: Current::fixed(shared),
        })
    }

    /// Enforces the same limits on another backend: one with a clock of its own, one that several
    /// layers share, or one that other processes share too.
    ///
    /// # Errors
    ///
    /// If the backend can fail and a limit does not say what happens then
    /// ([`Limit::on_error`](crate::Limit::on_error), or [`on_error`](Self::on_error) before this),
    /// or if the backend does not support these limits.
    pub fn backend<C: Backend>(self, backend: C) -> Result<ThrottleLayer<C>, ConfigError> {
        Ok(ThrottleLayer {
            current: self.current.moved(|own| build_on(backend, own))?,
        })
    }

    /// Sets what happens when the store fails, for limits without a rule of their own. Set it
    /// before [`backend`](Self::backend), which needs it. There is no default.
    pub fn on_error(self, rule: OnError) -> Self {
        self.with_options(|options| options.on_error = Some(rule))
            .with_share()
    }

    /// Sets the in-memory store of the [shares](OnError::Local) by which this process decides when
    /// the backend's store fails. The shares use the clock of this in-memory store. Set it before
    /// [`backend`](Self::backend). If several layers have limits of the same names on one backend,
    /// give them clones of one `MemoryBackend`, so that they use one share. Use that
    /// `MemoryBackend` for nothing else. Defaults to a new one with up to a million keys.
    pub fn local_store<C: Clock>(self, store: &MemoryBackend<C>) -> Self {
        let store = LocalStore::new(store.clone());
        self.with_options(|options| options.local_store = Some(store))
            .with_share()
    }

    /// Applies the layer only to requests of which `applies` is true. All others pass as if the
    /// layer were not there: nothing is decided or charged, no key is read, no permit is taken, the
    /// response gets no headers, and hooks, metrics and warnings do not see them. Their handlers
    /// find no [`LimitReport`](crate::LimitReport) of this layer. It is asked before everything
    /// else that a limit says, such as its own [`when`](crate::Limit::when), and once for each
    /// request. Called again, it replaces what was set. Defaults to all requests. On a router that
    /// is nested in another one, a path comes without the prefix.
    ///
    /// On a layer inside a router that is nested in another one, the path of `parts.uri` lacks the
    /// prefix of the nested router. axum's `OriginalUri` extension has the whole path.
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Gcra, Rate, ThrottleLayer, client_ip::ClientIp, limit};
    ///
    /// let limits = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
    /// let throttle =
    ///     ThrottleLayer::new(limits)?.when(|parts: &Parts| parts.uri.path() != "/health");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn when(self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with_options(|options| options.when = Some(Arc::new(applies)))
    }

    /// Sets which rate-limit headers responses carry. Defaults to [`Dialect::Draft11`].
    pub fn headers(self, dialect: Dialect) -> Self {
        self.with_announced(|announced| announced.set_dialect(dialect))
    }

    /// Tells the SDKs of LLM providers on refusals when to come back, and when not to: see
    /// [`SdkHints`]. Defaults to telling them nothing beside `Retry-After`.
    pub fn sdk_hints(self, hints: SdkHints) -> Self {
        self.with_announced(|announced| announced.options.sdk_hints = Some(hints))
    }

    /// Leaves the rate-limit headers out of a response if `hide` returns true for its head. A
    /// refusal keeps its `Retry-After`: only a layer around this one can remove it. Hide them in
    /// responses that shared caches store (see
    /// [`headers::is_public`](crate::headers::is_public)), and in a 401: they could show an
    /// attacker how much a victim uses. Defaults to hiding nothing.
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, headers, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let throttle = ThrottleLayer::new(limits)?.hide_headers_if(|status, headers| {
    ///     status == http::StatusCode::UNAUTHORIZED || headers::is_public(headers)
    /// });
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn hide_headers_if(
        self,
        hide: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.with_announced(|announced| announced.options.hide_headers = Some(Arc::new(hide)))
    }

    /// Builds the responses of refusals: of used up quotas, closed stores, missing keys and missing
    /// permits alike. The layer adds the rate-limit headers to them afterwards, and
    /// `Cache-Control: no-store` if they have no other. Called again, or with
    /// [`response_async`](Self::response_async), it replaces what was set. Defaults to
    /// [`Refusal::default_response`]: a problem document, or what [gRPC clients](Self::grpc_refusals) read.
    ///
    /// A panic of `build` is a panic of the request. Only limits with
    /// [`charge_refused`](crate::Limit::charge_refused) have charged it.
    ///
    /// The answer may depend on the request:
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let throttle = ThrottleLayer::new(limits)?.response(|refusal| {
    ///     if refusal
    ///         .parts
    ///         .headers
    ///         .get("accept")
    ///         .is_some_and(|types| types.as_bytes().starts_with(b"application/"))
    ///     {
    ///         return refusal.default_response();
    ///     }
    ///     let mut response = http::Response::new("slow down\n".into());
    ///     *response.status_mut() = refusal.status;
    ///     if let Some(id) = refusal.parts.headers.get("x-request-id") {
    ///         response.headers_mut().insert("x-request-id", id.clone());
    ///     }
    ///     response
    /// });
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn response(
        self,
        build: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with_options(|options| {
            options.response = Some(ResponseBuilder::AtOnce(Arc::new(build)));
        })
    }

    /// Builds the responses of refusals by a future; otherwise as [`response`](Self::response). The
    /// future cannot borrow from the refusal, so the closure copies what it needs. Meanwhile the
    /// refused request holds neither a permit nor a place in a queue.
    ///
    /// Refusals are what a flood of requests produces, and the layer bounds neither how long
    /// futures take nor how many there are: give them a deadline. The waits that the response
    /// states count from the decision.
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// # async fn page(_language: Option<http::HeaderValue>) -> bytes::Bytes { "slow down".into() }
    /// let throttle = ThrottleLayer::new(limits)?.response_async(|refusal| {
    ///     let language = refusal.parts.headers.get("accept-language").cloned();
    ///     let status = refusal.status;
    ///     async move {
    ///         let mut response = http::Response::new(page(language).await);
    ///         *response.status_mut() = status;
    ///         response
    ///     }
    /// });
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the request is dropped while its response is built, the future is dropped, and the
    /// request is counted and reported as refused.
    ///
    /// # Panics
    ///
    /// A panic of the future is a panic of the request, as with [`response`](Self::response).
    pub fn response_async<F, Fut>(self, build: F) -> Self
    where
        F: Fn(&Refusal<'_>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Bytes>> + Send + 'static,
    {
        let build = move |refusal: &Refusal<'_>| -> Building { Box::pin(build(refusal)) };
        self.with_options(|options| {
            options.response = Some(ResponseBuilder::Later(Arc::new(build)));
        })
    }

    /// Sets whether a refused POST of gRPC or gRPC-Web, by its `Content-Type`, gets [the response
    /// that gRPC clients read](Refusal::grpc_response): status 200, and the reason in
    /// `grpc-status`. So one layer serves an axum app and a tonic server. gRPC clients cannot read
    /// a 429: they take it for `UNAVAILABLE`, which many retry at once. Defaults to true.
    ///
    /// A closure of [`response`](Self::response) answers all requests, gRPC's too, whatever is set
    /// here. It gets this answer from [`Refusal::default_response`] or [`Refusal::grpc_response`].
    ///
    /// Outer layers see the status 200: one that [refunds](crate::Limit::refund_if) by status has
    /// to read `grpc-status`.
    pub fn grpc_refusals(self, on: bool) -> Self {
        self.with_options(|options| options.grpc_refusals = on)
    }

    /// Sets the `Retry-After` of responses with status 503: those of limits on [requests in
    /// flight](crate::InFlight) without enough free permits, and those of a store that
    /// fails while limits are [`Closed`](crate::OnError::Closed). It is rounded up to whole
    /// seconds, at least one. The layer cannot know how long those states last, and clients without
    /// a wait of their own retry at once. The response of gRPC has it as its pushback. Defaults to
    /// none.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use std::time::Duration;
    /// use throttle_tower::{Constant, InFlight, ThrottleLayer, limit};
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let throttle = ThrottleLayer::new(limit("in-flight", InFlight::new(1)).by(Constant))?
    ///     .unavailable_retry_after(Duration::from_secs(2));
    /// let inner =
    ///     service_fn(async |_: Request<()>| Ok::<_, std::convert::Infallible>(Response::new(())));
    /// let held = throttle.layer(inner).call(Request::new(()));
    /// let refused = throttle.layer(inner).oneshot(Request::new(())).await?;
    /// assert_eq!(
    ///     (refused.status().as_u16(), &refused.headers()["retry-after"]),
    ///     (503, &"2".parse()?)
    /// );
    /// # drop(held);
    /// # Ok(())
    /// # }
    /// ```
    pub fn unavailable_retry_after(self, wait: Duration) -> Self {
        self.with_options(|options| options.unavailable_retry_after = Some(wait))
    }

    /// Calls `hook` for every decision, on the request's task, so it must return quickly. It is not
    /// called for charges in the background: see [`settlements`](Self::settlements). Another hook is
    /// called, too. The same as [`observe`](Self::observe), for closures that do not name the type
    /// of what they take. Defaults to no hook.
    pub fn on_decision(self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observe(hook)
    }

    /// Calls `hook` when requests show that the configuration probably does not do what was
    /// intended. The hook runs on the request's task. It is called at most once for each limit and
    /// [`Warning`]; clones of the layer count together. A warning refuses no request. Defaults to
    /// logging them with `tracing`, at the level of warnings; without the feature `tracing`, to
    /// nothing.
    ///
    /// ```
    /// # use throttle_tower::{Gcra, Rate, Route, ThrottleLayer, limit};
    /// # let limits = limit("per-route", Gcra::new(Rate::per_second(100))).by(Route);
    /// let throttle = ThrottleLayer::new(limits)?.on_warning(|warning| eprintln!("{warning}"));
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn on_warning(self, hook: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.with_announced(|announced| announced.options.watch = Watch::new(hook))
    }

    /// Lengthens `Retry-After` by up to `percent`, at most 100, so that clients refused at the same
    /// time do not all retry at the same time. The part that is added depends only on the key.
    /// Defaults to 0.
    pub fn retry_jitter(self, percent: u8) -> Self {
        self.with_options(|options| options.jitter = Jitter::new(percent))
    }

    /// Sets whether responses to admitted requests carry a [`LimitReport`](crate::LimitReport) in
    /// their extensions, for outer layers to read. It costs up to three allocations per request.
    /// Refusals carry it, and handlers find it in the request, whatever is set here. Defaults to
    /// false.
    pub fn report_in_response(self, report: bool) -> Self {
        self.with_announced(|announced| announced.options.report_in_response = report)
    }

    /// Sets how many requests may wait at once for limits that [queue](crate::Limit::wait_up_to)
    /// them; more are refused. Defaults to 10,000.
    pub fn max_waiting(self, requests: usize) -> Self {
        self.with_options(|options| options.max_waiting = requests)
    }

    /// Returns how many permits of a limit on [requests in flight](crate::InFlight) are taken now, of
    /// all keys together; `None` if no such limit has that name.
    #[must_use]
    pub fn in_flight(&self, name: &str) -> Option<u64> {
        self.current.with(|shared| shared.permits.taken(name))
    }

    /// Returns how many refunds, settlements and other background charges are pending, done and
    /// failed, for all clones of this layer, including those with other options or backends. Before
    /// a process exits, wait until none is pending: pending ones are lost.
    #[must_use]
    pub fn settlements(&self) -> Settlements {
        self.current
            .with(|shared| shared.options.background.counters.read())
    }

    /// Calls `hook` for every refund, settlement or other background charge that failed. The hook
    /// must return quickly. A panic of it is caught. If a refund fails, the charge stays. Defaults
    /// to the log (feature `tracing`), which says why at most once a minute.
    pub fn on_settle_error(self, hook: impl Fn(&BackendError) + Send + Sync + 'static) -> Self {
        self.with_options(|options| options.background.on_error = Some(Arc::new(hook)))
    }

    /// A share that cannot be made is missing, and limits without one are closed when the store
    /// fails; open ones only while it is busy. What is set before [`backend`](Self::backend) is
    /// checked there.
    fn with_share(self) -> Self {
        self.changed(|shared| drop(make_share(shared)))
    }

    pub(crate) fn with_options(self, change: impl FnOnce(&mut Options)) -> Self {
        self.changed(|shared| change(&mut shared.options))
    }

    #[cfg(feature = "rules")]
    pub(crate) fn adjusted(self, adjust: impl FnOnce(&mut Options, &mut ResponseOptions)) -> Self {
        self.changed(|shared| {
            let announced = Arc::make_mut(&mut shared.announced);
            adjust(&mut shared.options, &mut announced.options);
            announced.set_dialect(announced.options.dialect);
        })
    }

    fn with_announced(self, change: impl FnOnce(&mut Announced)) -> Self {
        self.changed(|shared| change(Arc::make_mut(&mut shared.announced)))
    }

    pub(super) fn changed(self, change: impl FnOnce(&mut Shared<B>)) -> Self {
        Self {
            current: self.current.changed(change),
        }
    }
}

impl<S, B: Backend> Throttle<S, B> {
    /// Returns a layer that limits other services together with this one.
    pub fn to_layer(&self) -> ThrottleLayer<B> {
        ThrottleLayer {
            current: self.current.clone(),
        }
    }
}

impl<S, B: Backend> Layer<S> for ThrottleLayer<B> {
    type Service = Throttle<S, B>;

    fn layer(&self, inner: S) -> Throttle<S, B> {
        Throttle::new(inner, self.current.clone())
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

    use http::Request;
    use throttle_core::{Gcra, ManualClock, Rate};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::failing_backend::FailingBackend;
    use crate::limit::Limit;
    use crate::{Constant, limit};

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
        let template = ThrottleLayer::new(one("outer"))
            .unwrap()
            .backend(store.clone())
            .unwrap();
        let template = template.headers(Dialect::Draft07).response(|refusal| {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = refusal.status;
            response.headers_mut().insert("x-own", 1.into());
            response
        });
        let [inner, again] = [(); 2].map(|()| {
            template
                .with_limits(one("inner").refund_successful())
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
        let error = ThrottleLayer::new(one("outer"))
            .unwrap()
            .backend(FailingBackend)
            .unwrap_err();
        assert_eq!(error.field(), "on_error");
        let template = ThrottleLayer::new(one("outer"))
            .unwrap()
            .on_error(OnError::local(1));
        let template = template.backend(FailingBackend).unwrap();
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
