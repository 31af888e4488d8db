//! How many keys the backends of observed layers hold.

use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;

/// Reads how many keys a backend holds, if they are in this process.
type KeysHeld = dyn Fn() -> Option<usize> + Send + Sync;

/// The backend of a layer and its clones. It is dropped with the last of them, and replaced where
/// the layer gets other observers.
pub(crate) struct BuiltOn(Arc<KeysHeld>);

impl BuiltOn {
    pub(crate) fn new(keys_held: impl Fn() -> Option<usize> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self(Arc::new(keys_held)))
    }

    /// The same backend, for other observers.
    pub(crate) fn renewed(&self) -> Arc<Self> {
        Arc::new(Self(Arc::clone(&self.0)))
    }
}

/// The backends of the layers that report to an observer: a layer and its clones may have several.
#[derive(Default)]
pub(crate) struct Backends(Mutex<Vec<(Weak<BuiltOn>, Arc<KeysHeld>)>>);

impl Backends {
    pub(crate) fn add(&self, on: &Arc<BuiltOn>) {
        lock(&self.0).push((Arc::downgrade(on), Arc::clone(&on.0)));
    }

    /// The keys that all of them hold together; `None` if none holds keys in this process. When no
    /// layer is left, those of the last ones still count: what they did may be reported after their
    /// end.
    pub(crate) fn keys_held(&self) -> Option<usize> {
        let all: Vec<_> = {
            let mut all = lock(&self.0);
            let is_used = |(on, _): &(Weak<BuiltOn>, _)| on.strong_count() > 0;
            if all.iter().any(is_used) {
                all.retain(is_used);
            }
            all.iter()
                .map(|(_, keys_held)| Arc::clone(keys_held))
                .collect()
        };
        let is_first = |(n, one): &(usize, &Arc<KeysHeld>)| {
            !all[..*n].iter().any(|other| Arc::ptr_eq(other, one))
        };
        let different = all.iter().enumerate().filter(is_first);
        different
            .filter_map(|(_, keys_held)| keys_held())
            .reduce(|sum, keys| sum + keys)
    }
}
