//! The counters of a layer, as its requests count them.
//!
//! A recorder's counter costs a call through a pointer and two atomic steps, of which a request would need three, on
//! memory that all cores write. So requests count here, each thread in a place of its own where no atomic step is
//! needed, and the sums are taken a few times a second.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

use super::own_place::Own;
use super::turns::Turns;

/// Counters in a row.
pub(in crate::observe) const ROW: usize = 16;

/// Counters in the row of the usual requests.
pub(in crate::observe) const USUAL: usize = 10;

/// Rows of counters, in as many places as threads use.
pub(in crate::observe) struct Counts {
    own: Own<Place>,
    /// Of threads without a place of their own.
    shared: Place,
}

#[derive(Default)]
struct Place {
    usual: Usual,
    rows: Box<[Row]>,
}

/// What the usual request needs, on cache lines that are found without a pointer.
#[derive(Default)]
#[repr(align(128))]
struct Usual {
    counters: [AtomicU64; USUAL],
    turns: Turns,
}

/// Counters on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Row([AtomicU64; ROW]);

/// The rows that the present thread counts in. If they are its `OWN`, no other thread writes them.
#[derive(Clone, Copy)]
pub(in crate::observe) struct Rows<'a, const OWN: bool>(&'a Place);

impl Counts {
    pub(in crate::observe) fn new(rows: usize) -> Self {
        let place = || Place { rows: (0..rows).map(|_| Row::default()).collect(), ..Place::default() };
        Self { own: Own::new(place), shared: place() }
    }

    /// The rows of the present thread, if it has some of its own already.
    #[inline(always)]
    pub(in crate::observe) fn own(&self) -> Option<Rows<'_, true>> {
        self.own.get().map(Rows)
    }

    /// The rows of the present thread, which takes a place now if it has not asked before.
    pub(in crate::observe) fn take_own(&self) -> Option<Rows<'_, true>> {
        self.own.take().map(Rows)
    }

    /// The rows that threads without a place of their own share.
    pub(in crate::observe) fn shared(&self) -> Rows<'_, false> {
        Rows(&self.shared)
    }

    /// The turns of the thread at a place.
    pub(in crate::observe) fn turns_of(&self, place: usize) -> &Turns {
        &self.own.at(place).unwrap_or(&self.shared).usual.turns
    }

    /// The sums of a row.
    pub(in crate::observe) fn sums(&self, row: usize) -> [u64; ROW] {
        self.sums_of(|place| &place.rows[row].0)
    }

    /// The sums of the usual requests.
    pub(in crate::observe) fn usual(&self) -> [u64; USUAL] {
        self.sums_of(|place| &place.usual.counters)
    }

    fn sums_of<const N: usize>(&self, row: impl Fn(&Place) -> &[AtomicU64; N]) -> [u64; N] {
        let rows = || self.own.iter().chain([&self.shared]).map(&row);
        array::from_fn(|counter| rows().map(|row| row[counter].load(Ordering::Relaxed)).sum())
    }
}

impl<'a, const OWN: bool> Rows<'a, OWN> {
    #[inline(always)]
    pub(in crate::observe) fn add(self, row: usize, counter: usize, units: u64) {
        add::<OWN>(&self.0.rows[row].0[counter], units);
    }

    /// Adds to a counter of the usual requests.
    #[inline(always)]
    pub(in crate::observe) fn add_usual(self, counter: usize, units: u64) {
        add::<OWN>(&self.0.usual.counters[counter], units);
    }

    #[inline(always)]
    pub(in crate::observe) fn turns(self) -> &'a Turns {
        &self.0.usual.turns
    }

    /// Whether it is the turn of the present request to read the clock.
    #[inline(always)]
    pub(in crate::observe) fn is_turn(self) -> bool {
        !OWN || self.turns().is_turn()
    }
}

#[inline(always)]
fn add<const OWN: bool>(counter: &AtomicU64, units: u64) {
    if OWN {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(units), Ordering::Relaxed);
    } else {
        counter.fetch_add(units, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use super::super::own_place::OWN_PLACES;
    use super::*;

    /// Threads without a place share one `Turns`. If they took turns there, some would never read the clock.
    #[test]
    fn each_request_of_a_thread_without_a_place_reads_the_clock() {
        let counts = Counts::new(1);
        let shared = counts.shared();
        for _ in 0..10 {
            assert!(shared.is_turn());
            shared.turns().taken(1_000_000);
        }
    }

    #[test]
    fn sums_are_what_all_threads_have_counted_also_those_without_a_place() {
        const THREADS: usize = 3 * OWN_PLACES;
        let (counts, all) = (Counts::new(3), Barrier::new(THREADS));
        for _ in 0..2 {
            let owners = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        owners.fetch_add(usize::from(counts.take_own().is_some()), Ordering::Relaxed);
                        all.wait();
                        assert!(
                            owners.load(Ordering::Relaxed) <= OWN_PLACES,
                            "more threads have a place than there are places"
                        );
                        for _ in 0..1_000 {
                            (0..3).for_each(|row| match counts.take_own() {
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
        let places = counts.own.iter().filter(|place| place.rows[0].0[1].load(Ordering::Relaxed) > 0).count();
        assert!(places > 1, "threads count in {places} places");
    }
}
