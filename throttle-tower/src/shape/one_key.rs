use std::sync::Mutex;
use std::time::Duration;

use throttle_core::algorithm::{Algorithm, DepartureSchedule};
use throttle_core::{Clock, Cost, Timestamp};

use super::clock::TokioClock;
use crate::lock::lock;

/// The schedule of [`Key::CONSTANT`](throttle_core::Key::CONSTANT) where no other shaper can use it: a lock and a
/// clock, without a store. It decides as the store in memory does.
pub(super) struct OneKey {
    pub(super) clock: TokioClock,
    state: Mutex<State>,
}

struct State {
    schedule: DepartureSchedule,
    /// Calls that have left at once. Counted here, because another atomic number would take as long as the lock.
    sent: u64,
}

impl OneKey {
    /// `None` for an algorithm that has no schedule of departures.
    pub(super) fn new(algorithm: &Algorithm) -> Option<Self> {
        let schedule = DepartureSchedule::new(algorithm)?;
        Some(Self { clock: TokioClock::new(), state: Mutex::new(State { schedule, sent: 0 }) })
    }

    /// Lets a call leave now. If it cannot, returns how long until it can; `None` if no wait helps.
    #[inline]
    pub(super) fn leave(&self, cost: Cost) -> Result<(), Option<Duration>> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        state.schedule.reserve(now, cost)?;
        state.sent += 1;
        Ok(())
    }

    /// As [`leave`](Self::leave), as of an instant. Returns how long after it the next turn is due. The call is not
    /// counted.
    pub(super) fn leave_as_of(&self, at: Timestamp, cost: Cost) -> Result<Duration, Option<Duration>> {
        let mut state = lock(&self.state);
        state.schedule.reserve(at, cost)?;
        Ok(state.schedule.reset_after(at))
    }

    /// Calls that have left at once.
    pub(super) fn sent(&self) -> u64 {
        lock(&self.state).sent
    }

    pub(super) fn reset(&self) {
        lock(&self.state).schedule.reset();
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{LeakyBucket, Rate};

    use super::*;

    /// One departure an hour.
    #[test]
    fn shape_threads_on_one_key_leave_no_more_often_than_the_pace() {
        let bucket = LeakyBucket::new(Rate::per_hour(1)).without_delay();
        let one_key = OneKey::new(&bucket.build().unwrap()).unwrap();
        let leave_all = || (0..10).filter(|_| one_key.leave(Cost::ONE).is_ok()).count();
        let left: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(leave_all)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((left, one_key.sent()), (1, 1));
    }
}
