//! Who is in which tier, as far as it was looked up lately: bounded, and no identity is kept, only its digest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Two keyed hashes of 64 bits.
pub(super) type Digest = u128;

pub(super) struct Cache {
    places: HashMap<Digest, usize>,
    slots: Vec<Slot>,
    most: usize,
    /// Where the next newcomer looks for room.
    hand: usize,
}

struct Slot {
    digest: Digest,
    tier: u8,
    until: Instant,
    /// Asked for since the hand last passed.
    used: bool,
}

impl Cache {
    pub(super) fn new(most: usize) -> Self {
        Self { places: HashMap::new(), slots: Vec::new(), most: most.max(1), hand: 0 }
    }

    /// The tier that is still good.
    pub(super) fn get(&mut self, digest: Digest, now: Instant) -> Option<u8> {
        let slot = &mut self.slots[*self.places.get(&digest)?];
        slot.used = true;
        (now < slot.until).then_some(slot.tier)
    }

    /// The tier that was told last, good or not.
    pub(super) fn last(&self, digest: Digest) -> Option<u8> {
        Some(self.slots[*self.places.get(&digest)?].tier)
    }

    pub(super) fn keep(&mut self, digest: Digest, tier: u8, now: Instant, good_for: Duration) {
        // What cannot be told is far off.
        let until = now.checked_add(good_for).unwrap_or_else(|| now + Duration::from_secs(1 << 30));
        let slot = Slot { digest, tier, until, used: false };
        if let Some(place) = self.places.get(&digest) {
            self.slots[*place] = slot;
        } else if self.slots.len() < self.most {
            self.places.insert(digest, self.slots.len());
            self.slots.push(slot);
        } else {
            let place = self.room();
            self.places.remove(&self.slots[place].digest);
            self.places.insert(digest, place);
            self.slots[place] = slot;
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The first place that nobody has asked for since the hand last passed. It goes round once at most.
    fn room(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[self.hand];
            if !std::mem::take(&mut slot.used) {
                return self.hand;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_cached_up_to_a_bound_and_those_in_use_stay() {
        let (mut cache, now, long) = (Cache::new(4), Instant::now(), Duration::from_secs(60));
        for digest in 0..4 {
            cache.keep(digest, 1, now, long);
        }
        for stranger in 100..1_000 {
            assert_eq!(cache.get(2, now), Some(1), "in use all the time");
            cache.keep(stranger, 0, now, long);
            assert_eq!(cache.len(), 4);
        }
        assert_eq!(cache.get(1, now), None, "nobody asked for it");
    }

    #[test]
    fn plans_are_good_for_their_time_and_told_as_the_last_known_ones_after_it() {
        let (mut cache, now) = (Cache::new(4), Instant::now());
        cache.keep(7, 2, now, Duration::from_secs(1));
        assert_eq!(cache.get(7, now + Duration::from_millis(999)), Some(2));
        assert_eq!(cache.get(7, now + Duration::from_secs(1)), None);
        assert_eq!(cache.last(7), Some(2));
        cache.keep(7, 1, now, Duration::MAX);
        assert_eq!((cache.get(7, now + Duration::from_secs(9)), cache.len()), (Some(1), 1));
    }
}
