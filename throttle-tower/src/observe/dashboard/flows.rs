use std::sync::atomic::{AtomicU64, Ordering};

use super::changes::Changes;
use crate::observe::decider::Decider;
use crate::{Event, Outcome};

/// Counts requests by the second. A request adds to a few numbers, and waits for nothing.
#[derive(Default)]
pub(super) struct Flows {
    /// Since the start.
    outcomes: [AtomicU64; Outcome::LABELS.len()],
    pub(super) requests: Flow,
    pub(super) changes: Changes,
    /// Decisions, by the index of the decider.
    pub(super) deciders: [TenSecondCounts; Decider::ALL.len()],
}

/// Requests of each of the last two minutes' seconds.
#[derive(Default)]
pub(super) struct Flow {
    pub(super) admitted: SecondCounts,
    pub(super) refused: SecondCounts,
}

/// The running second, 120 before it, and some that make indexing cheap.
pub(super) type SecondCounts = Buckets<128>;

/// By ten seconds: the running ones, and twelve times ten before them.
pub(super) type TenSecondCounts = Buckets<16>;

/// The number of the first second: two minutes before it have numbers too.
const FIRST: u32 = 1_200;

pub(super) const TEN: u32 = 10;

impl Flows {
    /// Counts a request of a second.
    pub(super) fn count(&self, second: u32, event: &Event<'_>) {
        self.outcomes[event.outcome.index()].fetch_add(1, Ordering::Relaxed);
        let Flow { admitted, refused } = &self.requests;
        if event.outcome.is_passed_on() {
            admitted
        } else {
            refused
        }
        .count(second);
        if let Some(decider) = Decider::of(event) {
            self.deciders[decider as usize].count(second / TEN);
            self.changes.note(second, decider, event.degraded());
        }
    }

    /// How many requests had each of the [labels](Outcome::LABELS), since the start.
    pub(super) fn outcomes(&self) -> [u64; Outcome::LABELS.len()] {
        self.outcomes
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }
}

/// The number of a second since the start.
pub(super) fn second(running: u64) -> u32 {
    u32::try_from(running)
        .unwrap_or(u32::MAX)
        .saturating_add(FIRST)
}

/// Counts of the latest `N` units of time, in a ring. Nothing waits: each bucket is one number,
/// whose upper half is the unit that its lower half counts.
pub(super) struct Buckets<const N: usize>(Box<[AtomicU64; N]>);

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; N]))
    }
}

impl<const N: usize> Buckets<N> {
    /// Counts one more in a unit.
    #[inline]
    pub(super) fn count(&self, unit: u32) {
        let bucket = self.bucket(unit);
        // A counter of this unit is only added to: under load that is cheaper than an exchange,
        // which may fail.
        if split(bucket.load(Ordering::Relaxed)).0 == unit {
            bucket.fetch_add(1, Ordering::Relaxed);
        } else {
            self.change(unit, |count| count.saturating_add(1));
        }
    }

    /// Raises the number of a unit to at least `value`.
    pub(super) fn raise(&self, unit: u32, value: u64) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.change(unit, |most| most.max(value));
    }

    /// The number of a unit; 0 if it is too long ago.
    pub(super) fn get(&self, unit: u32) -> u32 {
        match split(self.bucket(unit).load(Ordering::Relaxed)) {
            (counted, count) if counted == unit => count,
            _ => 0,
        }
    }

    /// A call that is late by a whole round of the ring must not wipe out what is newer.
    fn change(&self, unit: u32, change: impl Fn(u32) -> u32) {
        let _ = self
            .bucket(unit)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                match split(old) {
                    (counted, count) if counted == unit => Some(join(unit, change(count))),
                    (counted, _) if counted > unit => None,
                    _ => Some(join(unit, change(0))),
                }
            });
    }

    fn bucket(&self, unit: u32) -> &AtomicU64 {
        &self.0[unit as usize % N]
    }
}

const fn split(bucket: u64) -> (u32, u32) {
    ((bucket >> 32) as u32, bucket as u32)
}

const fn join(unit: u32, count: u32) -> u64 {
    (unit as u64) << 32 | count as u64
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn bucket_counts_its_own_unit_only() {
        let buckets = Buckets::<4>::default();
        for unit in [9, 9, 10, 13, 13, 13] {
            buckets.count(unit);
        }
        assert_eq!(
            [9, 10, 11, 12, 13].map(|unit| buckets.get(unit)),
            [0, 1, 0, 0, 3],
            "13 has taken the place of 9"
        );
        buckets.count(9);
        assert_eq!(
            (buckets.get(9), buckets.get(13)),
            (0, 3),
            "a late count does not wipe out what is newer"
        );
    }

    #[test]
    fn raised_bucket_keeps_the_most_of_its_unit() {
        let buckets = Buckets::<4>::default();
        for (unit, value) in [(5, 7), (5, 3), (5, 9), (6, 2), (7, u64::MAX)] {
            buckets.raise(unit, value);
        }
        assert_eq!([5, 6, 7].map(|unit| buckets.get(unit)), [9, 2, u32::MAX]);
    }

    #[test]
    fn no_count_is_lost_while_threads_turn_the_ring_together() {
        let buckets = Buckets::<128>::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..40_000_u32).for_each(|n| buckets.count(500 + n / 400)));
            }
        });
        assert!((500..600).all(|unit| buckets.get(unit) == 1_600));
    }
}
