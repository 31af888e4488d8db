use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use throttle_core::{Backend, BackendError, Clock, MemoryBackend};

use super::builder_settings::BuilderSettings;
use super::local_shares::LocalStore;
use super::refusal::Refusal;
use super::response_builder::{RefusalFuture, ResponseBuilder};
use super::response_options::ReportIn;
use super::warning::Warning;
use crate::event::{Event, Observer};
use crate::headers::{Dialect, SdkHints};
use crate::limit::{IntoLimitTree, LimitTree, OnError};

/// The settings of a layer that is still to be built.
/// [`ThrottleLayer::builder`](crate::ThrottleLayer::builder) starts one, and [`build`](Self::build)
/// makes the layer.
///
/// A builder is plain data. The setters stand in any order, and only `build` can fail. A setter
/// that is called again replaces what was set, except for [`observe`](Self::observe) and
/// [`on_decision`](Self::on_decision), which add.
///
/// ```
/// use throttle_tower::{ClientIp, Dialect, Gcra, MemoryBackend, Rate, ThrottleLayer, limit};
///
/// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
/// let store = MemoryBackend::builder().max_keys(100_000).build();
/// let throttle = ThrottleLayer::builder(per_ip)
///     .headers(Dialect::Draft07)
///     .backend(store)
///     .retry_jitter(10)
///     .build()?;
/// assert_eq!(throttle.settlements().pending, 0);
///
/// let none = limit("none", Gcra::new(Rate::per_second(0))).by(ClientIp::peer());
/// let error = ThrottleLayer::builder(none).build().unwrap_err();
/// assert_eq!(error.policy(), Some("none"));
/// # Ok::<(), throttle_tower::ConfigError>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until a layer is built"]
pub struct ThrottleBuilder<B: Backend = MemoryBackend> {
    pub(super) limits: LimitTree,
    pub(super) backend: B,
    pub(super) observers: Vec<Arc<dyn Observer>>,
    pub(crate) settings: BuilderSettings,
}

impl ThrottleBuilder {
    pub(super) fn new(limits: impl IntoLimitTree) -> Self {
        Self {
            limits: limits.into_limit_tree(),
            backend: MemoryBackend::new(),
            observers: Vec::new(),
            settings: BuilderSettings::default(),
        }
    }
}

impl<B: Backend> ThrottleBuilder<B> {
    /// Sets the limits, instead of those that the builder has.
    pub fn limits(mut self, limits: impl IntoLimitTree) -> Self {
        self.limits = limits.into_limit_tree();
        self
    }

    /// Sets the backend: one with a clock of its own, one that several layers share, or one that
    /// other processes share too. Defaults to a new [`MemoryBackend`] with up to a million keys.
    pub fn backend<C: Backend>(self, backend: C) -> ThrottleBuilder<C> {
        ThrottleBuilder {
            limits: self.limits,
            backend,
            observers: self.observers,
            settings: self.settings,
        }
    }

    /// Adds an [`Observer`], which is called for each request that the layer passes on or refuses,
    /// and for what else it does. An observer changes no decision. It must not block, because
    /// requests wait for it. Its [`built`](Observer::built) is called by [`build`](Self::build),
    /// and again when the limits are [replaced](crate::ThrottleLayer::replace). Defaults to none,
    /// which costs a request nothing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use throttle_tower::{Constant, Event, Gcra, Rate, ThrottleLayer, limit};
    ///
    /// let limits = limit("all", Gcra::new(Rate::per_second(10))).by(Constant);
    /// let requests = Arc::new(AtomicU64::new(0));
    /// let counter = Arc::clone(&requests);
    /// let throttle = ThrottleLayer::builder(limits)
    ///     .observe(move |_: &Event<'_>| {
    ///         counter.fetch_add(1, Ordering::Relaxed);
    ///     })
    ///     .build()?;
    /// # let _ = throttle;
    /// assert_eq!(requests.load(Ordering::Relaxed), 0, "no request yet");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn observe(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Takes from `defaults` the settings that are not set here. The limits, the backend and the
    /// observers stay those of this builder.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::{Constant, Dialect, Gcra, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let house = ThrottleLayer::builder(()).headers(Dialect::Draft07).retry_jitter(10);
    /// let limits = limit("all", Gcra::new(Rate::per_hour(9))).by(Constant);
    /// let throttle = ThrottleLayer::builder(limits).retry_jitter(0).or(house).build()?;
    /// let service = throttle.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(()))
    /// }));
    /// let response = service.oneshot(Request::new(())).await?;
    /// assert_eq!(response.headers()["ratelimit-policy"], "9;w=3600");
    /// # Ok(())
    /// # }
    /// ```
    pub fn or<C: Backend>(mut self, defaults: ThrottleBuilder<C>) -> Self {
        self.settings = self.settings.or(defaults.settings);
        self
    }

