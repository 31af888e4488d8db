#[cfg(any(feature = "metrics", feature = "offenders"))]
use std::sync::TryLockError;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose content is consistent at every point where a panic can happen, so a poisoned
/// one is safe to use.
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn poisoned() -> Mutex<u64> {
        let mutex = Mutex::new(7);
        let panics = || {
            let _guard = mutex.lock().expect("nobody has panicked yet");
            panic!("while it is locked");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err() && mutex.is_poisoned());
        mutex
    }

    #[test]
    fn poisoned_mutex_is_locked_like_any_other() {
        let mutex = poisoned();
        *lock(&mutex) += 1;
        assert_eq!(*lock(&mutex), 8);
    }

    #[cfg(any(feature = "metrics", feature = "offenders"))]
    #[test]
    fn mutex_is_tried_without_waiting() {
        for mutex in [Mutex::new(7), poisoned()] {
            assert_eq!(try_lock(&mutex).as_deref(), Some(&7));
            let guard = lock(&mutex);
            assert!(try_lock(&mutex).is_none(), "it is locked");
            drop(guard);
            assert!(try_lock(&mutex).is_some());
        }
    }
}
