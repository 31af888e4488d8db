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
#[derive(Debug, Default)]
pub(super) struct BreakerStates(Mutex<BreakerTally>);

#[derive(Debug, Default)]
struct BreakerTally {
    breakers: Vec<Arc<Breaker>>,
    by_state: [u32; 3],
}

impl BreakerStates {
    pub(super) fn add(&self, breaker: &Arc<Breaker>) {
        self.0.lock().breakers.push(Arc::clone(breaker));
    }

    pub(super) fn remove(&self, breaker: &Arc<Breaker>) {
        let mut shown = self.0.lock();
        shown.breakers.retain(|other| !Arc::ptr_eq(other, breaker));
    }

    pub(super) fn are_shown(&self) -> bool {
        self.0.lock().by_state != [0; 3]
    }

    /// Moves the gauges to the present states.
    pub(super) fn show(&self, gauges: &[Gauge; 3]) {
        let mut shown = self.0.lock();
        let mut present = [0; 3];
        for breaker in &shown.breakers {
            let state = if breaker.is_open() {
                2
            } else {
                usize::from(!breaker.is_closed())
            };
            present[state] += 1;
        }
        for ((gauge, from), to) in gauges.iter().zip(shown.by_state).zip(present) {
            if to < from {
                gauge.decrement(from - to);
            } else {
                gauge.increment(to - from);
            }
        }
        shown.by_state = present;
    }
}
