use std::time::Duration;

use tokio::time::Instant;

/// A process looks at a key after this time, if calls of it leave.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A pause that ends later than another by less than this is the same one, heard in another
/// response.
const SAME: Duration = Duration::from_millis(50);

/// What this process knows of the pauses of its fleet, for one key.
pub(super) struct FleetPause {
    look_at: Instant,
    /// The end of a pause that this process has read at the store, or writes there.
    known_until: Instant,
}

impl FleetPause {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            look_at: now,
            known_until: now,
        }
    }

    /// Returns whether it is time to look, and begins the time until the next look.
    pub(super) fn begin_look(&mut self, now: Instant) -> bool {
        let is_due = self.look_at <= now;
        if is_due {
            self.look_at = now + LOOK_EVERY;
        }
        is_due
    }

    /// Notes the end of a pause. Returns whether it was not known.
    pub(super) fn note(&mut self, until: Instant) -> bool {
        let is_news = until > self.known_until + SAME;
        if is_news {
            self.known_until = until;
        }
        is_news
    }

    /// The pause is not at the store.
    pub(super) fn forget(&mut self, now: Instant) {
        self.known_until = now;
    }

    pub(super) fn is_needed(&self, now: Instant) -> bool {
        self.look_at.max(self.known_until) > now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_pause_that_ends_a_little_later_is_the_same_one() {
        let now = Instant::now();
        let mut fleet = FleetPause::new(now);
        let until = now + Duration::from_secs(1);
        assert!(!fleet.note(now + SAME) && fleet.note(until));
        assert!(!fleet.note(until + SAME) && !fleet.note(now));
        assert!(fleet.note(until + SAME + Duration::from_nanos(1)));
        fleet.forget(now);
        assert!(fleet.note(until));
    }

    /// However many other keys are used meanwhile, such a pause is not announced again.
    #[test]
    fn shape_pause_of_the_fleet_is_kept_until_its_end() {
        let now = Instant::now();
        let mut fleet = FleetPause::new(now);
        assert!(!fleet.is_needed(now));
        assert!(fleet.begin_look(now) && !fleet.begin_look(now));
        assert!(fleet.is_needed(now) && !fleet.is_needed(now + LOOK_EVERY));
        let until = now + Duration::from_secs(10);
        assert!(fleet.note(until));
        assert!(fleet.is_needed(until - LOOK_EVERY) && !fleet.is_needed(until));
    }
}
