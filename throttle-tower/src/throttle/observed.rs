//! What observers need to know of a layer.

use std::sync::Arc;

#[cfg(any(feature = "metrics", feature = "dashboard"))]
use throttle_core::PolicyName;
use throttle_core::{Backend, Policy};

use super::build::tell_observers;
use super::layer::ThrottleLayer;
#[cfg(feature = "metrics")]
use crate::limit::{Applied, Keying};
use crate::observe::Observer;
#[cfg(feature = "offenders")]
use crate::observe::Observers;

impl<B: Backend> ThrottleLayer<B> {
    /// Adds an observer.
    pub(crate) fn observed_by(mut self, observer: impl Observer) -> Self {
        let shared = Arc::make_mut(&mut self.shared);
        shared.options.observers = shared.options.observers.with(observer);
        // An observer that was replaced sees the backend no longer.
        shared.built_on = shared.built_on.renewed();
        tell_observers(shared);
        self
    }

    /// Counts this layer's lookups of plans apart from those of other layers with the same plans.
    #[cfg(feature = "metrics")]
    pub(crate) fn with_lookups_of_its_own(mut self) -> Self {
        let apart = |limit: &Applied| match &limit.keying {
            Keying::Tiered(lookup) => Applied { keying: Keying::Tiered(lookup.counted_apart()), ..limit.clone() },
            Keying::Extracted(_) | Keying::Future(_) => limit.clone(),
        };
        let shared = Arc::make_mut(&mut self.shared);
        shared.applied = shared.applied.iter().map(apart).collect();
        self
    }

    #[cfg(feature = "offenders")]
    pub(crate) fn observers(&self) -> &Observers {
        &self.shared.options.observers
    }

    pub(crate) fn policies(&self) -> &[Policy] {
        &self.shared.announced.policies
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn applied(&self) -> &[Applied] {
        &self.shared.applied
    }

    #[cfg(any(feature = "metrics", feature = "dashboard"))]
    pub(crate) fn permit_names(&self) -> impl Iterator<Item = &PolicyName> {
        self.shared.permits.names()
    }
}
