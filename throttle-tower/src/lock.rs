#[cfg(any(feature = "metrics", feature = "offenders"))]
use std::sync::TryLockError;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose content is consistent at every point where a panic can happen, so a poisoned one is safe to use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], but `None` instead of waiting.
#[cfg(any(feature = "metrics", feature = "offenders"))]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
