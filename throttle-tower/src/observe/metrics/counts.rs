//! The counters of a layer, as its requests count them.
//!
//! A recorder's counter costs a call through a pointer and two atomic steps, of which a request would need three, on
//! memory that all cores write. So requests count here, each thread in a place of its own where no atomic step is
//! needed, and the sums go to the recorder a few times a second.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many threads have a place of their own. Others share the last one.
const OWN_PLACES: usize = 16;
/// Counters in a row.
pub(super) const ROW: usize = 16;

/// Rows of counters, in as many places as threads use.
pub(super) struct Counts([Box<[Row]>; OWN_PLACES + 1]);

/// Counters on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Row([AtomicU64; ROW]);

/// The rows that the present thread counts in. If they are its `OWN`, no other thread writes them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, const OWN: bool>(&'a [Row]);

impl Counts {
    pub(super) fn new(rows: usize) -> Self {
        Self(array::from_fn(|_| (0..rows).map(|_| Row::default()).collect()))
    }

    /// The rows of the present thread, if it has some of its own.
    #[inline]
    pub(super) fn own(&self) -> Option<Rows<'_, true>> {
        own_place().map(|place| Rows(&self.0[place]))
    }

    /// The rows that threads without a place of their own share.
    pub(super) fn shared(&self) -> Rows<'_, false> {
        Rows(&self.0[OWN_PLACES])
    }

    /// The sums of a row.
    pub(super) fn sums(&self, row: usize) -> [u64; ROW] {
        array::from_fn(|counter| {
            let counts = self.0.iter().map(|place| place[row].0[counter].load(Ordering::Relaxed));
            counts.sum()
        })
    }
}

impl<const OWN: bool> Rows<'_, OWN> {
    #[inline(always)]
    pub(super) fn add(self, row: usize, counter: usize, units: u64) {
        let counter = &self.0[row].0[counter];
        if OWN {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(units), Ordering::Relaxed);
        } else {
            counter.fetch_add(units, Ordering::Relaxed);
        }
    }
}

/// Threads that run at the same time have different places of their own.
#[inline]
fn own_place() -> Option<usize> {
    thread_local! {
        static PLACE: Taken = Taken::next();
    }
    // A thread that ends may count once more.
    PLACE.try_with(|taken| taken.0).ok()?
}

/// The place of a thread, until the thread ends.
struct Taken(Option<usize>);

/// A bit for each place that a thread has.
static TAKEN: AtomicU64 = AtomicU64::new(0);

impl Taken {
    fn next() -> Self {
        let take = |taken: u64| Some(taken | 1 << free(taken)?);
        // What the thread before has counted in the place is seen by this one.
        let before = TAKEN.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        Self(before.ok().and_then(free))
    }
}

fn free(taken: u64) -> Option<usize> {
    let place = taken.trailing_ones() as usize;
    (place < OWN_PLACES).then_some(place)
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            TAKEN.fetch_and(!(1 << place), Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn sums_are_what_all_threads_have_counted_also_those_without_a_place() {
        const THREADS: usize = 3 * OWN_PLACES;
        let (counts, all) = (Counts::new(3), Barrier::new(THREADS));
        for _ in 0..2 {
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        all.wait();
                        for _ in 0..1_000 {
                            (0..3).for_each(|row| match counts.own() {
                                Some(rows) => rows.add(row, row + 1, 2),
                                None => counts.shared().add(row, row + 1, 2),
                            });
                        }
                        all.wait();
                    });
                }
            });
        }
        for row in 0..3 {
            let sums = counts.sums(row);
            assert_eq!((sums[row + 1], sums[row]), (2 * THREADS as u64 * 2_000, 0));
        }
        let places = counts.0.iter().filter(|place| place[0].0[1].load(Ordering::Relaxed) > 0).count();
        assert!(places > 1, "threads count in {places} places");
    }
}
