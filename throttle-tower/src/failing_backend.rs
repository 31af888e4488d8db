//! A backend for tests.

use std::future::{Ready, ready};
use std::sync::Arc;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{
    Backend, BackendError, BackendErrorKind, ConfigError, Decision, Key, PolicySet,
};

/// A store that is down.
#[derive(Clone)]
pub(crate) struct FailingBackend;

impl Backend for FailingBackend {
    type Prepared = PolicySet;
    type Decide = Ready<Result<Decision, BackendError>>;
    type Done = Ready<Result<(), BackendError>>;

    fn prepare(&self, set: PolicySet) -> Result<Self::Prepared, ConfigError> {
        Ok(set)
    }

    fn set(prepared: &Self::Prepared) -> &PolicySet {
        prepared
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
