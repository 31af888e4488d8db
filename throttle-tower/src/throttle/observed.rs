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
            #[cfg(feature = "metrics")]
            report_lookups(shared);
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

/// Lets the layer's lookups of plans report to its observers, apart from those of other layers with
/// the same plans.
#[cfg(feature = "metrics")]
pub(crate) fn report_lookups<B: Backend>(shared: &mut Shared<B>) {
    let observers = &shared.options.observers;
    let reporting = |(policy, limit): (usize, &Applied)| match &limit.keying {
        Keying::Tiered(lookup) => {
            let observers = observers.clone();
            let report =
                move |result| observers.each(|observer| observer.looked_up(policy, result));
            Applied {
                keying: Keying::Tiered(lookup.reporting(Arc::new(report))),
                ..limit.clone()
            }
        }
        Keying::Extracted(_) | Keying::Future(_) => limit.clone(),
    };
    shared.applied = shared.applied.iter().enumerate().map(reporting).collect();
}
