//! Gives observers to a layer.

#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use std::sync::Arc;

use throttle_core::Backend;

use super::layer::ThrottleLayer;
use super::report_built::report_lookups;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use super::shared::Shared;
use crate::event::Observer;
#[cfg(any(feature = "offenders", all(test, feature = "metrics")))]
use crate::event::Observers;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use crate::event::{BuiltInObserver, Observed};

impl<B: Backend> ThrottleLayer<B> {
    /// Adds an [`Observer`], which is called for each request that the layer passes on or refuses,
    /// and for what else it does. An observer changes no decision. It must not block, because
    /// requests wait for it. Defaults to none, which costs a request nothing.
    ///
    /// The observer's [`built`](Observer::built) is called now. Call it before the layer is cloned
    /// or applied: clones that were made before are not observed.
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
    /// let throttle = ThrottleLayer::new(limits)?.observe(move |_: &Event<'_>| {
    ///     counter.fetch_add(1, Ordering::Relaxed);
    /// });
    /// # let _ = throttle;
    /// assert_eq!(requests.load(Ordering::Relaxed), 0, "no request yet");
    /// # Ok::<(), throttle_tower::ConfigError>(())
    /// ```
    pub fn observe(self, observer: impl Observer) -> Self {
        self.changed(|shared| {
            let observers = &shared.options.observers;
            shared.options.observers = observers.and(observer, shared.version.info());
            report_lookups(shared);
        })
    }

    /// Adds an observer.
    #[cfg(feature = "offenders")]
    pub(crate) fn observed_by(self, observer: impl BuiltInObserver) -> Self {
        self.observed_as(|_| observer)
    }

    /// Adds an observer of the limits as they are now. They are not replaced meanwhile.
    #[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
    pub(crate) fn observed_as<T: BuiltInObserver>(self, make: impl FnOnce(&Observed) -> T) -> Self {
        self.changed(|shared| {
            shared.options.observers = shared.options.observers.with(make(&observed(shared)));
            report_lookups(shared);
            // An observer that was replaced sees the backend no longer.
            shared.built_on = shared.built_on.renewed();
            shared.options.observers.built_on(&shared.built_on);
        })
    }

    /// Removes the observer of a type.
    #[cfg(feature = "dashboard")]
    pub(crate) fn no_longer_observed_by<T: BuiltInObserver>(self) -> Self {
        self.changed(|shared| shared.options.observers = shared.options.observers.without::<T>())
    }

    #[cfg(any(feature = "offenders", all(test, feature = "metrics")))]
    pub(crate) fn observers(&self) -> Observers {
        self.current.with(|shared| shared.options.observers.clone())
    }

    /// The limits of the layer as they are now.
    #[cfg(feature = "offenders")]
    pub(crate) fn observed(&self) -> Observed {
        self.current.with(|shared| observed(shared))
    }
}

/// The limits of a layer, for its observers.
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
pub(crate) fn observed<B: Backend>(shared: &Shared<B>) -> Observed {
    Observed {
        policies: Arc::clone(&shared.announced.policies),
        applied: Arc::clone(&shared.applied),
        permits: {
            let permits = shared.permits.limits().iter();
            permits.map(|limit| limit.name.clone()).collect()
        },
    }
}
