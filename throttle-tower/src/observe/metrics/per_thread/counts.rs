//! The counters of a layer, as its requests count them.
//!
//! A recorder's counter costs a call through a pointer and two atomic steps, of which a request
//! would need three, on memory that all cores write. So requests count here, each thread in a place
//! of its own where no atomic step is needed, and the sums are taken a few times a second.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

use super::own_place::Own;
use super::turns::Turns;

/// Counters in a row.
pub(in crate::observe) const ROW: usize = 16;

/// Rows of counters, in as many places as threads use.
pub(in crate::observe) struct Counts {
    own: Own<Place>,
    /// Of threads without a place of their own.
    shared: Place,
}

#[derive(Default)]
struct Place {
    rows: Box<[Row]>,
    turns: OwnTurns,
}

/// On cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct OwnTurns(Turns);

/// Counters on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Row([AtomicU64; ROW]);

/// The rows that the present thread counts in.
#[derive(Clone, Copy)]
pub(in crate::observe) struct Rows<'a> {
    place: &'a Place,
    /// Whether no other thread writes them.
    is_own: bool,
}

impl Counts {
    pub(in crate::observe) fn new(rows: usize) -> Self {
        let place = || Place {
            rows: (0..rows).map(|_| Row::default()).collect(),
            ..Place::default()
        };
        Self {
            own: Own::new(place),
            shared: place(),
        }
    }

    /// The rows of the present thread: its own, if it has a place.
    #[inline(always)]
    pub(in crate::observe) fn rows(&self) -> Rows<'_> {
        let own = self.own.take();
        Rows {
            place: own.unwrap_or(&self.shared),
            is_own: own.is_some(),
        }
    }

    /// The turns of the thread at a place.
    pub(in crate::observe) fn turns_of(&self, place: usize) -> &Turns {
        &self.own.at(place).unwrap_or(&self.shared).turns.0
    }

    /// The sums of a row. What a thread counted before what is in them is in sums that are taken
    /// later.
    pub(in crate::observe) fn sums(&self, row: usize) -> [u64; ROW] {
        let places = || self.own.iter().chain([&self.shared]);
        array::from_fn(|counter| {
            places()
                .map(|place| place.rows[row].0[counter].load(Ordering::Acquire))
                .sum()
        })
    }
}

impl<'a> Rows<'a> {
    #[inline(always)]
    pub(in crate::observe) fn add(self, row: usize, counter: usize, units: u64) {
        let counter = &self.place.rows[row].0[counter];
        if self.is_own {
            counter.store(
                counter.load(Ordering::Relaxed).wrapping_add(units),
                Ordering::Release,
            );
        } else {
            counter.fetch_add(units, Ordering::Release);
        }
    }

    #[inline(always)]
    pub(in crate::observe) fn turns(self) -> &'a Turns {
        &self.place.turns.0
    }

    /// Whether it is the turn of the present request to read the clock.
    #[inline(always)]
    pub(in crate::observe) fn is_turn(self) -> bool {
        !self.is_own || self.turns().is_turn()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    use super::super::own_place::OWN_PLACES;
    use super::*;

    /// Threads without a place share one `Turns`. If they took turns there, some would never read
    /// the clock.
    #[test]
    fn each_request_of_a_thread_without_a_place_reads_the_clock() {
        let counts = Counts::new(1);
        let shared = Rows {
            place: &counts.shared,
            is_own: false,
        };
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
                        owners.fetch_add(usize::from(counts.rows().is_own), Ordering::Relaxed);
                        all.wait();
                        assert!(
                            owners.load(Ordering::Relaxed) <= OWN_PLACES,
                            "more threads have a place than there are places"
                        );
                        for _ in 0..1_000 {
                            (0..3).for_each(|row| counts.rows().add(row, row + 1, 2));
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
        let places = counts
            .own
            .iter()
            .filter(|place| place.rows[0].0[1].load(Ordering::Relaxed) > 0)
            .count();
        assert!(places > 1, "threads count in {places} places");
    }
}
