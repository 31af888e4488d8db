//! Notices the end of a connection when it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redis::PushInfo;
use redis::aio::{AsyncPushSender, SendError};

/// What is called when a connection ends.
type OnEnd = Box<dyn FnOnce() + Send>;

/// Whether a connection has ended.
#[derive(Default)]
pub(super) struct End {
    has_come: AtomicBool,
    on_end: Mutex<Option<OnEnd>>,
}

impl End {
    /// The end of a connection that `Driven` is given to.
    pub(super) fn of_driven() -> (Arc<Self>, EndGuard) {
        let end = Arc::<Self>::default();
        (Arc::clone(&end), EndGuard(end))
    }

    pub(super) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::Acquire)
    }

    /// Calls `notify` when the connection ends, or now if it has ended.
    pub(super) fn then(&self, notify: OnEnd) {
        let mut on_end = self.on_end.lock();
        if self.has_come() {
            drop(on_end);
            return notify();
        }
        *on_end = Some(notify);
    }

    /// Notes that the connection has ended.
    pub(super) fn come(&self) {
        let mut on_end = self.on_end.lock();
        self.has_come.store(true, Ordering::Release);
        let notify = on_end.take();
        drop(on_end);
        if let Some(notify) = notify {
            notify();
        }
    }
}

/// Owned by the task that drives a connection. The task drops it when the server or a proxy closes
/// the connection, and is itself dropped when its runtime shuts down: in both cases the connection
/// has ended.
pub(super) struct EndGuard(Arc<End>);

impl AsyncPushSender for EndGuard {
    fn send(&self, _: PushInfo) -> Result<(), SendError> {
        Ok(())
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.come();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn an_end_calls_once_when_it_comes_or_at_once_if_it_has_come() {
        let calls = Arc::<AtomicUsize>::default();
        let count = || {
            let calls = Arc::clone(&calls);
            Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        let (end, driven) = End::of_driven();
        end.then(count());
        assert!(!end.has_come() && calls.load(Ordering::Relaxed) == 0);
        drop(driven);
        assert!(end.has_come() && calls.load(Ordering::Relaxed) == 1);
        end.come();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        end.then(count());
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
