//! Which requests of a thread read the clock: reading it costs as much as counting.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a thread keeps of its turns to read the clock, and of the report that it has begun. Only
/// the thread itself writes it, except for [`due`](Self::due).
#[derive(Default)]
pub(in crate::observe) struct Turns {
    /// Requests until the next turn.
    left: AtomicU64,
    /// Requests between the last two turns.
    step: AtomicU64,
    /// The time of the last turn, in µs.
    last: AtomicU64,
    /// When the report is due that a request of this thread has begun, in µs; [`NONE`] if none was.
    pub(in crate::observe) due: AtomicU64,
}

/// Stands for no report that is due.
pub(in crate::observe) const NONE: u64 = 0;

/// Where requests are many, the time between two turns, in µs.
const APART: u64 = 5_000;
/// The most requests between two turns.
const MOST: u64 = 1 << 16;

impl Turns {
    /// Whether it is the turn of the present request. Where requests are few, each has one; where
    /// there are many, one in so many.
    #[inline(always)]
    pub(in crate::observe) fn is_turn(&self) -> bool {
        let (next, is_turn) = self.left.load(Ordering::Relaxed).overflowing_sub(1);
        self.left.store(next, Ordering::Relaxed);
        is_turn
    }

    #[inline(always)]
    pub(in crate::observe) fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// Notes the time of a turn, in µs, and how many requests pass until the next one.
    pub(in crate::observe) fn taken(&self, now: u64) {
        let since = now.saturating_sub(self.last.swap(now, Ordering::Relaxed));
        let step = self.step.load(Ordering::Relaxed);
        let step = if since >= APART {
            step * APART / since
        } else {
            (step * 2).clamp(1, MOST)
        };
        self.step.store(step, Ordering::Relaxed);
        self.left.store(step, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of a thread's requests, so many µs apart, have a turn.
    fn turns(requests: u64, apart: u64) -> Vec<u64> {
        let turns = Turns::default();
        let have_one = (0..requests).filter(|_| turns.is_turn());
        have_one
            .inspect(|request| turns.taken(1_000_000 + request * apart))
            .collect()
    }

    #[test]
    fn each_of_few_requests_reads_the_clock_and_one_in_many_of_many() {
        assert_eq!(turns(5, APART), [0, 1, 2, 3, 4]);
        assert_eq!(turns(20, 0), [0, 1, 3, 6, 11]);
        let taken = turns(1_000_000, 1);
        assert!(taken.len() < 250, "{}", taken.len());
        let longest = taken
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .max()
            .unwrap();
        assert!(longest <= 2 * APART, "{longest} requests, a µs apart");
    }
}
