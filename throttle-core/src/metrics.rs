//! Metrics through the facade of the `metrics` crate: for backends and layers that report their
//! own.

use std::fmt;
use std::sync::OnceLock;

/// Handles to metrics, registered when they are first used after the program has installed its
/// recorder.
///
/// A handle that is registered before that does nothing, and does nothing ever after. So a
/// component that keeps its handles must not register them when it is built, nor at its first use
/// if that may come early.
///
/// What is recorded before there is a recorder is lost. A recorder of a type without fields counts
/// as none, because it cannot be told from the facade's own. The handles stay with the first
/// recorder that they find.
///
/// ```
/// use throttle_core::metrics::Registered;
///
/// let requests = Registered::new(|| metrics::counter!("requests_total", "layer" => "api"));
/// requests.with(|counter| counter.increment(1)); // There is no recorder yet.
/// ```
pub struct Registered<H> {
    handles: OnceLock<H>,
    register: Box<dyn Fn() -> H + Send + Sync>,
}

impl<H> Registered<H> {
    /// Keeps the closure that registers the handles, and describes them.
    pub fn new(register: impl Fn() -> H + Send + Sync + 'static) -> Self {
        Self {
            handles: OnceLock::new(),
            register: Box::new(register),
        }
    }

    /// Calls `record` with the handles, if there is a recorder.
    #[inline]
    pub fn with(&self, record: impl FnOnce(&H)) {
        if let Some(handles) = self.get() {
            record(handles);
        }
    }

    /// Returns the handles; `None` as long as there is no recorder.
    #[inline]
    pub fn get(&self) -> Option<&H> {
        self.handles.get().or_else(|| self.register())
    }

    fn register(&self) -> Option<&H> {
        let is_installed = metrics::with_recorder(|recorder| size_of_val(recorder) > 0);
        is_installed.then(|| self.handles.get_or_init(&self.register))
    }
}

impl<H> fmt::Debug for Registered<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered")
            .field("is_registered", &self.handles.get().is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use metrics::{NoopRecorder, with_local_recorder};

    use super::*;

    #[test]
    fn handles_are_registered_once_at_their_first_use_with_a_recorder() {
        let times = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&times);
        let handles = Registered::new(move || counted.fetch_add(1, Ordering::Relaxed) + 1);
        let is_unregistered = || {
            handles.with(|_| panic!("there is no recorder"));
            assert_eq!(handles.get(), None);
            assert_eq!(
                format!("{handles:?}"),
                "Registered { is_registered: false, .. }"
            );
        };
        is_unregistered();
        // A recorder of a type without fields cannot be told from none.
        with_local_recorder(&NoopRecorder, is_unregistered);
        assert_eq!(times.load(Ordering::Relaxed), 0);
        let is_registered = || {
            let mut seen = 0;
            handles.with(|handle| seen = *handle);
            assert_eq!((seen, handles.get()), (1, Some(&1)));
            assert_eq!(
                format!("{handles:?}"),
                "Registered { is_registered: true, .. }"
            );
        };
        for _ in 0..2 {
            with_local_recorder(&Arc::new(NoopRecorder), is_registered);
        }
        is_registered();
        assert_eq!(times.load(Ordering::Relaxed), 1);
    }
}
