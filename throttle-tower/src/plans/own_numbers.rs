//! The numbers of their own that identities have: each once, and a bounded number of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use throttle_core::Algorithm;
use tokio::time::Instant;

/// Different numbers, by their places. What is remembered of an identity names its place, so that it is small and needs
/// no clean-up: numbers that were given up are not found there any more.
#[derive(Default)]
pub(super) struct OwnNumbers {
    slots: Vec<Slot>,
    places: HashMap<Algorithm, u16>,
}

struct Slot {
    algorithm: Arc<Algorithm>,
    used: Instant,
    /// How often the place has changed hands.
    turn: u32,
}

/// Where numbers are: a place, and which of those that it has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnPlace {
    place: u16,
    turn: u32,
}

impl OwnNumbers {
    /// Most numbers at a time. A lookup that returns new ones looks at all of them for a place, under a lock.
    pub(super) const MOST: usize = 1 << 10;

    /// The place of these numbers. Where there are `most` others already, those that no request has used for longest are
    /// given up for them, if that was as long as tiers are remembered. `None` if all of them are in use.
    pub(super) fn insert(
        &mut self,
        algorithm: Algorithm,
        now: Instant,
        (most, keep_for): (usize, Duration),
    ) -> Option<OwnPlace> {
        let place = match self.places.get(&algorithm) {
            Some(place) => *place,
            None => {
                let place = self.free_place(now, (most, keep_for))?;
                let slot = Slot { algorithm: Arc::new(algorithm), used: now, turn: 0 };
                match self.slots.get_mut(usize::from(place)) {
                    Some(given_up) => {
                        self.places.remove(&*given_up.algorithm);
                        *given_up = Slot { turn: given_up.turn.wrapping_add(1), ..slot };
                    }
                    None => self.slots.push(slot),
                }
                self.places.insert(algorithm, place);
                place
            }
        };
        let slot = &mut self.slots[usize::from(place)];
        slot.used = now;
        Some(OwnPlace { place, turn: slot.turn })
    }

    /// The place after the last one, or of numbers that are given up.
    fn free_place(&self, now: Instant, (most, keep_for): (usize, Duration)) -> Option<u16> {
        let place = if self.slots.len() < most.min(Self::MOST) {
            self.slots.len()
        } else {
            let (place, unused) = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.used)?;
            Some(place).filter(|_| now.saturating_duration_since(unused.used) >= keep_for)?
        };
        u16::try_from(place).ok()
    }

    pub(super) fn has(&self, at: OwnPlace) -> bool {
        self.slots.get(usize::from(at.place)).is_some_and(|slot| slot.turn == at.turn)
    }

    /// The numbers at a place, for a request.
    pub(super) fn get(&mut self, at: OwnPlace, now: Instant) -> Option<Arc<Algorithm>> {
        let slot = self.slots.get_mut(usize::from(at.place)).filter(|slot| slot.turn == at.turn)?;
        slot.used = now;
        Some(Arc::clone(&slot.algorithm))
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Gcra, IntoAlgorithm, Rate};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn numbers(count: u64) -> Algorithm {
        Gcra::new(Rate::per_minute(count)).into_algorithm().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_are_given_up_when_no_request_has_used_them_for_as_long_as_tiers_are_remembered() {
        let (mut own, start) = (OwnNumbers::default(), Instant::now());
        let insert = |own: &mut OwnNumbers, count, after| own.insert(numbers(count), start + after, (3, MINUTE));
        let zero = Duration::ZERO;
        let [one, two, three] = [1, 2, 3].map(|count| insert(&mut own, count, zero).unwrap());
        assert_eq!(insert(&mut own, 2, zero), Some(two), "each once");
        assert_eq!(insert(&mut own, 4, zero), None);
        assert!(own.get(one, start + MINUTE / 2).is_some());
        assert!(own.get(three, start + MINUTE / 4).is_some());
        assert_eq!(insert(&mut own, 4, MINUTE - Duration::from_nanos(1)), None, "all are in use");
        let four = insert(&mut own, 4, MINUTE).unwrap();
        assert_eq!((own.has(one), own.has(two), own.has(three), own.has(four)), (true, false, true, true));
        assert!(own.get(two, start + MINUTE).is_none());
        assert_eq!(*own.get(four, start + MINUTE).unwrap(), numbers(4));
        assert_eq!(insert(&mut own, 2, MINUTE), None);
        assert_eq!(insert(&mut own, 4, MINUTE), Some(four));
        assert_eq!((own.slots.len(), own.places.len()), (3, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_that_are_remembered_for_ever_are_never_given_up() {
        let (mut own, now) = (OwnNumbers::default(), Instant::now());
        let one = own.insert(numbers(1), now, (1, Duration::MAX)).unwrap();
        assert_eq!(own.insert(numbers(2), now + 1_000 * MINUTE, (1, Duration::MAX)), None);
        assert!(own.has(one));
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_no_more_numbers_than_can_be_looked_through() {
        let (mut own, now) = (OwnNumbers::default(), Instant::now());
        let places = (1..=2_000).filter_map(|count| own.insert(numbers(count), now, (usize::MAX, MINUTE)));
        assert_eq!(places.count(), OwnNumbers::MOST);
    }
}
