//! Makes layers: new ones, with other limits, and a layer's next version.

use throttle_core::{Backend, ConfigError};

use super::builder::ThrottleBuilder;
use super::current::Live;
use super::layer::ThrottleLayer;
use super::shared_layer::SharedLayer;
use super::version::{Origin, build_version};
use crate::limit::IntoLimitTree;

impl ThrottleLayer {
    /// Enforces `limits` in this process, on a new [`MemoryBackend`](crate::MemoryBackend) with up
    /// to a million keys.
    ///
    /// # Errors
    ///
    /// If a limit's configuration is wrong. The error names the policy, the field, the value and
    /// the bound.
    pub fn new(limits: impl IntoLimitTree) -> Result<Self, ConfigError> {
        Self::builder(limits).build()
    }

    /// Starts a layer with settings: see [`ThrottleBuilder`]. `()` is no limit.
    ///
    /// ```
    /// use throttle_tower::{ClientIp, Dialect, Gcra, Rate, ThrottleLayer, limit};
    ///
    /// let per_ip = limit("per-ip", Gcra::new(Rate::per_second(10))).by(ClientIp::peer());
    /// let throttle = ThrottleLayer::builder(per_ip).headers(Dialect::Draft07).build()?;
    /// assert_eq!(throttle.in_flight("per-ip"), None, "a limit on a rate has no permits");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn builder(limits: impl IntoLimitTree) -> ThrottleBuilder {
        ThrottleBuilder::new(limits)
    }
}

impl<B: Backend> ThrottleLayer<B> {
    /// Returns a layer that enforces other limits on the same backend, with the settings of this
    /// layer: for a stack of layers with something between them, such as authentication.
    ///
    /// Nothing observes the new layer. [`settlements`](Self::settlements) counts those of both.
    /// Permits are counted for each layer by itself. If the limits or settings of this layer are
    /// replaced, the new layer keeps its own.
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
    /// let outside = ThrottleLayer::builder(per_ip)
    ///     .headers(Dialect::Draft07)
    ///     .retry_jitter(10)
    ///     .build()?;
    /// let inside = outside.with_limits(per_user)?; // with the same headers and the same jitter
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a limit's configuration is wrong, if the backend can fail and neither the limit nor this
    /// layer has an [`on_error`](ThrottleBuilder::on_error), or if the backend does not support
    /// these limits.
    pub fn with_limits(&self, limits: impl IntoLimitTree) -> Result<Self, ConfigError> {
        let template = self.current.now();
        let next = of_version(&template, limits);
        let version = build_version(next, &Origin::Template(&template))?;
        Ok(Self {
            current: Live::new(version),
        })
    }

    /// Enforces other limits from the next request on, with the same settings, backend and
    /// observers: in this layer, its clones and its services. A program that reads its limits from
    /// a database calls it when they have changed. Layers of [`with_limits`](Self::with_limits) do
    /// not follow.
    ///
    /// * A request is decided by the limits that it began with, also if it waits for its turn
    ///   meanwhile, and its charges are settled by them. Requests that come later do not queue
    ///   after those that wait by the former limits.
    /// * Units that were used stay used as long as the name of the limit and its keys stay. Permits
    ///   count on by the limit's name.
    /// * [`Observer::built`](crate::Observer::built) is called before the first request meets the
    ///   limits. If it panics, the former limits stay.
    /// * A service that is never called, such as the one that axum clones for each request, keeps
    ///   the limits that it was made with in memory. Its clones enforce the new ones.
    ///
    /// Calls follow each other, so neither `Observer::built` nor a hook of
    /// [`on_warning`](ThrottleBuilder::on_warning) may make one. A call blocks until the limits are
    /// built, which may take a millisecond for a thousand limits.
    ///
    /// ```
    /// use http::{Request, Response};
    /// use throttle_tower::{Constant, FixedWindow, Rate, ThrottleLayer, limit};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_hour = |count| limit("all", FixedWindow::new(Rate::per_hour(count))).by(Constant);
    /// let throttle = ThrottleLayer::new(per_hour(1))?;
    /// let service = throttle.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new(()))
    /// }));
    /// let status = async || service.clone().oneshot(Request::new(())).await.unwrap().status();
    /// assert_eq!([status().await, status().await].map(|status| status.as_u16()), [200, 429]);
    /// throttle.replace(per_hour(2))?;
    /// assert_eq!([status().await, status().await].map(|status| status.as_u16()), [200, 429]);
    /// assert!(throttle.replace(per_hour(0)).is_err(), "two an hour stay");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If a limit's configuration is wrong, if the backend can fail and neither the limit nor this
    /// layer has an [`on_error`](ThrottleBuilder::on_error), or if the backend does not support
    /// these limits. The former limits then stay.
    pub fn replace(&self, limits: impl IntoLimitTree) -> Result<(), ConfigError> {
        self.current.replace(|former| {
            let next = ThrottleBuilder {
                observers: former.options.observers.to_given(),
                ..of_version(former, limits)
            };
            build_version(next, &Origin::Former(former))
        })
    }

    /// Enforces other limits with other settings, as [`replace`](Self::replace) does. The backend
    /// and the observers are those of `next`, too: units that were used stay used on the same
    /// backend only.
    ///
    /// Without a [store for shares](ThrottleBuilder::local_store), `next` has that of this layer.
    ///
    /// ```
    /// use throttle_tower::{Constant, Dialect, Gcra, MemoryBackend, Rate, ThrottleLayer, limit};
    ///
    /// let store = MemoryBackend::new();
    /// let per_second = |count| limit("all", Gcra::new(Rate::per_second(count))).by(Constant);
    /// let builder = |count| ThrottleLayer::builder(per_second(count)).backend(store.clone());
    /// let throttle = builder(10).build()?;
    /// throttle.replace_with(builder(20).headers(Dialect::Draft07))?;
    /// assert!(throttle.replace_with(builder(0)).is_err(), "20 a second stay");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`ThrottleBuilder::build`]. The former limits and settings then stay.
    pub fn replace_with(&self, next: ThrottleBuilder<B>) -> Result<(), ConfigError> {
        self.current
            .replace(|former| build_version(next, &Origin::Former(former)))
    }
}

impl<B: Backend> ThrottleBuilder<B> {
    /// Builds the layer, and reports it to its observers.
    ///
    /// # Errors
    ///
    /// If a limit's configuration is wrong, if the backend can fail and a limit does not say what
    /// happens then ([`Limit::on_error`](crate::Limit::on_error), or [`on_error`](Self::on_error)
    /// for all), or if the backend does not support these limits. The error names the policy, the
    /// field, the value and the bound.
    pub fn build(self) -> Result<ThrottleLayer<B>, ConfigError> {
        let version = build_version(self, &Origin::New)?;
        Ok(ThrottleLayer {
            current: Live::new(version),
        })
    }
}

/// The settings and the backend of a version, for other limits. Nothing observes them.
fn of_version<B: Backend>(
    version: &SharedLayer<B>,
    limits: impl IntoLimitTree,
) -> ThrottleBuilder<B> {
    ThrottleBuilder {
        limits: limits.into_limit_tree(),
        backend: version.backend.clone(),
        observers: Vec::new(),
        settings: version.options.settings.clone(),
    }
}
