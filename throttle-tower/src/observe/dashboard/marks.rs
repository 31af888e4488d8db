use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::tight_list::MOST;

/// What requests read of the listed keys without a lock. A thread writes it while it has the list locked.
///
/// A mark that is read while it is written may be of two keys at once. Then a note is made that is not needed, or the
/// next request makes it.
#[derive(Default)]
pub(super) struct Marks {
    /// Where a key is listed whose tag begins with this byte: the place of one of them and one more, or 0 if there is
    /// none.
    near: Near,
    /// Of the listed keys, by their places; 0 if there is none.
    tags: [AtomicU64; MOST],
    noted: [Noted; MOST],
}

struct Near([AtomicU8; 256]);

impl Default for Near {
    fn default() -> Self {
        Self([const { AtomicU8::new(0) }; 256])
    }
}

#[derive(Default)]
struct Noted {
    /// In µs.
    at: AtomicU64,
    /// With less than this left, it is to be noted again.
    again_below: AtomicU64,
}

/// Where requests are many, a key is not noted again for so many µs.
pub(super) const FRESH: u64 = 5_000;

impl Marks {
    /// The place of a key in the list.
    #[inline]
    pub(super) fn find(&self, tag: u64) -> Option<usize> {
        let near = usize::from(self.near(tag).load(Ordering::Relaxed)).checked_sub(1)?;
        let is_at = |place: usize| self.tags[place].load(Ordering::Relaxed) == tag;
        if near < MOST && is_at(near) { Some(near) } else { (0..MOST).find(|place| is_at(*place)) }
    }

    #[inline]
    fn near(&self, tag: u64) -> &AtomicU8 {
        &self.near.0[first_byte(tag)]
    }

    /// Whether the key at a place was noted a moment ago, and not much of what it had left then is gone.
    #[inline]
    pub(super) fn is_fresh(&self, place: usize, left: u64, now: u64) -> bool {
        let noted = &self.noted[place];
        now < noted.at.load(Ordering::Relaxed) + FRESH && left >= noted.again_below.load(Ordering::Relaxed)
    }

    /// Marks a key that was noted at a place in the list.
    pub(super) fn set(&self, place: usize, tag: u64, left: u64, now: u64) {
        let noted = &self.noted[place];
        noted.at.store(now, Ordering::Relaxed);
        noted.again_below.store(left.div_ceil(2), Ordering::Relaxed);
        if self.tags[place].load(Ordering::Relaxed) != tag {
            self.remove(place);
            self.tags[place].store(tag, Ordering::Relaxed);
            self.near(tag).store(place as u8 + 1, Ordering::Relaxed);
        }
    }

    /// The key at a place is no longer listed.
    pub(super) fn remove(&self, place: usize) {
        let tag = self.tags[place].swap(0, Ordering::Relaxed);
        if tag != 0 {
            let is_near = |other: &AtomicU64| {
                let other = other.load(Ordering::Relaxed);
                other != 0 && first_byte(other) == first_byte(tag)
            };
            let near = self.tags.iter().position(is_near).map_or(0, |place| place as u8 + 1);
            self.near(tag).store(near, Ordering::Relaxed);
        }
    }
}

const fn first_byte(tag: u64) -> usize {
    (tag >> 56) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_also_if_their_tags_begin_alike() {
        let marks = Marks::default();
        let tags = || (0..MOST).map(|place| (place, ((place as u64 % 4) << 56) | (place as u64 + 1)));
        tags().for_each(|(place, tag)| marks.set(place, tag, 1, 0));
        tags().for_each(|(place, tag)| assert_eq!(marks.find(tag), Some(place)));
        assert_eq!(marks.find(1 << 56), None);
        marks.remove(MOST - 1);
        assert_eq!(marks.find(3 << 56 | MOST as u64), None);
        tags()
            .take(MOST - 1)
            .for_each(|(place, tag)| assert_eq!(marks.find(tag), Some(place), "{place} after another"));
        let mut gone = vec![MOST - 1];
        for removed in [4, 5, 6] {
            marks.remove(removed);
            gone.push(removed);
            let left = tags().filter(|(place, _)| !gone.contains(place));
            left.for_each(|(place, tag)| assert_eq!(marks.find(tag), Some(place), "{place} after {removed}"));
        }
        marks.set(3, 9 << 56 | 1, 1, 0);
        assert_eq!((marks.find(3 << 56 | 4), marks.find(9 << 56 | 1)), (None, Some(3)), "replaced");
        marks.set(3, 10 << 56 | 1, 1, 0);
        assert_eq!(marks.near(9 << 56).load(Ordering::Relaxed), 0, "no other tag begins so");
        (0..MOST).for_each(|place| marks.remove(place));
        assert!(marks.near.0.iter().all(|near| near.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn mark_is_fresh_for_a_moment_and_until_less_than_half_is_left() {
        let marks = Marks::default();
        let fresh = |left, now| marks.is_fresh(0, left, now);
        marks.set(0, 7, 9, 1_000);
        assert!(fresh(9, 1_000) && fresh(5, 1_000) && fresh(100, 999 + FRESH));
        assert!(!fresh(4, 1_000) && !fresh(9, 1_000 + FRESH));
        marks.set(0, 7, 1, 1_000);
        assert!(fresh(1, 1_000) && !fresh(0, 1_000), "nothing left is not the half of one");
        marks.set(0, 7, 0, 1_000);
        assert!(fresh(0, 1_000));
    }
}
