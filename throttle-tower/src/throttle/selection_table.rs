//! The sets of a layer with many selected limits: one for each combination of limits that were
//! selected together for a request. The others cost it nothing.
//!
//! Open this for what is kept for each combination. A set is made when the first request has its
//! combination; `steps/narrow` makes it. Limits are the same in each set: their states belong to
//! their names. If the table is full, or a set cannot be made, the whole set decides and skips the
//! limits that are not selected, which gives the same decisions and takes longer.
//!
//! Not left out are limits that a handler settles, because the handlers of all requests know them
//! by name. Layers whose limits queue requests are not narrowed: `version` says why. For a few
//! limits it is not worth a set, and over a store requests of one set share batches and scripts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limit::LimitSettings;

/// What is kept for each combination of selected limits.
pub(crate) struct SelectionTable<T> {
    /// Its length is a power of two. An entry stays.
    table: Box<[OnceLock<SelectionEntry<T>>]>,
    /// The limits in all entries.
    limits: AtomicUsize,
    /// How many limits are in every set.
    others: usize,
}

struct SelectionEntry<T> {
    selected: Box<[usize]>,
    /// `None` if it cannot be made.
    kept: Option<T>,
}

/// Up to so many selected limits are one set.
const FEW: usize = 32;
const MOST_ENTRIES: usize = 4_096;
/// Each may have a script of its own on a server.
const MOST_ENTRIES_OVER_A_STORE: usize = 256;
/// A limit in an entry takes about a kilobyte for each of its tiers and classes.
const MOST_LIMITS: usize = 1 << 14;
/// Few requests meet more limits, and they would soon leave no room for others.
const MOST_LIMITS_OF_AN_ENTRY: usize = 64;
/// In how many slots a combination may be.
const PROBES: usize = 16;

impl<T> SelectionTable<T> {
    /// `None` if too few limits may be left out.
    pub(super) fn new(applied: &[LimitSettings], is_over_a_store: bool) -> Option<Self> {
        let conditional = applied
            .iter()
            .filter(|limit| limit.may_be_left_out())
            .count();
        let most = if is_over_a_store {
            MOST_ENTRIES_OVER_A_STORE
        } else {
            MOST_ENTRIES
        };
        let entries = (4 * conditional).next_power_of_two().min(most);
        (conditional > FEW).then(|| Self::of(entries, applied.len() - conditional))
    }

    fn of(entries: usize, others: usize) -> Self {
        Self {
            table: (0..entries).map(|_| OnceLock::new()).collect(),
            limits: AtomicUsize::new(0),
            others,
        }
    }

    /// What is kept for a combination. `make` makes it for the first request. `None` if it cannot
    /// be made, or if there is no room for it.
    #[inline]
    pub(super) fn find(&self, selected: &[usize], make: impl Fn() -> Option<T>) -> Option<&T> {
        let mix = |hash: u64, number: &usize| {
            (hash.rotate_left(5) ^ *number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let hash = (selected.iter().fold(0, mix) >> 32) as usize;
        for probe in 0..PROBES {
            let slot = &self.table[hash.wrapping_add(probe) & (self.table.len() - 1)];
            let entry = match slot.get() {
                Some(entry) => entry,
                None => self.add(slot, selected, &make)?,
            };
            if entry.selected.iter().eq(selected) {
                return entry.kept.as_ref();
            }
        }
        None
    }

    /// Fills a slot, unless another thread does. No thread waits for the other one.
    #[cold]
    fn add<'s>(
        &self,
        slot: &'s OnceLock<SelectionEntry<T>>,
        selected: &[usize],
        make: &impl Fn() -> Option<T>,
    ) -> Option<&'s SelectionEntry<T>> {
        if selected.len() > MOST_LIMITS_OF_AN_ENTRY {
            return None;
        }
        let limits = self.others + selected.len();
        let has_room = self.limits.fetch_add(limits, Ordering::Relaxed) + limits <= MOST_LIMITS;
        let entry = || SelectionEntry {
            selected: selected.into(),
            kept: make(),
        };
        // Another thread's entry may be of another combination.
        if !has_room || slot.set(entry()).is_err() {
            self.limits.fetch_sub(limits, Ordering::Relaxed);
        }
        slot.get()
    }

    /// Has no room from now on.
    #[cfg(test)]
    pub(super) fn fill(&self) {
        self.limits.store(MOST_LIMITS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn narrowed(limits: usize) -> SelectionTable<Vec<usize>> {
        SelectionTable::of((4 * limits).next_power_of_two().min(MOST_ENTRIES), 0)
    }

    /// Each combination has its own entry; those for which there is no room have none, and take no
    /// memory.
    #[test]
    fn requests_cannot_make_a_layer_keep_more_than_it_has_room_for() {
        for limits in [1, 3, 8, 9, 20, 1_000] {
            let narrowed = narrowed(limits);
            let alone = (0..limits).map(|number| vec![number]);
            let pairs = (0..limits)
                .flat_map(|first| (first + 1..limits).map(move |second| vec![first, second]));
            let many = (1..=limits / 2).map(|first| (first..limits).collect());
            let mut kept_for = HashSet::new();
            for numbers in [vec![]]
                .into_iter()
                .chain(alone)
                .chain(many)
                .chain(pairs.take(9_000))
            {
                let kept = narrowed.find(&numbers, || Some(numbers.clone()));
                assert!(kept.is_none_or(|kept| *kept == numbers));
                kept_for.extend(kept.cloned());
            }
            let taken: usize = kept_for.iter().map(Vec::len).sum();
            assert!(
                kept_for.len() <= MOST_ENTRIES && taken <= MOST_LIMITS,
                "{limits}"
            );
            assert!(limits < 1_000 || kept_for.len() > 1_000, "each limit alone");
            for numbers in kept_for.iter().take(20) {
                assert_eq!(narrowed.find(numbers, || None), Some(numbers), "it stays");
            }
        }
    }

    /// Each of the largest takes as much room as it has limits.
    #[test]
    fn combinations_are_kept_while_all_their_limits_have_room() {
        let narrowed = narrowed(1_000);
        let is_kept = |first: usize, limits: usize| {
            let numbers: Vec<usize> = (first..).take(limits).collect();
            narrowed.find(&numbers, || Some(vec![])).is_some()
        };
        assert!(!is_kept(0, MOST_LIMITS_OF_AN_ENTRY + 1));
        let kept = (0..500)
            .filter(|first| is_kept(*first, MOST_LIMITS_OF_AN_ENTRY))
            .count();
        assert_eq!(kept, MOST_LIMITS / MOST_LIMITS_OF_AN_ENTRY);
    }

    #[test]
    fn what_cannot_be_made_is_tried_once() {
        let narrowed = narrowed(2);
        let tries = AtomicUsize::new(0);
        for _ in 0..3 {
            let fails = || {
                tries.fetch_add(1, Ordering::Relaxed);
                None
            };
            assert!(narrowed.find(&[1], fails).is_none());
        }
        assert_eq!(tries.into_inner(), 1);
    }
}
