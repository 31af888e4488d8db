//! One writer at a time, and readers that write nothing: a counter tells a reader whether what it has read was changed
//! meanwhile. (A sequence lock; its fences are those of Boehm, "Can seqlocks get along with programming language memory
//! models?", 2012.)

use std::sync::atomic::Ordering;

use super::sync::{AtomicU64, fence, spin_loop, yield_now};

/// Twice the number of changes; odd during a change.
#[derive(Debug, Default)]
pub(super) struct Version(AtomicU64);

/// The version that a reader has found before it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u64);

/// The right to change, which one thread at a time has. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Change<'a> {
    version: &'a Version,
    seen: Seen,
}

impl Version {
    /// Times that a thread looks again before it lets others run.
    const SPINS: u32 = 100;

    /// The present version; `None` during a change.
    #[inline]
    pub(super) fn seen(&self) -> Option<Seen> {
        let version = self.0.load(Ordering::Acquire);
        version.is_multiple_of(2).then_some(Seen(version))
    }

    /// Whether nothing was changed since. If so, what was read in between was all there at the same time.
    #[inline]
    pub(super) fn is_still(&self, seen: Seen) -> bool {
        // What was read before must not be read after.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == seen.0
    }

    /// Begins a change, if nothing was changed since. Then what was read in between holds until the change ends.
    #[inline]
    pub(super) fn begin(&self, seen: Seen) -> Option<Change<'_>> {
        self.0.compare_exchange(seen.0, seen.0 + 1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // A reader that finds what is written from here on finds the odd version too.
        fence(Ordering::Release);
        Some(Change { version: self, seen })
    }

    /// Waits for the change of another thread, which is a few writes, and begins one.
    #[inline]
    pub(super) fn wait_to_begin(&self) -> Change<'_> {
        match self.seen().and_then(|seen| self.begin(seen)) {
            Some(change) => change,
            None => self.keep_trying_to_begin(),
        }
    }

    #[cold]
    fn keep_trying_to_begin(&self) -> Change<'_> {
        let mut spins = 0;
        loop {
            if let Some(change) = self.seen().and_then(|seen| self.begin(seen)) {
                return change;
            }
            spins += 1;
            // The other thread may have lost its processor in the middle of the change.
            if spins < Self::SPINS { spin_loop() } else { yield_now() }
        }
    }
}

impl Drop for Change<'_> {
    #[inline]
    fn drop(&mut self) {
        self.version.0.store(self.seen.0 + 2, Ordering::Release);
    }
}
