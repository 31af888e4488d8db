//! The active faults, and waiting for them to end.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) delay: Duration,
    pub(super) swallow: bool,
    pub(super) cuts: u32,
    pub(super) garbage: Option<Arc<[u8]>>,
    pub(super) blackhole: bool,
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    state: Mutex<State>,
    changed: Condvar,
}

impl Faults {
    pub(super) fn now(&self) -> State {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn change(&self, by: impl FnOnce(&mut State)) {
        by(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Wakes the waiting threads after a connection has ended.
    pub(super) fn wake(&self) {
        // Under the lock; otherwise a thread that has checked but does not sleep yet would miss the
        // signal.
        let _state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }

    /// Takes one of the remaining cuts.
    pub(super) fn take_cut(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let cut = state.cuts > 0;
        state.cuts -= u32::from(cut);
        cut
    }

    /// Waits until an instant has passed and the black hole is closed, or until the connection
    /// ends.
    pub(super) fn hold(&self, due: Option<Instant>, ended: impl Fn() -> bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !ended() {
            let left = due.map_or(Duration::ZERO, |due| {
                due.saturating_duration_since(Instant::now())
            });
            if state.blackhole {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            } else if left.is_zero() {
                return;
            } else {
                state = self
                    .changed
                    .wait_timeout(state, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        }
    }
}
