//! A backend for tests.

use std::future::{Ready, ready};
use std::sync::Arc;

use throttle_core::backend::{Call, PolicyRegistry, Receipt, RegisteredSet};
use throttle_core::{Backend, BackendError, BackendErrorKind, ConfigError, Decision, Key, PolicySet};

/// A store that is down.
#[derive(Clone, Default)]
pub(crate) struct Down(PolicyRegistry);

impl Backend for Down {
    type Prepared = RegisteredSet;
    type Decide = Ready<Result<Decision, BackendError>>;
    type Done = Ready<Result<(), BackendError>>;

    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError> {
        self.0.register(set)
    }

    fn set(prepared: &Self::Prepared) -> &PolicySet {
        prepared.set()
    }

    fn decide(&self, _: &Arc<Self::Prepared>, _: &[Call]) -> Self::Decide {
        ready(Err(BackendError::new(BackendErrorKind::Unavailable)))
    }

    fn settle(&self, _: &Arc<Self::Prepared>, _: Receipt) -> Self::Done {
        ready(Ok(()))
    }

    fn reset(&self, _: &Arc<Self::Prepared>, _: usize, _: &Key) -> Self::Done {
        ready(Ok(()))
    }

    fn reset_all(&self, _: &str) -> Self::Done {
        ready(Ok(()))
    }
}
