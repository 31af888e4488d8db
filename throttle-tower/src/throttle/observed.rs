//! What observers need to know of a layer.

use std::sync::Arc;

use throttle_core::Backend;

use super::build::tell_observers;
use super::layer::ThrottleLayer;
use super::shared::Shared;
#[cfg(any(feature = "offenders", all(test, feature = "metrics")))]
use crate::event::Observers;
use crate::event::{Observed, Observer};
#[cfg(feature = "metrics")]
use crate::limit::{Applied, Keying};

impl<B: Backend> ThrottleLayer<B> {
    /// Adds an observer.
    #[cfg(feature = "offenders")]
    pub(crate) fn observed_by(self, observer: impl Observer) -> Self {
        self.observed_as(|_| observer)
    }

    /// Adds an observer of the limits as they are now. They are not replaced meanwhile.
    pub(crate) fn observed_as<T: Observer>(self, make: impl FnOnce(&Observed) -> T) -> Self {
        self.changed(|shared| {
            shared.options.observers = shared.options.observers.with(make(&observed(shared)));
            // An observer that was replaced sees the backend no longer.
            shared.built_on = shared.built_on.renewed();
            tell_observers(shared);
        })
    }

    /// Removes the observer of a type.
    #[cfg(feature = "dashboard")]
    pub(crate) fn no_longer_observed_by<T: Observer>(self) -> Self {
        self.changed(|shared| shared.options.observers = shared.options.observers.without::<T>())
    }

    /// Counts this layer's lookups of plans apart from those of other layers with the same plans.
    #[cfg(feature = "metrics")]
    pub(crate) fn with_lookups_of_its_own(self) -> Self {
        self.changed(|shared| shared.applied = counted_apart(&shared.applied))
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
pub(crate) fn observed<B: Backend>(shared: &Shared<B>) -> Observed {
    Observed {
        policies: Arc::clone(&shared.announced.policies),
        applied: Arc::clone(&shared.applied),
        permits: shared.permits.names().cloned().collect(),
    }
}

#[cfg(feature = "metrics")]
pub(crate) fn counted_apart(applied: &[Applied]) -> Arc<[Applied]> {
    let apart = |limit: &Applied| match &limit.keying {
        Keying::Tiered(lookup) => Applied {
            keying: Keying::Tiered(lookup.counted_apart()),
            ..limit.clone()
        },
        Keying::Extracted(_) | Keying::Future(_) => limit.clone(),
    };
    applied.iter().map(apart).collect()
}
