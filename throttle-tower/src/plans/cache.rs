//! Remembers tiers: a bounded number of them, by digest, so that no identity is kept.

use std::time::Duration;

use tokio::time::Instant;

use super::identity::Digest;
use super::identity_tier::IdentityTier;
use crate::time::micros;

/// Slots in a row. Each half of a digest names a row, and the identity is in one of the two.
const ROW: usize = 4;

/// The slots that an identity may be in.
type SlotIndices = [usize; 2 * ROW];

/// A table of fixed size. However full it is, a request reads the slots of one identity only, and
/// no entry is ever moved.
pub(super) struct TierCache {
    began: Instant,
    slots: Box<[Option<Slot>]>,
}

struct Slot {
    digest: Digest,
    /// µs from the beginning of the cache: an instant is twice as large.
    until: u64,
    tier: IdentityTier,
    /// Whether the entry was read since an insertion last passed over it.
    used: bool,
}

impl TierCache {
    /// Room for about `most` identities.
    pub(super) fn new(most: usize) -> Self {
        // Two rows at least: an identity may stand in either of two.
        let slots = most.div_ceil(ROW).max(2) * ROW;
        Self {
            began: Instant::now(),
            slots: std::iter::repeat_with(|| None).take(slots).collect(),
        }
    }

    /// The tier, until it expires.
    pub(super) fn get(&mut self, digest: Digest, now: Instant) -> Option<IdentityTier> {
        let (index, now) = (self.find(digest)?, self.micros(now));
        let slot = self.slots[index].as_mut()?;
        slot.used = true;
        (now < slot.until).then(|| slot.tier.clone())
    }

    /// The last known tier, expired or not.
    pub(super) fn last(&self, digest: Digest) -> Option<IdentityTier> {
        self.slots[self.find(digest)?]
            .as_ref()
            .map(|slot| slot.tier.clone())
    }

    /// The tier of an identity that is not looked up now.
    pub(super) fn fallback(&self, digest: Digest) -> IdentityTier {
        self.last(digest).unwrap_or(IdentityTier::NeverLookedUp)
    }

    /// Remembers a tier. Without room, another identity is forgotten for it. An identity that was
    /// never looked up does not displace a known tier: requests that make up identities while
    /// lookups fail must not push out real ones.
    pub(super) fn insert(
        &mut self,
        digest: Digest,
        tier: IdentityTier,
        now: Instant,
        keep_for: Duration,
    ) {
        let until = self.micros(now).saturating_add(micros(keep_for));
        let index = self.find(digest).unwrap_or_else(|| self.room(digest));
        let slot = &mut self.slots[index];
        let is_known =
            |slot: &Slot| matches!(slot.tier, IdentityTier::Known(_) | IdentityTier::Own(_));
        if tier != IdentityTier::NeverLookedUp || !slot.as_ref().is_some_and(is_known) {
            *slot = Some(Slot {
                digest,
                until,
                tier,
                used: false,
            });
        }
    }

    fn micros(&self, now: Instant) -> u64 {
        micros(now.saturating_duration_since(self.began))
    }

    fn indices(&self, digest: Digest) -> SlotIndices {
        let rows = (self.slots.len() / ROW) as u64;
        let (low, high) = (digest as u64, (digest >> 64) as u64);
        let one = low % rows;
        // Adding 1 to less than `rows - 1` never gives the same row.
        let other = (one + 1 + high % (rows - 1)) % rows;
        // Alternating, so that a new entry goes to the row with more free slots.
        std::array::from_fn(|n| [one, other][n % 2] as usize * ROW + n / 2)
    }

    fn find(&self, digest: Digest) -> Option<usize> {
        let is_there = |index: &usize| {
            self.slots[*index]
                .as_ref()
                .is_some_and(|slot| slot.digest == digest)
        };
        self.indices(digest).into_iter().find(is_there)
    }

