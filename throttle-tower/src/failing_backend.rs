//! A backend for tests.

use std::future::{Ready, ready};
use std::sync::Arc;

use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{Backend, BackendError, BackendErrorKind, ConfigError, Decision, PolicySet};

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

    fn run(&self, _: &Arc<Self::Prepared>, _: usize, step: KeyStep) -> Answer<Vec<ExceptedKey>> {
        Box::pin(ready(match step {
            KeyStep::Reset(_) => Ok(Vec::new()),
            _ => Err(step.unsupported()),
        }))
    }

    fn reset_all(&self, _: &str) -> Self::Done {
        ready(Ok(()))
    }
}
