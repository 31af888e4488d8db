//! The places in which threads count without atomic steps.

use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many threads have a place of their own.
pub(in crate::observe) const OWN_PLACES: usize = 16;

/// One of a kind for each thread that has a place of its own.
pub(in crate::observe) struct Own<T>([T; OWN_PLACES]);

impl<T> Own<T> {
    pub(in crate::observe) fn new(one: impl Fn() -> T) -> Self {
        Self(array::from_fn(|_| one()))
    }

    /// That of the present thread, which takes a place now if it has not asked before.
    #[inline(always)]
    pub(in crate::observe) fn take(&self) -> Option<&T> {
        if own_place() == UNKNOWN {
            take_place();
        }
        self.0.get(own_place())
    }

    /// That of the thread with a place of its own.
    pub(in crate::observe) fn at(&self, place: usize) -> Option<&T> {
        self.0.get(place)
    }

    pub(in crate::observe) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

/// What stands for the place of a thread that has none, because all are taken or because the thread
/// ends.
const NONE: usize = OWN_PLACES;
/// What stands for the place of a thread that has not asked for one yet.
const UNKNOWN: usize = usize::MAX;

thread_local! {
    /// Apart from what is dropped with the thread, so that reading it takes two instructions.
    static PLACE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static TAKEN_BY_THREAD: Taken = Taken::next();
}

/// The place of the present thread. It is [`OWN_PLACES`] or more if the thread has none of its own,
/// or none yet. Threads that run at the same time have different places of their own.
#[inline(always)]
pub(in crate::observe) fn own_place() -> usize {
    PLACE.get()
}

/// Takes a place for the present thread.
#[cold]
fn take_place() {
    // A thread that ends may count once more.
    let taken = TAKEN_BY_THREAD.try_with(|taken| taken.0);
    PLACE.set(taken.ok().flatten().unwrap_or(NONE));
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
        PLACE.set(NONE);
        if let Some(place) = self.0 {
            TAKEN.fetch_and(!(1 << place), Ordering::AcqRel);
        }
    }
}

/// Makes the present thread one of those that have no place of their own.
#[cfg(test)]
pub(in crate::observe) fn give_up_place() {
    PLACE.set(NONE);
}
