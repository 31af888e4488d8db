//! How many breakers are in each state, as three gauges.

use std::sync::Arc;

use metrics::Gauge;
use parking_lot::Mutex;

use crate::breaker::Breaker;

/// The breakers of a backend, and what the gauges show of them.
///
/// The gauges are moved by the difference to what they show already, so that those of several
/// backends with one name add up. Breakers are counted under the lock: of two that change at once,
/// the second count sees both.
#[derive(Debug)]
pub(super) struct BreakerStates {
    breakers: Arc<[Breaker]>,
    shown: Mutex<[u32; 3]>,
}

impl BreakerStates {
    pub(super) fn new(breakers: Arc<[Breaker]>) -> Self {
        Self {
            breakers,
            shown: Mutex::default(),
        }
    }

    pub(super) fn are_shown(&self) -> bool {
        *self.shown.lock() != [0; 3]
    }

    /// Moves the gauges to the present states.
    pub(super) fn show(&self, gauges: &[Gauge; 3]) {
        self.move_to(gauges, || self.count());
    }

    /// Takes from the gauges what they show.
    pub(super) fn hide(&self, gauges: &[Gauge; 3]) {
        self.move_to(gauges, || [0; 3]);
    }

    fn move_to(&self, gauges: &[Gauge; 3], target: impl FnOnce() -> [u32; 3]) {
        let mut shown = self.shown.lock();
        let target = target();
        for ((gauge, from), to) in gauges.iter().zip(*shown).zip(target) {
            if to < from {
                gauge.decrement(from - to);
            } else {
                gauge.increment(to - from);
            }
        }
        *shown = target;
    }

    fn count(&self) -> [u32; 3] {
        let mut count = [0; 3];
        for breaker in &*self.breakers {
            let state = if breaker.is_open() {
                2
            } else if breaker.is_closed() {
                0
            } else {
                1
            };
            count[state] += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::breaker::Failure;

    /// Otherwise the older of two counts could be shown last, and stay until the next change.
    #[test]
    fn breaker_that_opens_during_an_update_is_counted_by_the_next() {
        let breakers: Arc<[Breaker]> = [1, 1].map(Breaker::new).into();
        let states = BreakerStates::new(Arc::clone(&breakers));
        let gauges = [(); 3].map(|()| Gauge::noop());
        let is_next = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let moving = states.shown.lock();
            let next = threads.spawn(|| {
                is_next.store(true, Ordering::Relaxed);
                states.show(&gauges);
            });
            while !is_next.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            // Time to come to the lock. If the thread is later than this, the test passes without
            // proving anything.
            std::thread::sleep(Duration::from_millis(50));
            assert!(breakers[1].fail(Failure::Fault));
            drop(moving);
            next.join().expect("no panic");
        });
        assert_eq!(*states.shown.lock(), [1, 0, 1]);
    }
}
