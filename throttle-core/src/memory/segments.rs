//! Slots that never move: an array that grows by segments, and that may be read while it grows.

use super::slot::Slot;
use super::sync::OnceLock;

/// Slots in a segment. The model checker needs small ones.
pub(super) const SEGMENT: usize = if cfg!(all(test, throttle_models)) {
    2
} else {
    32
};
/// Most segments in the first list. The list is allocated as a whole, so it must not follow a limit
/// that is absurd.
const MOST_NEAR: usize = 512;
/// Each list of the far ones holds twice as many segments as the one before: more than any machine
/// has memory for.
const FAR_LISTS: usize = 40;

type Segment = OnceLock<Box<[Slot; SEGMENT]>>;
type List = OnceLock<Box<[Segment]>>;

/// The segments of one shard. Nothing is allocated before the first slot is used.
#[derive(Debug)]
pub(super) struct Segments {
    /// All that the shards of a store with few keys need: the way to its slots is the shortest.
    first: Segment,
    /// As many more as a shard usually needs.
    near: List,
    near_len: usize,
    far: OnceLock<Box<[List; FAR_LISTS]>>,
}

impl Segments {
    /// Segments for usually as many slots.
    pub(super) fn new(usual: usize) -> Self {
        let near_len = (usual / SEGMENT + 1).min(MOST_NEAR);
        Self {
            first: Segment::new(),
            near: List::new(),
            near_len,
            far: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Slot> {
        Some(&self.segment(index / SEGMENT)?[index % SEGMENT])
    }

    #[inline(always)]
    fn segment(&self, number: usize) -> Option<&[Slot; SEGMENT]> {
        match number.checked_sub(1) {
            None => self.first.get().map(|slots| &**slots),
            Some(number) => match self.near.get()?.get(number) {
                Some(near) => near.get().map(|slots| &**slots),
                None => self.far(number),
            },
        }
    }

    /// Adds the segments that hold the slots from one index to before another, but those that are
    /// there.
    pub(super) fn extend(&self, from: usize, to: usize) {
        (from / SEGMENT..to.div_ceil(SEGMENT)).for_each(|segment| self.add(segment));
    }

    /// As many slots from the first on, but those of segments that are not there.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = &[Slot]> {
        let lens = (0..count)
            .step_by(SEGMENT)
            .map(move |start| SEGMENT.min(count - start));
        lens.enumerate()
            .filter_map(|(number, len)| Some(&self.segment(number)?[..len]))
    }

    /// A walk over slots that are near each other.
    #[inline]
    pub(super) fn walk(&self) -> Walk<'_> {
        Walk {
            segments: self,
            number: usize::MAX,
            slots: None,
        }
    }

    #[cold]
    fn segment_added(&self, number: usize) -> &[Slot; SEGMENT] {
        self.add(number);
        self.segment(number).expect("it was added")
    }

    fn add(&self, segment: usize) {
        let slots = || Box::new(std::array::from_fn(|_| Slot::default()));
        let Some(segment) = segment.checked_sub(1) else {
            self.first.get_or_init(slots);
            return;
        };
        let (list, len, index) = if segment < self.near_len {
            (&self.near, self.near_len, segment)
        } else {
            let (list, first) = self.far_list(segment);
            let lists = self
                .far
                .get_or_init(|| Box::new(std::array::from_fn(|_| List::new())));
            (&lists[list], first, segment - first)
        };
        let list = list.get_or_init(|| (0..len).map(|_| Segment::new()).collect());
        list[index].get_or_init(slots);
    }

    #[cold]
    fn far(&self, segment: usize) -> Option<&[Slot; SEGMENT]> {
        let (list, first) = self.far_list(segment);
        Some(&**self.far.get()?[list].get()?[segment - first].get()?)
    }

    /// The list of a far segment, and the number of its first segment, which is also how many it
    /// holds.
    fn far_list(&self, segment: usize) -> (usize, usize) {
        let list = (segment / self.near_len).ilog2();
        (list as usize, self.near_len << list)
    }
}

/// Looks for a segment only where the one before has ended.
pub(super) struct Walk<'a> {
    segments: &'a Segments,
    number: usize,
    slots: Option<&'a [Slot; SEGMENT]>,
}

impl<'a> Walk<'a> {
    /// The slot at an index; adds its segment if it is not there.
    #[inline]
    pub(super) fn slot(&mut self, index: usize) -> &'a Slot {
        let number = index / SEGMENT;
        let slots = match self.slots.filter(|_| number == self.number) {
            Some(slots) => slots,
            None => self
                .segments
                .segment(number)
                .unwrap_or_else(|| self.segments.segment_added(number)),
        };
        (self.number, self.slots) = (number, Some(slots));
        &slots[index % SEGMENT]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_place_of_its_own_that_stays() {
        let segments = Segments::new(3 * SEGMENT);
        assert!(segments.get(0).is_none());
        let count = 50 * SEGMENT;
        for first in (0..count).step_by(SEGMENT) {
            segments.extend(first, first + SEGMENT);
        }
        let places: Vec<*const Slot> = (0..count)
            .map(|index| &raw const *segments.get(index).unwrap())
            .collect();
        let mut distinct = places.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), count);
        assert!(segments.get(count).is_none());
        segments.extend(count, count + 1);
        assert!((0..count).all(|index| std::ptr::eq(segments.get(index).unwrap(), places[index])));
    }

    #[test]
    fn an_absurd_number_of_slots_costs_nothing_until_they_are_used() {
        let segments = Segments::new(usize::MAX);
        segments.extend(0, 1);
        assert!(segments.get(SEGMENT - 1).is_some());
        assert!(segments.get(usize::MAX).is_none());
    }
}
