//! The backend with a witness: records the store's answer to each request, whatever the layer makes
//! of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use throttle_core::BackendErrorKind;
use throttle_core::backend::{Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{Backend, BackendError, ConfigError, Decision, PolicySet};
use throttle_redis::{RedisBackend, RedisSet};

use crate::app::TRIP;

/// The answer of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Decided,
    Failed {
        kind: BackendErrorKind,
        /// Whether it is certain that the store charged nothing.
        uncharged: bool,
    },
}

/// Records the answers in the [trip](TRIP) of the request.
#[derive(Clone)]
pub(crate) struct Witnessed(pub(crate) RedisBackend);

impl Backend for Witnessed {
    type Prepared = RedisSet;
    type Decide = Pin<Box<dyn Future<Output = Result<Decision, BackendError>> + Send>>;
    type Done = <RedisBackend as Backend>::Done;

    fn prepare(&self, set: PolicySet) -> Result<RedisSet, ConfigError> {
        self.0.prepare(set)
    }

    fn set(prepared: &RedisSet) -> &PolicySet {
        RedisBackend::set(prepared)
    }

    fn decide(&self, prepared: &Arc<RedisSet>, calls: &[Call]) -> Self::Decide {
        let deciding = self.0.decide(prepared, calls);
        Box::pin(async move {
            let decided = deciding.await;
            let answer = match &decided {
                Ok(_) => Answer::Decided,
                Err(error) => Answer::Failed {
                    kind: error.kind(),
                    uncharged: error.is_uncharged(),
                },
            };
            TRIP.with(|trip| trip.answered(answer));
            decided
        })
    }

    fn settle(&self, prepared: &Arc<RedisSet>, receipt: Receipt) -> Self::Done {
        self.0.settle(prepared, receipt)
    }

    fn run(
        &self,
        prepared: &Arc<RedisSet>,
        policy: usize,
        step: KeyStep,
    ) -> throttle_core::backend::Answer<Vec<ExceptedKey>> {
        self.0.run(prepared, policy, step)
    }

    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.0.reset_all(prefix)
    }
}
