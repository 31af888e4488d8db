//! Estimates what a server's clock shows from the times in its replies.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::Timestamp;
use tokio::time::Instant;

/// After this time without a reply the clock counts as unknown: two quartzes differ by about 0.5 ms
/// by then, or one clock was set.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// A server's clock. It is at least as late as the quickest replies show.
#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    /// When a reply was last read.
    read: Moment,
    /// Microseconds since the epoch at the beginning of that moment, by the server's clock.
    at_beginning: AtomicI64,
}

impl ServerClock {
    /// Notes the time in a reply that was just read.
    pub(crate) fn set(&self, now: Timestamp) {
        let is_known = self.read.get().is_some();
        let read = self.read.note();
        let new = now.as_micros().saturating_sub_unsigned(read);
        let old = self.at_beginning.load(Ordering::Relaxed);
        // An earlier time than expected shows a reply that was read late, or a clock that was set
        // back. The estimate follows in steps, so that a late reply changes little.
        let next = if is_known && new < old {
            old - (old.saturating_sub(new) / 8).max(1)
        } else {
            new
        };
        self.at_beginning.store(next, Ordering::Relaxed);
    }

    /// The present instant, if a reply was read lately.
    pub(crate) fn now(&self) -> Option<Timestamp> {
        if self.read.get()?.elapsed() > KNOWN_FOR {
            return None;
        }
        let at_beginning = Timestamp::from_micros(self.at_beginning.load(Ordering::Relaxed));
        Some(at_beginning.after_micros(self.read.micros_since_beginning()))
    }
}

/// An instant that is noted and read without a lock, to the microsecond. At first there is none.
#[derive(Debug)]
pub(super) struct Moment {
    began: Instant,
    /// Since the beginning; 0 for none.
    micros: AtomicU64,
}

impl Default for Moment {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            micros: AtomicU64::new(0),
        }
    }
}

impl Moment {
    /// Notes the present instant. Returns it, in microseconds since the beginning.
    #[inline]
    pub(super) fn note(&self) -> u64 {
        let micros = self.micros_since_beginning().max(1);
        self.micros.store(micros, Ordering::Release);
        micros
    }

    #[inline]
    pub(super) fn micros_since_beginning(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn clear(&self) {
        self.micros.store(0, Ordering::Release);
    }

    #[inline]
    pub(super) fn get(&self) -> Option<Instant> {
        let micros = self.micros.load(Ordering::Acquire);
        (micros > 0).then(|| self.began + Duration::from_micros(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_is_known_by_the_quickest_reply_until_none_has_come_for_a_while() {
        let clock = ServerClock::default();
        let at = |millis: i64| Timestamp::from_micros(1_700_000_000_000_000 + millis * 1_000);
        assert_eq!(clock.now(), None);
        tokio::time::advance(Duration::from_millis(5)).await;
        clock.set(at(4));
        assert_eq!(clock.now(), Some(at(4)));
        tokio::time::advance(Duration::from_millis(10)).await;
        assert_eq!(clock.now(), Some(at(14)));
        clock.set(at(15));
        assert_eq!(clock.now(), Some(at(15)), "it was a millisecond behind");
        clock.set(at(7));
        assert_eq!(clock.now(), Some(at(14)), "read late, or set back");
        for _ in 0..100 {
            clock.set(at(-60_000));
        }
        assert!(clock.now() < Some(at(-59_000)), "set back");
        tokio::time::advance(KNOWN_FOR + Duration::from_millis(1)).await;
        assert_eq!(clock.now(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_reply_sets_a_clock_whatever_it_shows() {
        for micros in [-7_000_000_000, 7_000_000_000] {
            let clock = ServerClock::default();
            clock.set(Timestamp::from_micros(micros));
            assert!(clock.now().is_some(), "the reply arrived at once");
            let clock = ServerClock::default();
            tokio::time::advance(Duration::from_millis(5)).await;
            clock.set(Timestamp::from_micros(micros));
            assert_eq!(clock.now(), Some(Timestamp::from_micros(micros)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_a_little_behind_the_estimate_is_reached() {
        let clock = ServerClock::default();
        tokio::time::advance(Duration::from_millis(5)).await;
        let at = |micros: i64| Timestamp::from_micros(1_700_000_000_000_000 + micros);
        clock.set(at(7));
        for _ in 0..7 {
            clock.set(at(0));
        }
        assert_eq!(clock.now(), Some(at(0)));
        tokio::time::advance(KNOWN_FOR).await;
        assert!(clock.now().is_some(), "for ten seconds");
    }
}
