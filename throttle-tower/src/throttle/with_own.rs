//! Makes the limits of a layer with numbers of some customer's own.

use std::sync::Arc;

use throttle_core::{Backend, BackendError, BackendErrorKind, ConfigError, PolicySet};

use super::announced::Announced;
use super::build::make_share;
use super::own_sets::OwnNumbers;
use super::shared::Shared;

impl<B: Backend> Shared<B> {
    /// The same limits with these numbers.
    ///
    /// # Errors
    ///
    /// If the backend does not enforce them. The request was not charged.
    pub(super) fn with_own(&self, numbers: &OwnNumbers) -> Result<Arc<Self>, BackendError> {
        let in_force = self.backend.in_force(&self.prepared);
        let by_value = numbers.iter().map(|(place, numbers)| (*place, **numbers)).collect();
        let making = self.own_sets.of(in_force.as_ref(), by_value);
        let made = making.get_or_init(|| self.made_with(in_force.as_deref(), numbers).map(Arc::new).map_err(Arc::new));
        made.clone().map_err(|error| {
            self.own_sets.refused.warn(&format_args!(
                "a lookup returned numbers that the backend refuses: {error}. Their requests are refused"
            ));
            refused(error)
        })
    }

    /// The same limits with these numbers, for a look: nothing is kept of them.
    ///
    /// # Errors
    ///
    /// As [`with_own`](Self::with_own).
    #[cfg(feature = "rules")]
    pub(super) fn peeking_with_own(&self, numbers: &OwnNumbers) -> Result<Arc<Self>, BackendError> {
        let in_force = self.backend.in_force(&self.prepared);
        self.made_with(in_force.as_deref(), numbers).map(Arc::new).map_err(refused)
    }

    fn made_with(&self, in_force: Option<&PolicySet>, numbers: &OwnNumbers) -> Result<Self, ConfigError> {
        let base = in_force.unwrap_or_else(|| B::set(&self.prepared)).clone();
        let set = base.with_own(numbers.iter().map(|(place, numbers)| (*place, **numbers)))?;
        let prepared = Arc::new(self.backend.prepare(set)?);
        let announced = Announced::new(B::set(&prepared).policies(), self.announced.options.clone());
        let mut own = Self { prepared, announced: Arc::new(announced), share: None, ..self.clone() };
        if let Some(share) = &self.share {
            own.options.local_store = Some(share.store().clone());
        }
        make_share(&mut own)?;
        Ok(own)
    }
}

fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BackendError {
    BackendError::new(BackendErrorKind::Protocol).uncharged().with_source(error)
}
