use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose content is consistent at every point where a panic can happen, so a poisoned one is safe to use.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
