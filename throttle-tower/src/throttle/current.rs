//! The version of its limits that a layer enforces now, and how services follow when it is
//! replaced.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use throttle_core::{Backend, ConfigError};

use super::shared_layer::SharedLayer;
use crate::lock::lock;

/// What a layer, its clones and its services have in common. A version does not point here, so the
/// last of them frees the backend.
pub(crate) struct Live<B: Backend> {
    /// How often the version was replaced. It changes while `version` is locked for writing.
    number: AtomicU64,
    version: RwLock<Arc<SharedLayer<B>>>,
    /// Held while a version is built, so that replacements follow each other.
    replacing: Mutex<()>,
}

impl<B: Backend> Live<B> {
    pub(super) fn new(version: SharedLayer<B>) -> Arc<Self> {
        Arc::new(Self {
            number: AtomicU64::new(0),
            version: RwLock::new(Arc::new(version)),
            replacing: Mutex::default(),
        })
    }

    pub(crate) fn now(&self) -> Arc<SharedLayer<B>> {
        Arc::clone(&self.version.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `read` with the version that is enforced now.
    pub(crate) fn with<R>(&self, read: impl FnOnce(&Arc<SharedLayer<B>>) -> R) -> R {
        read(&self.now())
    }

    /// Enforces what `build` makes of the present version.
    ///
    /// # Errors
    ///
    /// If `build` fails. The present version then stays.
    pub(crate) fn replace(
        &self,
        build: impl FnOnce(&SharedLayer<B>) -> Result<SharedLayer<B>, ConfigError>,
    ) -> Result<(), ConfigError> {
        let _replacing = lock(&self.replacing);
        let next = Arc::new(build(&self.now())?);
        let mut version = self.version.write().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *version, next);
        // Before a request meets the next version: its observers count the store once.
        former.version.replaced();
        self.number.fetch_add(1, Ordering::Release);
        drop(version);
        // No longer locked: the last requests of a version may be gone, and its end may take time.
        drop(former);
        Ok(())
    }
}

/// The version that a service enforced last, and where it finds the present one.
///
/// A request compares two numbers. axum calls clones of a service that is never called itself: that
/// one keeps the version that it was made with (one, however often the limits are replaced), and
/// each of its clones takes the present version from the lock.
#[derive(Clone)]
pub(super) struct Current<B: Backend> {
    version: Arc<SharedLayer<B>>,
    number: u64,
    live: Arc<Live<B>>,
}

impl<B: Backend> Current<B> {
    pub(super) fn new(live: &Arc<Live<B>>) -> Self {
        let version = live.version.read().unwrap_or_else(PoisonError::into_inner);
        Self {
            version: Arc::clone(&version),
            number: live.number.load(Ordering::Acquire),
            live: Arc::clone(live),
        }
    }

    /// The present version. A request reads it once, and keeps to it until its response.
    #[inline]
    pub(super) fn now(&mut self) -> &Arc<SharedLayer<B>> {
        if self.number != self.live.number.load(Ordering::Acquire) {
            *self = Self::new(&self.live);
        }
        &self.version
    }

    pub(super) fn live(&self) -> &Arc<Live<B>> {
        &self.live
    }
}
