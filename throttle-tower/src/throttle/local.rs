use std::num::NonZeroU32;
use std::sync::Arc;

use throttle_core::{Clock, ConfigError, LimitSet, LocalShare, MemoryBackend};

/// Where shares are kept, whatever clock it has: makes a share of a set, of so many processes for each policy.
#[derive(Clone)]
pub(crate) struct LocalStore(Arc<MakeShare>);

type Processes<'a> = &'a dyn Fn(usize) -> Option<NonZeroU32>;
type MakeShare = dyn Fn(&LimitSet, Processes<'_>) -> Result<LocalShare, ConfigError> + Send + Sync;

impl LocalStore {
    pub(super) fn new<C: Clock>(store: MemoryBackend<C>) -> Self {
        Self(Arc::new(move |set, processes| LocalShare::of_each(&store, set, processes)))
    }

    pub(super) fn share(&self, set: &LimitSet, processes: Processes<'_>) -> Result<LocalShare, ConfigError> {
        (self.0)(set, processes)
    }
}

impl Default for LocalStore {
    fn default() -> Self {
        Self::new(MemoryBackend::new())
    }
}
