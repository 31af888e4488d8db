//! One writer at a time, and readers that write nothing: a counter tells a reader whether what it
//! has read was changed meanwhile. (A sequence lock; its fences are those of Boehm, "Can seqlocks
//! get along with programming language memory models?", 2012.)

use std::sync::atomic::Ordering;

use super::sync::{AtomicU32, AtomicU64, fence, spin_loop, yield_now};

#[derive(Debug, Default)]
pub(super) struct Version {
    /// The number of changes, and two flags: [`CHANGING`] and [`DISPUTED`].
    number: AtomicU64,
    /// Changes for which the dispute lasts.
    dispute: AtomicU32,
}

/// A thread is changing something.
const CHANGING: u64 = 1;
/// Threads have disturbed each other of late, so it is cheaper to begin a change before reading.
const DISPUTED: u64 = 2;
const ONE_CHANGE: u64 = 4;

/// The version that a reader has found before it read, without flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeenVersion(u64);

/// The right to change, which one thread at a time has. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Change<'a> {
    version: &'a Version,
    next: u64,
}

impl Version {
    /// The longest pause, in turns of a loop, before a thread looks again. Waiting threads leave
    /// the one that changes something alone, so it may change several things at little cost.
    const LONGEST_PAUSE: u32 = if cfg!(all(test, throttle_models)) {
        1
    } else {
        64
    };
    /// Changes after which threads try again whether they disturb each other.
    const DISPUTE: u32 = if cfg!(all(test, throttle_models)) {
        1
    } else {
        256
    };

    /// The present version; `None` during a change or a dispute.
    #[inline]
    pub(super) fn seen(&self) -> Option<SeenVersion> {
        let number = self.number.load(Ordering::Acquire);
        (number & (CHANGING | DISPUTED) == 0).then_some(SeenVersion(number))
    }

    /// Whether nothing was changed since. If so, what was read in between was all there at the same
    /// time.
    #[inline]
    pub(super) fn is_still(&self, seen: SeenVersion) -> bool {
        // What was read before must not be read after.
        fence(Ordering::Acquire);
        self.number.load(Ordering::Relaxed) == seen.0
    }

    /// Begins a change, if nothing was changed since. Then what was read in between holds until the
    /// change ends.
    #[inline]
    pub(super) fn begin(&self, seen: SeenVersion) -> Option<Change<'_>> {
        self.begin_from(seen.0)
    }

    /// Waits for the change of another thread, which is a few writes, and begins one.
    #[inline]
    pub(super) fn wait_to_begin(&self) -> Change<'_> {
        self.try_to_begin()
            .unwrap_or_else(|| self.keep_trying_to_begin())
    }

    /// Begins a change, unless another thread has begun one.
    #[inline]
    pub(super) fn try_to_begin(&self) -> Option<Change<'_>> {
        let number = self.number.load(Ordering::Relaxed);
        let mut change = if number & CHANGING == 0 {
            self.begin_from(number)?
        } else {
            return None;
        };
        if number & DISPUTED > 0 {
            change.count();
        }
        Some(change)
    }

    #[inline]
    fn begin_from(&self, number: u64) -> Option<Change<'_>> {
        self.number
            .compare_exchange(
                number,
                number | CHANGING,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .ok()?;
        // A reader that finds what is written from here on finds the flag too.
        fence(Ordering::Release);
        Some(Change {
            version: self,
            next: number + ONE_CHANGE,
        })
    }

    fn keep_trying_to_begin(&self) -> Change<'_> {
        let mut pause = 1;
        loop {
            (0..pause).for_each(|_| spin_loop());
            if let Some(change) = self.try_to_begin() {
                return change;
            }
            if pause < Self::LONGEST_PAUSE {
                pause *= 2;
            } else {
                // The other thread may have lost its processor in the middle of the change.
                yield_now();
            }
        }
    }
}

impl Change<'_> {
    /// Makes other threads begin their changes before they read, for some changes.
    pub(super) fn begin_dispute(&mut self) {
        self.dispute_for(Version::DISPUTE);
    }

    /// Counts a change during a dispute. The last one ends it.
    fn count(&mut self) {
        self.dispute_for(
            self.version
                .dispute
                .load(Ordering::Relaxed)
                .saturating_sub(1),
        );
    }

    fn dispute_for(&mut self, changes: u32) {
        self.version.dispute.store(changes, Ordering::Relaxed);
        self.next = if changes > 0 {
            self.next | DISPUTED
        } else {
            self.next & !DISPUTED
        };
    }
}

impl Drop for Change<'_> {
    #[inline]
    fn drop(&mut self) {
        self.version.number.store(self.next, Ordering::Release);
    }
}

#[cfg(all(test, not(throttle_models)))]
mod tests {
    use super::*;

    #[test]
    fn a_dispute_keeps_readers_away_for_a_stated_number_of_changes() {
        let version = Version::default();
        let before = version.seen().unwrap();
        version.wait_to_begin().begin_dispute();
        assert!(!version.is_still(before));
        for change in 0..Version::DISPUTE {
            assert_eq!(version.seen(), None, "after {change} changes");
            drop(version.wait_to_begin());
        }
        let after = version.seen().unwrap();
        assert!(version.begin(before).is_none(), "there were changes since");
        assert!(version.begin(after).is_some());
        assert!(!version.is_still(after));
    }

    #[test]
    fn one_thread_at_a_time_may_change() {
        let version = Version::default();
        let change = version.wait_to_begin();
        assert!(version.try_to_begin().is_none() && version.seen().is_none());
        drop(change);
        assert!(version.try_to_begin().is_some());
    }
}
