use std::sync::atomic::{AtomicU64, Ordering};

use super::buckets::Buckets;
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
