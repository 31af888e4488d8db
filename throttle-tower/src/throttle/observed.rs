//! Gives observers to a layer.

#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use std::sync::Arc;

use throttle_core::Backend;

use super::layer::ThrottleLayer;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use super::report_built::report_lookups;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use super::shared::Shared;
#[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
use crate::event::{BuiltInObserver, Observed, Observers};

impl<B: Backend> ThrottleLayer<B> {
    /// Adds an observer.
    #[cfg(feature = "offenders")]
    pub(crate) fn observed_by(self, observer: impl BuiltInObserver) -> Self {
        self.observed_as(|_| observer)
    }

    /// Adds an observer of the limits as they are now. They are not replaced meanwhile.
    #[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
    pub(crate) fn observed_as<T: BuiltInObserver>(self, make: impl FnOnce(&Observed) -> T) -> Self {
        self.with_observers(|shared| shared.options.observers.with(make(&observed(shared))))
    }

    /// Removes the observer of a type.
    #[cfg(feature = "dashboard")]
    pub(crate) fn no_longer_observed_by<T: BuiltInObserver>(self) -> Self {
        self.with_observers(|shared| shared.options.observers.without::<T>())
    }

    /// Gives other observers to the present version.
    #[cfg(any(feature = "metrics", feature = "offenders", feature = "tracing"))]
    fn with_observers(self, observers: impl FnOnce(&Shared<B>) -> Observers) -> Self {
        let kept = self.clone();
        let changed = self.changed(|shared| {
            shared.options.observers = observers(shared);
            report_lookups(shared);
            // An observer that was replaced sees the backend no longer.
            shared.built_on = shared.built_on.renewed();
            shared.options.observers.built_on(&shared.built_on);
            Ok(())
        });
        changed.unwrap_or(kept)
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
