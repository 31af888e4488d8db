//! What lookups told lately: bounded, and by the identity's digest, so that no identity is kept.

use std::time::Duration;

use tokio::time::Instant;

use super::told::Told;

/// Two keyed hashes of 64 bits.
pub(super) type Digest = u128;

/// Slots in a row. Each half of a digest names a row, and the identity is in one of the two.
const ROW: usize = 4;

/// The slots that an identity may be in.
type Places = [usize; 2 * ROW];

/// A table of fixed size: whatever it holds, a request looks at the slots of one identity and no others, and nothing is
/// ever moved.
pub(super) struct Cache {
    slots: Box<[Option<Slot>]>,
}

struct Slot {
    digest: Digest,
    told: Told,
    until: Instant,
    /// Whether it was asked for since a newcomer came by last.
    used: bool,
}

impl Cache {
    /// Room for about `most` identities.
    pub(super) fn new(most: usize) -> Self {
        let slots = most.div_ceil(ROW).max(2) * ROW;
        Self { slots: std::iter::repeat_with(|| None).take(slots).collect() }
    }

    /// What was told, while it is good.
    pub(super) fn get(&mut self, digest: Digest, now: Instant) -> Option<Told> {
        let place = self.find(digest)?;
        let slot = self.slots[place].as_mut()?;
        slot.used = true;
        (now < slot.until).then_some(slot.told)
    }

    /// What was told last, good or not.
    pub(super) fn last(&self, digest: Digest) -> Option<Told> {
        self.slots[self.find(digest)?].as_ref().map(|slot| slot.told)
    }

    /// Remembers what was told. Where there is no room another identity is forgotten for it, but never a tier for an
    /// identity of which nothing was ever told: requests that make up identities while lookups fail must not displace
    /// the known ones.
    pub(super) fn keep(&mut self, digest: Digest, told: Told, now: Instant, good_for: Duration) {
        // An instant that cannot be represented is far off.
        let until = now.checked_add(good_for).unwrap_or_else(|| now + Duration::from_secs(1 << 30));
        let place = self.find(digest).unwrap_or_else(|| self.room(digest));
        let slot = &mut self.slots[place];
        let displaced = slot.as_ref().filter(|slot| slot.digest != digest);
        if told == Told::Nothing && displaced.is_some_and(|slot| matches!(slot.told, Told::Tier(_))) {
            return;
        }
        *slot = Some(Slot { digest, told, until, used: false });
    }

    fn places(&self, digest: Digest) -> Places {
        let rows = (self.slots.len() / ROW) as u64;
        let (low, high) = (digest as u64, (digest >> 64) as u64);
        let one = low % rows;
        // Never the same row.
        let other = (one + 1 + high % (rows - 1)) % rows;
        // In turn, so that a newcomer goes where more slots are free.
        std::array::from_fn(|n| [one, other][n % 2] as usize * ROW + n / 2)
    }

    fn find(&self, digest: Digest) -> Option<usize> {
        let is_there = |place: &usize| self.slots[*place].as_ref().is_some_and(|slot| slot.digest == digest);
        self.places(digest).into_iter().find(is_there)
    }

    /// A free slot, or else one that was not used since a newcomer came by last, or else any.
    fn room(&mut self, digest: Digest) -> usize {
        let places = self.places(digest);
        if let Some(free) = places.into_iter().find(|place| self.slots[*place].is_none()) {
            return free;
        }
        // From anywhere, or newcomers would only ever displace each other.
        let start = (digest >> 32) as usize % places.len();
        let mut unused =
            |place: &usize| !self.slots[*place].as_mut().is_some_and(|slot| std::mem::take(&mut slot.used));
        places.into_iter().cycle().skip(start).take(places.len()).find(&mut unused).unwrap_or(places[start])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const PRO: Told = Told::Tier(1);

    /// A number as a digest both of whose halves depend on it.
    fn digest(n: u64) -> Digest {
        u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }

    fn in_use(cache: &Cache) -> usize {
        cache.slots.iter().flatten().filter(|slot| slot.used).count()
    }

    #[test]
    fn cache_keeps_identities_in_use() {
        let (mut cache, now) = (Cache::new(8), Instant::now());
        for n in 0..8 {
            cache.keep(digest(n), PRO, now, LONG);
        }
        for newcomer in 100..1_000 {
            assert_eq!(cache.get(digest(2), now), Some(PRO), "in use all the time");
            cache.keep(digest(newcomer), Told::Unknown, now, LONG);
        }
        assert_eq!(cache.get(digest(1), now), None, "not asked for");
    }

    #[test]
    fn cache_remembers_nearly_as_many_identities_as_it_has_room_for() {
        let (mut cache, now) = (Cache::new(10_000), Instant::now());
        for n in 0..10_000 {
            cache.keep(digest(n), PRO, now, LONG);
        }
        let remembered = (0..10_000).filter(|n| cache.last(digest(*n)).is_some()).count();
        assert!(remembered > 9_000, "{remembered} of 10,000");
    }

    #[test]
    fn law_12_newcomer_looks_at_eight_slots_however_many_are_in_use() {
        let (mut cache, now) = (Cache::new(10_000), Instant::now());
        for n in 0..30_000 {
            cache.keep(digest(n), PRO, now, LONG);
        }
        for newcomer in 50_000..51_000 {
            cache.slots.iter_mut().flatten().for_each(|slot| slot.used = true);
            let before = in_use(&cache);
            cache.keep(digest(newcomer), PRO, now, LONG);
            let looked_at = before - in_use(&cache);
            assert_eq!(looked_at, 8, "all are in use, so each is passed over once");
            assert_eq!(cache.get(digest(newcomer), now), Some(PRO), "kept though all were in use");
        }
    }

    #[test]
    fn cache_tells_the_last_tier_after_its_time() {
        let (mut cache, now) = (Cache::new(4), Instant::now());
        cache.keep(7, Told::Tier(2), now, Duration::from_secs(1));
        assert_eq!(cache.get(7, now + Duration::from_millis(999)), Some(Told::Tier(2)));
        assert_eq!(cache.get(7, now + Duration::from_secs(1)), None);
        assert_eq!(cache.last(7), Some(Told::Tier(2)));
        cache.keep(7, PRO, now, Duration::MAX);
        assert_eq!(cache.get(7, now + Duration::from_secs(9)), Some(PRO));
        assert_eq!(cache.slots.iter().flatten().count(), 1);
    }

    #[test]
    fn cache_forgets_no_tier_for_an_identity_of_which_nothing_was_told() {
        let (mut cache, now) = (Cache::new(8), Instant::now());
        for n in 0..7 {
            cache.keep(digest(n), PRO, now, LONG);
        }
        cache.keep(digest(7), Told::Unknown, now, LONG);
        for made_up in 100..1_000 {
            cache.keep(digest(made_up), Told::Nothing, now, LONG);
        }
        for n in 0..7 {
            assert_eq!(cache.last(digest(n)), Some(PRO));
        }
        assert_eq!(cache.last(digest(7)), None, "the unknown one has made room");
    }
}