    /// A free slot; or one that was not read since an insertion last passed over it; or any.
    fn room(&mut self, digest: Digest) -> usize {
        let indices = self.indices(digest);
        if let Some(free) = indices
            .into_iter()
            .find(|index| self.slots[*index].is_none())
        {
            return free;
        }
        // Starting anywhere, or new entries would only ever displace each other.
        let start = (digest >> 32) as usize % indices.len();
        let mut unused = |index: &usize| {
            !self.slots[*index]
                .as_mut()
                .is_some_and(|slot| std::mem::take(&mut slot.used))
        };
        indices
            .into_iter()
            .cycle()
            .skip(start)
            .take(indices.len())
            .find(&mut unused)
            .unwrap_or(indices[start])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throttle_core::{Gcra, IntoAlgorithm, Rate};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const PRO: IdentityTier = IdentityTier::Known(1);

    /// A number as a digest both of whose halves depend on it.
    fn digest(n: u64) -> Digest {
        u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }

    fn in_use(cache: &TierCache) -> usize {
        cache
            .slots
            .iter()
            .flatten()
            .filter(|slot| slot.used)
            .count()
    }

    #[test]
    fn cache_keeps_identities_in_use() {
        let (mut cache, now) = (TierCache::new(8), Instant::now());
        for n in 0..8 {
            cache.insert(digest(n), PRO, now, LONG);
        }
        for newcomer in 100..1_000 {
            assert_eq!(cache.get(digest(2), now), Some(PRO), "in use all the time");
            cache.insert(digest(newcomer), IdentityTier::Unknown, now, LONG);
        }
        assert_eq!(cache.get(digest(1), now), None, "not asked for");
    }

    #[test]
    fn cache_holds_nearly_as_many_identities_as_it_has_room_for() {
        let (mut cache, now) = (TierCache::new(10_000), Instant::now());
        for n in 0..10_000 {
            cache.insert(digest(n), PRO, now, LONG);
        }
        let remembered = (0..10_000)
            .filter(|n| cache.last(digest(*n)).is_some())
            .count();
        assert!(remembered > 9_000, "{remembered} of 10,000");
    }

    /// Many are remembered, and few have parameters of their own.
    #[test]
    fn parameters_of_an_identitys_own_are_remembered_like_a_tier() {
        let (mut cache, now) = (TierCache::new(8), Instant::now());
        let own = IdentityTier::Own(Arc::new(
            Gcra::new(Rate::per_minute(7)).into_algorithm().unwrap(),
        ));
        cache.insert(digest(1), own.clone(), now, LONG);
        assert_eq!(
            (cache.get(digest(1), now), cache.last(digest(1))),
            (Some(own.clone()), Some(own.clone()))
        );
        assert_eq!(cache.get(digest(1), now + LONG), None);
        for made_up in 100..1_000 {
            cache.insert(digest(made_up), IdentityTier::NeverLookedUp, now, LONG);
        }
        assert_eq!(
            cache.last(digest(1)),
            Some(own),
            "no identity that was never looked up displaces it"
        );
        cache.insert(digest(1), PRO, now, LONG);
        assert_eq!(cache.last(digest(1)), Some(PRO));
    }

    #[test]
    fn law_12_insertion_reads_eight_slots_however_many_are_in_use() {
        let (mut cache, now) = (TierCache::new(10_000), Instant::now());
        for n in 0..30_000 {
            cache.insert(digest(n), PRO, now, LONG);
        }
        for newcomer in 50_000..51_000 {
            cache
                .slots
                .iter_mut()
                .flatten()
                .for_each(|slot| slot.used = true);
            let before = in_use(&cache);
            cache.insert(digest(newcomer), PRO, now, LONG);
            let looked_at = before - in_use(&cache);
            assert_eq!(looked_at, 8, "all are in use, so each is passed over once");
            assert_eq!(
                cache.get(digest(newcomer), now),
                Some(PRO),
                "kept though all were in use"
            );
        }
    }

    #[test]
    fn expired_tier_is_still_the_last_known() {
        let (mut cache, now) = (TierCache::new(4), Instant::now());
        cache.insert(7, IdentityTier::Known(2), now, Duration::from_secs(1));
        assert_eq!(
            cache.get(7, now + Duration::from_millis(999)),
            Some(IdentityTier::Known(2))
        );
        assert_eq!(cache.get(7, now + Duration::from_secs(1)), None);
        assert_eq!(cache.last(7), Some(IdentityTier::Known(2)));
        cache.insert(7, PRO, now, Duration::MAX);
        assert_eq!(cache.get(7, now + Duration::from_secs(9)), Some(PRO));
        assert_eq!(cache.slots.iter().flatten().count(), 1);
    }

    #[test]
    fn identity_never_looked_up_displaces_no_known_tier() {
        let (mut cache, now) = (TierCache::new(8), Instant::now());
        for n in 0..7 {
            cache.insert(digest(n), PRO, now, LONG);
        }
        cache.insert(digest(7), IdentityTier::Unknown, now, LONG);
        for made_up in 100..1_000 {
            cache.insert(digest(made_up), IdentityTier::NeverLookedUp, now, LONG);
        }
        for n in 0..7 {
            assert_eq!(cache.last(digest(n)), Some(PRO));
        }
        assert_eq!(cache.last(digest(7)), None, "the unknown one has made room");
    }
}
