//! The counters of a layer, as its requests count them.
//!
//! A recorder's counter costs a call through a pointer and two atomic steps, of which a request would need three, on
//! memory that all cores write. So requests count here, each thread in a place of its own where no atomic step is
//! needed, and the sums go to the recorder a few times a second.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};

use super::own_place::{OWN_PLACES, own_place, take_place};

/// Counters in a row.
pub(super) const ROW: usize = 16;

/// Rows of counters, in as many places as threads use.
pub(super) struct Counts {
    own: [Place; OWN_PLACES],
    /// Of threads without a place of their own.
    shared: Place,
}

struct Place {
    /// A row that is found without a pointer, for the usual request.
    usual: Row,
    rows: Box<[Row]>,
}

/// Counters on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
struct Row([AtomicU64; ROW]);

/// The rows that the present thread counts in. If they are its `OWN`, no other thread writes them.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, const OWN: bool>(&'a Place);

impl Counts {
    pub(super) fn new(rows: usize) -> Self {
        let place = || Place { usual: Row::default(), rows: (0..rows).map(|_| Row::default()).collect() };
        Self { own: array::from_fn(|_| place()), shared: place() }
    }

    /// The rows of the present thread, if it has some of its own already.
    #[inline(always)]
    pub(super) fn own(&self) -> Option<Rows<'_, true>> {
        self.own.get(own_place()).map(Rows)
    }

    /// The rows of the present thread, which takes a place now if it has not asked before.
    pub(super) fn take_own(&self) -> Option<Rows<'_, true>> {
        take_place();
        self.own()
    }

    /// The rows that threads without a place of their own share.
    pub(super) fn shared(&self) -> Rows<'_, false> {
        Rows(&self.shared)
    }

    /// When the report is due that the thread of a place has begun; see [`Rows::due`].
    pub(super) fn due_of(&self, place: usize) -> &AtomicU64 {
        &self.own.get(place).unwrap_or(&self.shared).usual.0[DUE]
    }

    /// The sums of a row.
    pub(super) fn sums(&self, row: usize) -> [u64; ROW] {
        self.sums_of(|place| &place.rows[row])
    }

    /// The sums of the usual requests.
    pub(super) fn usual(&self) -> [u64; ROW] {
        self.sums_of(|place| &place.usual)
    }

    fn sums_of(&self, row: impl Fn(&Place) -> &Row) -> [u64; ROW] {
        let rows = || self.own.iter().chain([&self.shared]).map(&row);
        array::from_fn(|counter| rows().map(|row| row.0[counter].load(Ordering::Relaxed)).sum())
    }
}

impl<const OWN: bool> Rows<'_, OWN> {
    #[inline(always)]
    pub(super) fn add(self, row: usize, counter: usize, units: u64) {
        add::<OWN>(&self.0.rows[row], counter, units);
    }

    /// Adds to a counter of the usual requests.
    #[inline(always)]
    pub(super) fn add_usual(self, counter: usize, units: u64) {
        add::<OWN>(&self.0.usual, counter, units);
    }
}

#[inline(always)]
fn add<const OWN: bool>(row: &Row, counter: usize, units: u64) {
    let counter = &row.0[counter];
    if OWN {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(units), Ordering::Relaxed);
    } else {
        counter.fetch_add(units, Ordering::Relaxed);
    }
}

/// What a thread keeps of its reports, at the end of its row for usual requests: when the one is due that it has begun;
/// and of the clock, requests until its next turn to read it, requests between the last two turns, and the time of the
/// last one.
const DUE: usize = ROW - 1;
const LEFT: usize = ROW - 2;
const STEP: usize = ROW - 3;
const CHECKED: usize = ROW - 4;

/// Where requests are many, a thread reads the clock every so many µs.
const OFTEN: u64 = 5_000;
const MAX_STEP: u64 = 1 << 16;

impl<const OWN: bool> Rows<'_, OWN> {
    /// When the report is due that a request of this thread has begun, in µs; 0 if none was.
    #[inline(always)]
    pub(super) fn due(self) -> u64 {
        self.0.usual.0[DUE].load(Ordering::Relaxed)
    }

    /// Whether the present request should read the clock, to find out whether a report is overdue. Where requests are
    /// few, each does; where there are many, one in so many.
    #[inline(always)]
    pub(super) fn is_turn_to_check(self) -> bool {
        if !OWN {
            return true;
        }
        let left = &self.0.usual.0[LEFT];
        let (next, is_turn) = left.load(Ordering::Relaxed).overflowing_sub(1);
        left.store(next, Ordering::Relaxed);
        is_turn
    }

    /// Notes that the clock was read, at a time in µs, and how many requests pass until the next turn.
    pub(super) fn checked(self, now: u64) {
        let row = &self.0.usual.0;
        let since = now.saturating_sub(row[CHECKED].swap(now, Ordering::Relaxed));
        let step = row[STEP].load(Ordering::Relaxed);
        let step = if since < OFTEN { (step * 2).clamp(1, MAX_STEP) } else { step * OFTEN / since };
        row[STEP].store(step, Ordering::Relaxed);
        row[LEFT].store(step, Ordering::Relaxed);
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
    /// Which of a thread's requests, so many µs apart, read the clock.
    fn checks(requests: u64, apart: u64) -> Vec<u64> {
        let counts = Counts::new(0);
        let rows = Rows::<true>(&counts.own[0]);
        let turns = (0..requests).filter(|_| rows.is_turn_to_check());
        turns.inspect(|request| rows.checked(1_000_000 + request * apart)).collect()
    }

    #[test]
    fn each_of_few_requests_reads_the_clock_and_one_in_many_of_many() {
        assert_eq!(checks(5, OFTEN), [0, 1, 2, 3, 4]);
        assert_eq!(checks(20, 0), [0, 1, 3, 6, 11]);
        let turns = checks(1_000_000, 1);
        assert!(turns.len() < 250, "{}", turns.len());
        let longest = turns.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= 2 * OFTEN, "{longest} requests, a µs apart");
    }
}
