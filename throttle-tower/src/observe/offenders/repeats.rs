use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::recent::{Recent, Refused};
use super::sample::Sample;
use crate::observe::per_thread::turns::Turns;

/// The keys that one thread refuses again and again: their refusals are counted without a lock, and handed over now and
/// then. A key is found by its tag.
///
/// The thread itself counts here and takes wishes. All else is changed by the thread that holds the lock of the counts to
/// which refusals are handed over.
#[repr(align(128))]
pub(super) struct Repeats {
    pub(super) turns: Turns,
    pub(super) sample: Sample,
    slots: Box<[Slot; SLOTS]>,
}

const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 8;

/// A turn hands over what a slot has counted if it is as much. So a hand-over is a small step for the sketch, which may
/// look at each refusal of it.
const MANY: u32 = 256;

#[derive(Default)]
struct Slot {
    /// The key's tag, or [`CLOSED`].
    open_to: AtomicU64,
    /// Of the key that was counted here last.
    tag: AtomicU64,
    digest: AtomicU64,
    /// By its place.
    policy: AtomicU32,
    /// Refusals, of this key and of those before it. It runs on beyond the highest number, and starts again at 0.
    refused: AtomicU32,
    /// So many of them were handed over.
    handed_over: AtomicU32,
    /// So many of them had been counted when another key wished for the slot.
    at_last_wish: AtomicU32,
    /// Wishes since the key was refused last.
    wishes: AtomicU32,
}

/// After so many wishes, a slot is free whose key was not refused meanwhile. Then keys that are refused once displace
/// none that is refused often, and few of them cause the work of a key that is new.
const WISHES: u32 = 4;

/// No key has this tag.
const CLOSED: u64 = 0;

impl Repeats {
    pub(super) fn new() -> Self {
        let slots: Box<[Slot]> = (0..SLOTS).map(|_| Slot::default()).collect();
        let slots = slots.try_into().unwrap_or_else(|_| unreachable!("there are so many"));
        Self { turns: Turns::default(), sample: Sample::new(), slots }
    }

    /// Counts a refusal of a key that this thread has refused before. Returns `false`, and does nothing, if it has not,
    /// or if that was forgotten.
    #[inline(always)]
    pub(super) fn count(&self, tag: u64) -> bool {
        let slot = self.slot(tag);
        let is_known = slot.open_to.load(Ordering::Relaxed) == tag;
        if is_known {
            slot.refused.store(
                slot.refused.load(Ordering::Relaxed).wrapping_add(self.sample.weight() as u32),
                Ordering::Relaxed,
            );
        }
        is_known
    }

    /// Whether the slot of a key has counted so much that it is time to hand it over.
    pub(super) fn has_many(&self, tag: u64) -> bool {
        self.slot(tag).waiting() >= MANY
    }

    #[inline(always)]
    fn slot(&self, tag: u64) -> &Slot {
        &self.slots[(tag >> (u64::BITS - SLOT_BITS)) as usize]
    }

    /// Hands over what the slot of a key has counted.
    pub(super) fn hand_over(&self, tag: u64, recent: &mut Recent) {
        self.slot(tag).hand_over(recent);
    }

    /// Hands over all that was counted.
    pub(super) fn hand_over_all(&self, recent: &mut Recent) {
        self.slots.iter().for_each(|slot| slot.hand_over(recent));
    }

    /// Begins a minute: forgets all keys, so that the next refusal of each is one of a new key. What was counted must
    /// have been handed over.
    pub(super) fn begin_minute(&self, _: &mut Recent) {
        self.slots.iter().for_each(|slot| slot.open_to.store(CLOSED, Ordering::Relaxed));
        self.sample.begin_minute();
    }

    /// Wishes for the slot of a key, and returns whether the slot is free.
    pub(super) fn wish(&self, tag: u64) -> bool {
        let slot = self.slot(tag);
        let refused = slot.refused.load(Ordering::Relaxed);
        let was_refused = slot.at_last_wish.swap(refused, Ordering::Relaxed) != refused;
        let wishes = if was_refused { 0 } else { slot.wishes.load(Ordering::Relaxed).saturating_add(1) };
        slot.wishes.store(wishes, Ordering::Relaxed);
        wishes >= WISHES || slot.open_to.load(Ordering::Relaxed) == CLOSED
    }

    /// Counts the refusals of a key from here on.
    pub(super) fn open(&self, tag: u64, key: Refused, recent: &mut Recent) {
        let slot = self.slot(tag);
        slot.hand_over(recent);
        slot.tag.store(tag, Ordering::Relaxed);
        slot.policy.store(key.policy as u32, Ordering::Relaxed);
        slot.digest.store(key.digest, Ordering::Relaxed);
        slot.wishes.store(0, Ordering::Relaxed);
        slot.open_to.store(tag, Ordering::Relaxed);
    }
}

impl Slot {
    /// What was counted since the last hand-over.
    fn waiting(&self) -> u32 {
        self.refused.load(Ordering::Relaxed).wrapping_sub(self.handed_over.load(Ordering::Relaxed))
    }

    fn hand_over(&self, recent: &mut Recent) {
        let waiting = self.waiting();
        if waiting == 0 {
            return;
        }
        let (policy, digest) = (self.policy.load(Ordering::Relaxed) as usize, self.digest.load(Ordering::Relaxed));
        let key = Refused { policy, digest };
        let wants_text = recent.add(self.tag.load(Ordering::Relaxed), Some(key), waiting.into());
        self.handed_over.fetch_add(waiting, Ordering::Relaxed);
        if wants_text {
            // Only the refusal of a key that is not known here asks for its text.
            self.open_to.store(CLOSED, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn key(digest: u64) -> Refused {
        Refused { policy: 3, digest }
    }

    /// A tag of the first slot.
    const ADA: u64 = 1;

    fn counts(recent: &Recent) -> Vec<(u64, u64)> {
        recent.list(9).iter().map(|(key, count, _)| (key.digest, *count)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_of_a_known_key_are_counted_and_handed_over_once() {
        let (repeats, mut recent) = (Repeats::new(), Recent::new(Instant::now(), false));
        assert!(!repeats.count(ADA));
        repeats.open(ADA, key(7), &mut recent);
        assert!((0..MANY - 1).all(|_| repeats.count(ADA)) && !repeats.has_many(ADA));
        assert!(repeats.count(ADA) && repeats.has_many(ADA));
        assert!(counts(&recent).is_empty());
        for _ in 0..2 {
            repeats.hand_over(ADA, &mut recent);
            repeats.hand_over_all(&mut recent);
        }
        assert_eq!(counts(&recent), [(7, MANY.into())]);
        repeats.count(ADA);
        repeats.begin_minute(&mut recent);
        assert!(!repeats.count(ADA));
        repeats.hand_over_all(&mut recent);
        assert_eq!(counts(&recent), [(7, u64::from(MANY) + 1)], "counted while it was closed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_minute_begins_with_refusals_that_are_counted_each() {
        let (repeats, mut recent) = (Repeats::new(), Recent::new(Instant::now(), false));
        while repeats.sample.weight() == 1 {
            repeats.sample.leaves_out();
        }
        repeats.begin_minute(&mut recent);
        // The thread finds it out with the next refusal that it counts.
        assert!((0..100).any(|_| !repeats.sample.leaves_out()));
        assert_eq!(repeats.sample.weight(), 1);
    }
}
