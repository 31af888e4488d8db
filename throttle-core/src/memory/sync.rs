//! What threads share the store by: atomics and locks, or in the model checker's build its own in
//! their place.

#[cfg(not(all(test, throttle_models)))]
mod real {
    pub(in crate::memory) use std::hint::spin_loop;
    pub(in crate::memory) use std::sync::OnceLock;
    pub(in crate::memory) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, fence};
    pub(in crate::memory) use std::thread::yield_now;

    pub(in crate::memory) use parking_lot::{Mutex, MutexGuard};
}

#[cfg(not(all(test, throttle_models)))]
pub(super) use real::*;

#[cfg(all(test, throttle_models))]
mod modelled {
    pub(in crate::memory) use loom::hint::spin_loop;
    pub(in crate::memory) use loom::sync::MutexGuard;
    use loom::sync::atomic::{AtomicBool, Ordering};
    pub(in crate::memory) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, fence};
    pub(in crate::memory) use loom::thread::yield_now;

    /// A value that is set once: the standard one, with a flag by which the checker knows what
    /// happens before what.
    #[derive(Debug)]
    pub(in crate::memory) struct OnceLock<T>(std::sync::OnceLock<T>, AtomicBool);

    impl<T> OnceLock<T> {
        pub(in crate::memory) fn new() -> Self {
            Self(std::sync::OnceLock::new(), AtomicBool::new(false))
        }

        pub(in crate::memory) fn get(&self) -> Option<&T> {
            if self.1.load(Ordering::Acquire) {
                self.0.get()
            } else {
                None
            }
        }

        /// One thread at a time may call it.
        pub(in crate::memory) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
            if self.get().is_none() {
                assert!(
                    self.0.set(init()).is_ok(),
                    "another thread initializes it too"
                );
                self.1.store(true, Ordering::Release);
            }
            self.0.get().unwrap()
        }
    }

    /// A lock with parking_lot's methods.
    #[derive(Debug)]
    pub(in crate::memory) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(in crate::memory) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(in crate::memory) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }

        pub(in crate::memory) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

#[cfg(all(test, throttle_models))]
pub(super) use modelled::*;
