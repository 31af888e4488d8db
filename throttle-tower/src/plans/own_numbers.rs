//! The numbers of their own that identities have: each once, and a bounded number of them.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::Algorithm;
use tokio::time::Instant;

/// Different numbers, by their places. What is remembered of an identity names its place, so that it is small and needs
/// no clean-up: numbers that were given up are not found there any more.
pub(super) struct OwnNumbers {
    slots: Vec<Slot>,
    last: u64,
}

struct Slot {
    /// Tells the numbers that have this place from those that had it before.
    id: u64,
    algorithm: Arc<Algorithm>,
    used: Instant,
}

/// Where numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnPlace {
    place: u32,
    id: u64,
}

impl OwnNumbers {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), last: 0 }
    }

    /// The place of these numbers. Where there are `most` others already, those that no request has used for longest are
    /// given up for them, if that was as long as tiers are remembered. `None` if all of them are in use.
    ///
    /// It looks at all numbers, which are few, once for each lookup.
    pub(super) fn insert(
        &mut self,
        algorithm: Algorithm,
        now: Instant,
        (most, keep_for): (usize, Duration),
    ) -> Option<OwnPlace> {
        let known = self.slots.iter().position(|slot| *slot.algorithm == algorithm);
        let place = match known {
            Some(place) => {
                self.slots[place].used = now;
                place
            }
            None => {
                self.last += 1;
                let slot = Slot { id: self.last, algorithm: Arc::new(algorithm), used: now };
                if self.slots.len() < most {
                    self.slots.push(slot);
                    self.slots.len() - 1
                } else {
                    let unused = self.slots.iter_mut().enumerate().min_by_key(|(_, slot)| slot.used);
                    let (place, unused) = unused.filter(|(_, slot)| slot.used + keep_for <= now)?;
                    *unused = slot;
                    place
                }
            }
        };
        Some(OwnPlace { place: u32::try_from(place).ok()?, id: self.slots[place].id })
    }

    pub(super) fn has(&self, at: OwnPlace) -> bool {
        self.slots.get(at.place as usize).is_some_and(|slot| slot.id == at.id)
    }

    /// The numbers at a place, for a request.
    pub(super) fn get(&mut self, at: OwnPlace, now: Instant) -> Option<Arc<Algorithm>> {
        let slot = self.slots.get_mut(at.place as usize).filter(|slot| slot.id == at.id)?;
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
        let (mut own, start) = (OwnNumbers::new(), Instant::now());
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
    }
}
