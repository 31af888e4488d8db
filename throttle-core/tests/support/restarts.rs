//! A memory store that is now and then saved and restored.

use std::future::ready;
use std::sync::{Arc, Mutex};

use throttle_core::backend::{Answer, Call, ExceptedKey, KeyStep, Receipt};
use throttle_core::{
    Backend, ConfigError, Decision, ManualClock, MemoryBackend, MemorySet, PolicySet,
};

type Store = MemoryBackend<ManualClock>;

#[derive(Clone)]
pub(crate) struct Restarts {
    store: Arc<Mutex<Store>>,
    pub(crate) clock: ManualClock,
}

impl Restarts {
    pub(crate) fn new(store: Store, clock: ManualClock) -> Self {
        let store = Arc::new(Mutex::new(store));
        Self { store, clock }
    }

    /// Goes on with what a snapshot has kept.
    pub(crate) fn restart(&self) {
        let mut store = self.store.lock().unwrap();
        let mut snapshot = Vec::new();
        store.snapshot(&mut snapshot).unwrap();
        let builder = MemoryBackend::builder().clock(self.clock.clone());
        *store = builder.restore(&mut &*snapshot).unwrap();
    }

    /// The present store, and the set prepared on it.
    fn on(&self, set: &PolicySet) -> (Store, Arc<MemorySet>) {
        let store = self.store.lock().unwrap().clone();
        let prepared = store.prepare(set.clone()).unwrap();
        (store, Arc::new(prepared))
    }
}

impl Backend for Restarts {
    type Prepared = PolicySet;
    type Decide = Answer<Decision>;
    type Done = Answer<()>;

    fn prepare(&self, set: PolicySet) -> Result<PolicySet, ConfigError> {
        Ok(set)
    }

    fn set(prepared: &PolicySet) -> &PolicySet {
        prepared
    }

    fn decide(&self, set: &Arc<PolicySet>, calls: &[Call]) -> Answer<Decision> {
        let (store, prepared) = self.on(set);
        Box::pin(store.decide(&prepared, calls))
    }

    fn settle(&self, set: &Arc<PolicySet>, receipt: Receipt) -> Answer<()> {
        let (store, prepared) = self.on(set);
        store.settle_now(&prepared, receipt);
        Box::pin(ready(Ok(())))
    }

    fn run(&self, set: &Arc<PolicySet>, policy: usize, step: KeyStep) -> Answer<Vec<ExceptedKey>> {
        let (store, prepared) = self.on(set);
        store.run(&prepared, policy, step)
    }

    fn reset_all(&self, prefix: &str) -> Answer<()> {
        drop(self.store.lock().unwrap().reset_all(prefix));
        Box::pin(ready(Ok(())))
    }

    fn has_exceptions(&self) -> bool {
        true
    }
}
