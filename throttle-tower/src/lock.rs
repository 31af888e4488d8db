use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what is never left half changed, so that a panic elsewhere is no reason not to go on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
