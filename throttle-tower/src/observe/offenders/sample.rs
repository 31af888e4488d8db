use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::observe::per_thread::chance::Chance;

/// Which refusals of one thread are counted: each of the first two million of a minute, and then one in 16 by chance,
/// which stands for 16. Of so many refusals a sample tells which keys are refused most, and more would only take time.
///
/// Only the thread itself writes here, but for the note that a minute has begun.
pub(super) struct Sample {
    /// Refusals until the present share of them ends: until there are enough of a minute, or until the next one is
    /// counted.
    left: AtomicU64,
    weight: AtomicU64,
    is_new_minute: AtomicBool,
    chance: Chance,
}

/// So many refusals of a minute are counted each.
const EACH: u64 = 1 << 21;

/// Beyond them, one refusal stands for so many.
const WEIGHT: u64 = 16;

impl Sample {
    pub(super) fn new() -> Self {
        Self {
            left: AtomicU64::new(EACH),
            weight: AtomicU64::new(1),
            is_new_minute: AtomicBool::new(false),
            chance: Chance::default(),
        }
    }

    /// Whether the present refusal is not counted. To be asked once for each refusal.
    #[inline(always)]
    pub(super) fn leaves_out(&self) -> bool {
        let (left, is_over) = self.left.load(Ordering::Relaxed).overflowing_sub(1);
        self.left.store(left, Ordering::Relaxed);
        if is_over {
            self.draw();
        }
        !is_over && self.weight() > 1
    }

    /// For how many refusals one stands that is counted.
    #[inline(always)]
    pub(super) fn weight(&self) -> u64 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Notes that a minute has begun. The thread finds it out with the next refusal that it counts beyond those that are
    /// counted each.
    pub(super) fn begin_minute(&self) {
        self.is_new_minute.store(true, Ordering::Relaxed);
    }

    #[cold]
    fn draw(&self) {
        let is_new_minute = self.is_new_minute.swap(false, Ordering::Relaxed);
        let (left, weight) = if is_new_minute { (EACH, 1) } else { (self.chance.up_to(2 * (WEIGHT - 1)), WEIGHT) };
        self.left.store(left, Ordering::Relaxed);
        self.weight.store(weight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(sample: &Sample, refusals: u64) -> u64 {
        (0..refusals).filter(|_| !sample.leaves_out()).map(|_| sample.weight()).sum()
    }

    #[test]
    fn first_refusals_of_a_minute_count_each_and_then_one_in_16_for_16() {
        let sample = Sample::new();
        for _ in 0..3 {
            assert_eq!((counted(&sample, EACH), sample.weight()), (EACH, 1));
            let beyond = 1 << 20;
            let counted = counted(&sample, beyond);
            assert_eq!((counted % WEIGHT, sample.weight()), (0, WEIGHT));
            assert!(counted.abs_diff(beyond) < beyond / 100, "{counted}");
            sample.begin_minute();
            while sample.weight() > 1 {
                sample.leaves_out();
            }
        }
    }

    #[test]
    fn client_in_a_rhythm_is_neither_spared_nor_counted_always() {
        let sample = Sample::new();
        counted(&sample, EACH);
        let mut hit = [0_u64; 16];
        for refusal in 0..1 << 20 {
            hit[refusal % 16] += u64::from(!sample.leaves_out());
        }
        assert!(hit.iter().all(|hit| (3_500..4_700).contains(hit)), "{hit:?}");
    }
}
