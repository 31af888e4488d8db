//! Which slots of a cluster are moving from one server to another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long a slot counts as moving after a server has said so.
const MEMORY: Duration = Duration::from_secs(1);

/// Slots that share an entry count as moving together, which costs calls and nothing else.
const ENTRIES: usize = 256;

/// While a slot moves, a call about several of its keys may find them at two servers, and neither
/// runs the call.
pub(crate) struct MovingSlots {
    began: Instant,
    /// For each entry, when a server last said so, in microseconds since the beginning; 0 for
    /// never.
    noted: [AtomicU64; ENTRIES],
}

impl MovingSlots {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            noted: [const { AtomicU64::new(0) }; ENTRIES],
        }
    }

    pub(super) fn note(&self, slot: u16) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.entry(slot).store(micros.max(1), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn contains(&self, slot: u16) -> bool {
        match self.entry(slot).load(Ordering::Relaxed) {
            0 => false,
            noted => self.began.elapsed() < Duration::from_micros(noted) + MEMORY,
        }
    }

    fn entry(&self, slot: u16) -> &AtomicU64 {
        &self.noted[usize::from(slot) % ENTRIES]
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slot_counts_as_moving_for_a_second_after_the_last_such_answer() {
        let slots = MovingSlots::new();
        assert!(!slots.contains(7));
        slots.note(7);
        assert!(slots.contains(7) && !slots.contains(8));
        advance(MEMORY / 2).await;
        slots.note(7);
        advance(MEMORY - Duration::from_micros(1)).await;
        assert!(slots.contains(7));
        advance(Duration::from_micros(2)).await;
        assert!(!slots.contains(7));
    }
}
