use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::{Clock, Timestamp, micros_ceil};

/// A clock for tests that stands still until it is set or advanced. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use throttle_core::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::new(Timestamp::EPOCH);
/// clock.advance(Duration::from_millis(2));
/// assert_eq!(clock.now(), Timestamp::from_micros(2_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicI64>);

impl ManualClock {
    /// A clock that stands at `start`. `ManualClock::default()` stands at the epoch.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(start.as_micros())))
    }

    /// Sets the time, in either direction.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// Advances the time by `by`, rounded up to whole microseconds.
    pub fn advance(&self, by: Duration) {
        let by = micros_ceil(by);
        let later = |now| Some(Timestamp::from_micros(now).after_micros(by).as_micros());
        // The closure never refuses, so there is no error to handle.
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_wherever_it_is_put_before_the_epoch_too() {
        for start in [
            Timestamp::MIN,
            Timestamp::from_micros(-1),
            Timestamp::EPOCH,
            Timestamp::MAX,
        ] {
            let clock = ManualClock::new(start);
            assert_eq!(clock.now(), start);
            clock.set(Timestamp::EPOCH);
            clock.set(start);
            assert_eq!(clock.clone().now(), start);
        }
        let clock = ManualClock::new(Timestamp::from_micros(-5));
        clock.advance(Duration::from_nanos(2_001));
        assert_eq!(clock.now(), Timestamp::from_micros(-2));
    }
}
