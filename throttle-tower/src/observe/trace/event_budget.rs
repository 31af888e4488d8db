use std::sync::atomic::{AtomicU64, Ordering};

/// Events in each second.
pub(super) const PER_SECOND: u64 = 10;

/// Decides which events are emitted, without a lock. Every event is emitted, or counted by the next
/// one that is.
#[derive(Default)]
pub(crate) struct EventBudget {
    /// The number of the latest second, and in the low byte how many of its events were emitted.
    emitted: AtomicU64,
    /// Since the last event.
    left_out: AtomicU64,
}

const COUNT_BITS: u32 = 8;

impl EventBudget {
    /// Returns how many events were left out before this one; `None` if this one is left out, too.
    pub(crate) fn take(&self, second: u64) -> Option<u64> {
        let take = |emitted: u64| {
            let (latest, count) = (emitted >> COUNT_BITS, emitted % (1 << COUNT_BITS));
            // A thread that read the clock before another one may come after it.
            if second > latest {
                Some(second << COUNT_BITS | 1)
            } else {
                (count < PER_SECOND).then_some(emitted + 1)
            }
        };
        if self
            .emitted
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
        {
            return Some(self.left_out.swap(0, Ordering::Relaxed));
        }
        self.left_out.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn ten_events_are_emitted_in_each_second_and_the_next_one_counts_the_rest() {
        let budget = EventBudget::default();
        let taken = |second, n| {
            (0..n)
                .filter_map(|_| budget.take(second))
                .collect::<Vec<_>>()
        };
        assert_eq!(taken(0, 25), [0; 10]);
        assert_eq!(taken(1, 3), [15, 0, 0]);
        assert_eq!(
            taken(0, 10),
            [0; 7],
            "a late thread counts in the latest second"
        );
        assert_eq!(taken(9, 1), [3]);
    }

    #[test]
    fn threads_lose_no_event() {
        const EACH: u64 = 20_000;
        let budget = EventBudget::default();
        let count = &|second: u64| {
            let taken = (0..EACH).filter_map(|n| budget.take(second + n / 500));
            taken.fold((0, 0), |(events, left_out), left| {
                (events + 1, left_out + left)
            })
        };
        let (events, left_out) = thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|second| scope.spawn(move || count(second)));
            let counts = threads.map(|thread| thread.join().unwrap());
            counts
                .into_iter()
                .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        });
        assert!(events <= PER_SECOND * (EACH / 500 + 3), "{events}");
        assert_eq!(
            events + left_out + budget.left_out.load(Ordering::Relaxed),
            4 * EACH
        );
    }
}
