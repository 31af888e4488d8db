//! What observers need to know of a layer.

use std::sync::Arc;

#[cfg(any(feature = "metrics", feature = "dashboard"))]
use throttle_core::PolicyName;
use throttle_core::{Backend, Policy};

use super::build::tell_observers;
use super::layer::ThrottleLayer;
#[cfg(feature = "metrics")]
use crate::limit::Applied;
use crate::observe::Observer;
#[cfg(feature = "offenders")]
use crate::observe::Observers;

impl<B: Backend> ThrottleLayer<B> {
    /// Adds an observer.
    pub(crate) fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        let layer = self.with_options(|options| options.observers = options.observers.with(observer));
        tell_observers(&layer.shared);
        layer
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
