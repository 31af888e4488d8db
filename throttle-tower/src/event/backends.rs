//! How many keys the backends of observed layers hold, and whether they can fail.

#[cfg(feature = "metrics")]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use throttle_core::Backend;

use crate::lock::lock;
#[cfg(feature = "metrics")]
use crate::lock::try_lock;

/// Reads how many keys a backend holds, if they are in this process.
type KeysHeld = dyn Fn() -> Option<usize> + Send + Sync;

/// The backend of a layer and its clones. It is dropped with the last of them, and replaced where
/// the layer gets other observers.
pub(crate) struct BuiltOn {
    keys_held: Arc<KeysHeld>,
    can_fail: bool,
}

impl BuiltOn {
    pub(crate) fn new(backend: impl Backend) -> Arc<Self> {
        let can_fail = backend.can_fail();
        Arc::new(Self {
            keys_held: Arc::new(move || backend.keys_held()),
            can_fail,
        })
    }

    /// The same backend, for other observers.
    pub(crate) fn renewed(&self) -> Arc<Self> {
        Arc::new(Self {
            keys_held: Arc::clone(&self.keys_held),
            can_fail: self.can_fail,
        })
    }
}

/// The backends of the layers that report to an observer: a layer and its clones may have several.
#[derive(Default)]
pub(crate) struct Backends {
    all: Mutex<Vec<(Weak<BuiltOn>, Arc<KeysHeld>)>>,
    can_fail: AtomicBool,
    /// The number of keys that was shown last.
    #[cfg(feature = "metrics")]
    shown: AtomicUsize,
    /// What the layer of the last request held.
    #[cfg(feature = "metrics")]
    last_held: AtomicUsize,
}

impl Backends {
    pub(crate) fn add(&self, on: &Arc<BuiltOn>) {
        lock(&self.all).push((Arc::downgrade(on), Arc::clone(&on.keys_held)));
        self.can_fail.fetch_or(on.can_fail, Ordering::Relaxed);
    }

    /// Whether decisions of one of them can fail, or could before its layer ended.
    #[cfg(feature = "metrics")]
    pub(crate) fn can_fail(&self) -> bool {
        self.can_fail.load(Ordering::Relaxed)
    }

    /// The keys that all of them hold together; `None` if none holds keys in this process. When no
    /// layer is left, those of the last ones still count: what they did may be reported after their
    /// end.
    #[cfg(feature = "dashboard")]
    pub(crate) fn keys_held(&self) -> Option<usize> {
        sum_of_keys(&mut lock(&self.all))
    }

    /// Calls `show` with the keys that are held, if they are others than were shown last. `held` are
    /// those of the present request's layer: as long as they stay the same, nothing is shown. Returns
    /// without a call while another thread shows them.
    #[cfg(feature = "metrics")]
    pub(crate) fn show_keys(&self, held: Option<usize>, show: impl Fn(usize)) {
        // No key held is a number, too.
        let Some(held) = held.map(|held| held + 1) else {
            return;
        };
        if self.last_held.load(Ordering::Relaxed) == held {
            return;
        }
        let Some(mut all) = try_lock(&self.all) else {
            return;
        };
        self.last_held.store(held, Ordering::Relaxed);
        while let Some(keys) = sum_of_keys(&mut all)
            && self.shown.swap(keys + 1, Ordering::Relaxed) != keys + 1
        {
            show(keys);
        }
    }
}

fn sum_of_keys(all: &mut Vec<(Weak<BuiltOn>, Arc<KeysHeld>)>) -> Option<usize> {
    let is_used = |(on, _): &(Weak<BuiltOn>, _)| on.strong_count() > 0;
    if all.iter().any(is_used) {
        all.retain(is_used);
    }
    let is_first = |(n, (_, one)): &(usize, &(_, Arc<KeysHeld>))| {
        !all[..*n].iter().any(|(_, other)| Arc::ptr_eq(other, one))
    };
    let different = all.iter().enumerate().filter(is_first);
    different
        .filter_map(|(_, (_, keys_held))| keys_held())
        .reduce(|sum, keys| sum + keys)
}
