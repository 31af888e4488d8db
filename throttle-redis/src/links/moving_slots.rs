//! Which slots of a cluster are moving from one server to another.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;

/// How long a slot counts as moving after a server has said so.
const MEMORY: Duration = Duration::from_secs(1);

/// While a slot moves, a call about several of its keys may find them at two servers, and neither
/// runs the call.
#[derive(Default)]
pub(crate) struct MovingSlots(RwLock<HashMap<u16, Instant>>);

impl MovingSlots {
    pub(super) fn note(&self, slot: u16) {
        self.0.write().insert(slot, Instant::now());
    }

    #[inline]
    pub(crate) fn contains(&self, slot: u16) -> bool {
        let slots = self.0.read();
        slots
            .get(&slot)
            .is_some_and(|noted| noted.elapsed() < MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slot_counts_as_moving_for_a_second_after_the_last_such_answer() {
        let slots = MovingSlots::default();
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