    /// Sets what happens when the store fails, for limits without a rule of their own. There is no
    /// default: with a backend that can fail, a limit without a rule is an error of
    /// [`build`](Self::build).
    pub fn on_error(mut self, rule: OnError) -> Self {
        self.settings.on_error = Some(rule);
        self
    }

    /// Sets the in-memory store of the [shares](OnError::Local) by which this process decides when
    /// the backend's store fails. The shares use the clock of this in-memory store. If several
    /// layers have limits of the same names on one backend, give them clones of one
    /// `MemoryBackend`, so that they use one share. Use that `MemoryBackend` for nothing else.
    /// Defaults to a new one with up to a million keys.
    pub fn local_store<C: Clock>(mut self, store: &MemoryBackend<C>) -> Self {
        self.settings.local_store = Some(LocalStore::new(store.clone()));
        self
    }

    /// Applies the layer only to requests of which `applies` is true. All others pass as if the
    /// layer were not there: nothing is decided or charged, no key is read, no permit is taken, the
    /// response gets no headers, and hooks, metrics and warnings do not see them. Their handlers
    /// find no [`LimitReport`](crate::LimitReport) of this layer. `applies` is called once for each
    /// request, before any setting of a limit is read, such as its own
    /// [`when`](crate::Limit::when). Defaults to all requests.
    ///
    /// On a layer inside a router that is nested in another one, the path of `parts.uri` lacks the
    /// prefix of the nested router: see [`original_path`](crate::extract::original_path).
    ///
    /// ```
    /// use http::request::Parts;
    /// use throttle_tower::{Gcra, Rate, ThrottleLayer, client_ip::ClientIp, limit};
    ///
    /// let limits = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
    /// let throttle =
    ///     ThrottleLayer::builder(limits).when(|parts: &Parts| parts.uri.path() != "/health");
    /// let throttle = throttle.build()?;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn when(mut self, applies: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.settings.when = Some(Arc::new(applies));
        self
    }

    /// Sets which rate-limit headers responses carry. Defaults to [`Dialect::Draft11`].
    pub fn headers(mut self, dialect: Dialect) -> Self {
        self.settings.dialect = Some(dialect);
        self
    }

    /// Adds headers to refusals from which the SDKs of LLM providers read when to retry, and when
    /// not to: see [`SdkHints`]. Defaults to no headers but `Retry-After`.
    pub fn sdk_hints(mut self, hints: SdkHints) -> Self {
        self.settings.sdk_hints = Some(hints);
        self
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
    /// let throttle = ThrottleLayer::builder(limits).hide_headers_if(|status, headers| {
    ///     status == http::StatusCode::UNAUTHORIZED || headers::is_public(headers)
    /// }).build()?;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn hide_headers_if(
        mut self,
        hide: impl Fn(StatusCode, &HeaderMap) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.settings.hide_headers = Some(Arc::new(hide));
        self
    }

    /// Builds the responses of refusals: of used up quotas, closed stores, missing keys and missing
    /// permits alike. The layer adds the rate-limit headers to them afterwards, and
    /// `Cache-Control: no-store` if they have no other. Called again, or with
    /// [`response_async`](Self::response_async), it replaces what was set. Defaults to
    /// [`Refusal::default_response`]: a problem document, or what
    /// [gRPC clients](Self::grpc_refusals) read.
    ///
    /// A panic of `build` is a panic of the request. Only limits with
    /// [`charge_refused`](crate::Limit::charge_refused) have charged it.
    ///
    /// The answer may depend on the request:
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// let throttle = ThrottleLayer::builder(limits).response(|refusal| {
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
    /// }).build()?;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn response(
        mut self,
        build: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.settings.response = Some(ResponseBuilder::AtOnce(Arc::new(build)));
        self
    }

    /// Builds the responses of refusals by a future, and is like [`response`](Self::response) in
    /// all else. The future cannot borrow from the refusal, so the closure copies what it needs.
    /// Meanwhile the refused request holds no permit and is in no queue.
    ///
    /// Refusals are what a flood of requests produces, and the layer bounds neither how long
    /// futures take nor how many there are: give them a deadline. The waits that the response
    /// states count from the decision.
    ///
    /// ```
    /// # use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
    /// # let limits = limit("p", Gcra::new(Rate::per_second(1))).by(Constant);
    /// # async fn page(_language: Option<http::HeaderValue>) -> bytes::Bytes { "slow down".into() }
    /// let throttle = ThrottleLayer::builder(limits).response_async(|refusal| {
    ///     let language = refusal.parts.headers.get("accept-language").cloned();
    ///     let status = refusal.status;
    ///     async move {
    ///         let mut response = http::Response::new(page(language).await);
    ///         *response.status_mut() = status;
    ///         response
    ///     }
    /// }).build()?;
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
    pub fn response_async<F, Fut>(mut self, build: F) -> Self
    where
        F: Fn(&Refusal<'_>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Response<Bytes>> + Send + 'static,
    {
        let build = move |refusal: &Refusal<'_>| -> RefusalFuture { Box::pin(build(refusal)) };
        self.settings.response = Some(ResponseBuilder::Later(Arc::new(build)));
        self
    }

    /// Sets whether a refused POST of gRPC or gRPC-Web, by its `Content-Type`, gets [the response
    /// that gRPC clients read](Refusal::grpc_response): status 200, and the reason in
    /// `grpc-status`. So one layer serves an axum app and a tonic server. gRPC clients cannot read
    /// a 429: they take it for `UNAVAILABLE`, which many retry immediately. Defaults to true.
    ///
    /// A closure of [`response`](Self::response) answers all requests, gRPC's too, whatever is set
    /// here. It gets this answer from [`Refusal::default_response`] or [`Refusal::grpc_response`].
    ///
    /// Outer layers see the status 200: one that [refunds](crate::Limit::refund_if) by status has
    /// to read `grpc-status`. A service that a proxy asks whether a request may pass (nginx's
    /// `auth_request`, Traefik's `forwardAuth`) sets false: the proxy takes the status 200 of such
    /// a refusal for a yes.
    pub fn grpc_refusals(mut self, on: bool) -> Self {
        self.settings.grpc_refusals = Some(on);
        self
    }

    /// Sets the `Retry-After` of responses with status 503: those of a limit on [requests in
    /// flight](crate::InFlight) without enough free permits, and those of a store that fails while
    /// limits are [`Closed`](crate::OnError::Closed). It is rounded up to whole seconds, at least
    /// one. The layer cannot know how long those states last, and clients without a wait of their
    /// own retry immediately. The response of gRPC has it as its pushback. Defaults to none.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use std::time::Duration;
    /// use throttle_tower::{Constant, InFlight, ThrottleLayer, limit};
    /// use tower::{Layer, Service, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let throttle = ThrottleLayer::builder(limit("in-flight", InFlight::new(1)).by(Constant))
    ///     .unavailable_retry_after(Duration::from_secs(2))
    ///     .build()?;
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
    pub fn unavailable_retry_after(mut self, wait: Duration) -> Self {
        self.settings.unavailable_retry_after = Some(wait);
        self
    }

    /// Calls `hook` for every request that the layer passes on or refuses, on the request's task,
    /// so it must return quickly. It is not called for charges in the background: see
    /// [`settlements`](crate::ThrottleLayer::settlements). This is [`observe`](Self::observe) for a
    /// closure that does not name the type of its argument. A further hook is called after the ones
    /// before it. Defaults to no hook.
    pub fn on_decision(self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.observe(hook)
    }

    /// Calls `hook` when requests, or the limits themselves when the layer is built, show that the
    /// configuration probably does not do what was intended. The hook runs on the request's task,
    /// or in the call that builds or [replaces](crate::ThrottleLayer::replace) the limits, and must
    /// not replace them itself. For requests it is called at most once for each limit and
    /// [`Warning`]; clones of the layer count together. Limits that replace others warn if they
    /// warn of something that their predecessors did not. A warning refuses no request. Defaults to
    /// logging them with `tracing`, at the level of warnings; without the feature `tracing`, to
    /// nothing.
    ///
    /// ```
    /// # use throttle_tower::{Gcra, Rate, Route, ThrottleLayer, limit};
    /// # let limits = limit("per-route", Gcra::new(Rate::per_second(100))).by(Route);
    /// let throttle = ThrottleLayer::builder(limits)
    ///     .on_warning(|warning| eprintln!("{warning}"))
    ///     .build()?;
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn on_warning(mut self, hook: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.settings.on_warning = Some(Arc::new(hook));
        self
    }

    /// Lengthens `Retry-After` by up to `percent`, at most 100, so that clients refused at the same
    /// time do not all retry at the same time. The part that is added depends only on the key.
    /// More than 100 counts as 100. Defaults to 0.
    pub fn retry_jitter(mut self, percent: u8) -> Self {
        self.settings.retry_jitter = Some(percent);
        self
    }

    /// Sets where the [`LimitReport`](crate::LimitReport) of a request is found. Defaults to
    /// [`ReportIn::Request`].
    pub fn report_in(mut self, report: ReportIn) -> Self {
        self.settings.report_in = Some(report);
        self
    }

    /// Sets how many requests may wait at one time for limits that
    /// [queue](crate::Limit::wait_up_to) them; more are refused. Defaults to 10,000.
    pub fn max_waiting(mut self, requests: usize) -> Self {
        self.settings.max_waiting = Some(requests);
        self
    }

    /// Calls `hook` for every refund, settlement or other background charge that failed. The hook
    /// must return quickly. A panic of it is caught. If a refund fails, the charge stays. Defaults
    /// to the log (feature `tracing`), which says why at most once a minute.
    pub fn on_settle_error(mut self, hook: impl Fn(&BackendError) + Send + Sync + 'static) -> Self {
        self.settings.on_settle_error = Some(Arc::new(hook));
        self
    }
}

impl<B: Backend> fmt::Debug for ThrottleBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleBuilder")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
