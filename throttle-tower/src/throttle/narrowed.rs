//! Which limits of a layer a request is asked about: those whose conditions hold. The others cost
//! it nothing.
//!
//! Open this for how the conditions that hold are found, and for what is kept for each combination
//! of them. A layer keeps a set of limits for each, which is made when the first request has the
//! combination; `steps/narrow` makes it. Limits are the same in each set: their states belong to
//! their names. Where the table is full, or a set cannot be made, the whole set decides and skips
//! the limits that do not apply, which gives the same decisions and takes longer.
//!
//! Not left out are limits that a handler settles, because the handlers of all requests know them
//! by name. Layers whose limits queue requests are not narrowed, nor are small ones over a store:
//! `build` says why. Limits on requests in flight are asked by `permits`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use http::request::Parts;

use crate::limit::{Applied, Condition, ConditionIndex, Numbers};

/// What is kept for each combination of conditions that hold together.
pub(crate) struct Narrowed<T> {
    conditions: Arc<Conditions>,
    /// Its length is a power of two. An entry stays.
    table: Box<[OnceLock<Entry<T>>]>,
    /// The limits in all entries.
    limits: AtomicUsize,
}

struct Entry<T> {
    holding: Box<[u16]>,
    /// `None` if it cannot be made.
    kept: Option<T>,
}

/// The conditions of limits that may be left out, by their numbers.
struct Conditions {
    all: Box<[Numbered]>,
    /// Those that the index does not find.
    asked: Numbers,
    index: Option<Box<dyn ConditionIndex>>,
    /// How many limits are in every set.
    others: usize,
    most_entries: usize,
}

struct Numbered {
    /// Of the limit, in the whole set.
    place: usize,
    condition: Arc<dyn Condition>,
    /// A combination is found in the table by the sum of its marks, without carries.
    mark: usize,
}

/// Up to so many conditions, the table has an entry for each combination.
const FEW: usize = 8;
const FEWEST_ENTRIES: usize = 1 << FEW;
const MOST_ENTRIES: usize = 4_096;
/// Each may have a script of its own on a server.
const MOST_ENTRIES_OVER_A_STORE: usize = 256;
/// A limit in an entry takes about a kilobyte for each of its tiers and classes.
const MOST_LIMITS: usize = 1 << 14;
/// Few requests meet more limits, and they would soon leave no room for others.
const MOST_LIMITS_OF_AN_ENTRY: usize = 64;
/// In how many places a combination may be.
const PROBES: usize = 16;

impl<T> Narrowed<T> {
    /// `None` if no limit may be left out.
    pub(super) fn new(applied: &[Applied], is_over_a_store: bool) -> Option<Self> {
        let mut index: Option<Box<dyn ConditionIndex>> = None;
        let mut asked = Numbers::new();
        let conditional = || {
            applied
                .iter()
                .enumerate()
                .filter(|(_, limit)| limit.may_be_left_out())
        };
        let are_many = conditional().count() > FEW;
        let mut all = Vec::new();
        for (place, condition) in
            conditional().filter_map(|(place, limit)| Some((place, limit.when.clone()?)))
        {
            let number = u16::try_from(all.len()).ok()?;
            if index.is_none() && are_many {
                index = condition.index();
            }
            if !index
                .as_mut()
                .is_some_and(|index| index.add(&*condition, number))
            {
                asked.push(number);
            }
            all.push(Numbered {
                place,
                condition,
                mark: mark(number),
            });
        }
        let others = applied.len() - all.len();
        let most_entries = if is_over_a_store {
            MOST_ENTRIES_OVER_A_STORE
        } else {
            MOST_ENTRIES
        };
        if all.is_empty() {
            return None;
        }
        Some(Self::of(Arc::new(Conditions {
            all: all.into(),
            asked,
            index,
            others,
            most_entries,
        })))
    }

    fn of(conditions: Arc<Conditions>) -> Self {
        let count = conditions.all.len();
        let entries = match count {
            0..=FEW => 1 << count,
            _ => (4 * count)
                .next_power_of_two()
                .clamp(FEWEST_ENTRIES, conditions.most_entries),
        };
        Self {
            conditions,
            table: (0..entries).map(|_| OnceLock::new()).collect(),
            limits: AtomicUsize::new(0),
        }
    }

    /// What is kept where the same conditions hold as for this request. `make` makes it for the
    /// first of them.
    ///
    /// # Errors
    ///
    /// The numbers of the conditions that hold, if it cannot be made, or if there is no room for
    /// it.
    #[inline]
    pub(super) fn find(
        &self,
        parts: &Parts,
        make: impl Fn(&[u16]) -> Option<T>,
    ) -> Result<&T, Box<Numbers>> {
        let all = &self.conditions.all;
        let holding = if all.len() <= FEW {
            let mark_of = |one: &Numbered| {
                if one.condition.holds(parts) {
                    one.mark
                } else {
                    0
                }
            };
            let mark = all.iter().fold(0, |mark, one| mark | mark_of(one));
            if let Some(Entry {
                kept: Some(kept), ..
            }) = self.table[mark].get()
            {
                return Ok(kept);
            }
            (0..)
                .zip(all)
                .filter(|(_, one)| mark & one.mark != 0)
                .map(|(number, _)| number)
                .collect()
        } else {
            self.holding(parts)
        };
        match self.get(&holding, || make(&holding)) {
            Some(kept) => Ok(kept),
            None => Err(Box::new(holding)),
        }
    }

    /// The numbers of the conditions that hold for a request, in their order. Each that may hold is
    /// asked once.
    fn holding(&self, parts: &Parts) -> Numbers {
        let Conditions {
            all, asked, index, ..
        } = &*self.conditions;
        let Some(index) = index else {
            return asked
                .iter()
                .copied()
                .filter(|number| all[usize::from(*number)].condition.holds(parts))
                .collect();
        };
        let mut found = Numbers::from_slice(asked);
        index.find(parts, &mut found);
        found.sort_unstable();
        found.dedup();
        found.retain(|number| all[usize::from(*number)].condition.holds_where_found(parts));
        found
    }

    fn get(&self, holding: &[u16], make: impl Fn() -> Option<T>) -> Option<&T> {
        let mark = holding.iter().fold(0, |mark, number| {
            mark ^ self.conditions.all[usize::from(*number)].mark
        });
        for probe in 0..PROBES {
            let slot = &self.table[mark.wrapping_add(probe) & (self.table.len() - 1)];
            let entry = match slot.get() {
                Some(entry) => entry,
                None => self.add(slot, holding, &make)?,
            };
            if *entry.holding == *holding {
                return entry.kept.as_ref();
            }
        }
        None
    }

    /// Fills a slot, unless another thread does. No thread waits for the other one.
    #[cold]
    fn add<'s>(
        &self,
        slot: &'s OnceLock<Entry<T>>,
        holding: &[u16],
        make: &impl Fn() -> Option<T>,
    ) -> Option<&'s Entry<T>> {
        if holding.len() > MOST_LIMITS_OF_AN_ENTRY {
            return None;
        }
        let limits = self.conditions.others + holding.len();
        let has_room = self.limits.fetch_add(limits, Ordering::Relaxed) + limits <= MOST_LIMITS;
        // Another thread's entry may be of another combination.
        if !has_room
            || slot
                .set(Entry {
                    holding: holding.into(),
                    kept: make(),
                })
                .is_err()
        {
            self.limits.fetch_sub(limits, Ordering::Relaxed);
        }
        slot.get()
    }

    /// Has no room from now on.
    #[cfg(test)]
    pub(super) fn fill(&self) {
        self.limits.store(MOST_LIMITS, Ordering::Relaxed);
    }

    /// Whether a limit applies that may be left out, by its index.
    pub(super) fn applies(&self, place: usize, holding: &[u16]) -> bool {
        let number = self
            .conditions
            .all
            .binary_search_by_key(&place, |condition| condition.place);
        number.is_ok_and(|number| holding.binary_search(&(number as u16)).is_ok())
    }
}

/// Few numbers have a bit each. The bits of the others are random, but the same each time.
fn mark(number: u16) -> usize {
    let number = usize::from(number);
    if number < FEW {
        return 1 << number;
    }
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) as usize >> 32
}

/// Clones have nothing yet: what they keep may be made otherwise.
impl<T> Clone for Narrowed<T> {
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.conditions))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use http::Request;
    use throttle_core::{Gcra, Rate};

    use super::*;
    use crate::limit::IntoLimitTree;
    use crate::{Constant, all, limit};

    /// Limits of which each applies to the requests that have its number in a header.
    fn narrowed(limits: usize) -> Narrowed<Vec<u16>> {
        let one = |number: usize| {
            let gcra = Gcra::new(Rate::per_second(1));
            limit(number.to_string(), gcra)
                .by(Constant)
                .when(move |parts: &Parts| {
                    parts
                        .headers
                        .get_all("number")
                        .iter()
                        .any(|value| *value == *number.to_string())
                })
        };
        let limits = all((0..limits).map(one).collect::<Vec<_>>())
            .into_limit_tree()
            .compile()
            .unwrap();
        Narrowed::new(&limits.applied, false).unwrap()
    }

    fn kept<'n>(narrowed: &'n Narrowed<Vec<u16>>, numbers: &[u16]) -> Option<&'n Vec<u16>> {
        let request = numbers.iter().fold(Request::builder(), |request, number| {
            request.header("number", *number)
        });
        let holding = narrowed.holding(&request.body(()).unwrap().into_parts().0);
        assert_eq!(*holding, *numbers);
        narrowed.get(&holding, || Some(numbers.to_vec()))
    }

    /// Each combination has its own entry; those for which there is no room have none, and take no
    /// memory.
    #[test]
    fn requests_cannot_make_a_layer_keep_more_than_it_has_room_for() {
        for limits in [1, 3, 8, 9, 20, 1_000] {
            let (narrowed, last) = (narrowed(limits), limits as u16);
            let alone = (0..last).map(|number| vec![number]);
            let pairs = (0..last)
                .flat_map(|first| (first + 1..last).map(move |second| vec![first, second]));
            let many = (1..=last / 2).map(|first| (first..last).collect());
            let mut kept_for = HashSet::new();
            for numbers in [vec![]]
                .into_iter()
                .chain(alone)
                .chain(many)
                .chain(pairs.take(9_000))
            {
                let kept = narrowed.get(&numbers, || Some(numbers.clone()));
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
                assert_eq!(kept(&narrowed, numbers), Some(numbers), "it stays");
            }
        }
    }

    /// Each of the largest takes as much room as it has limits.
    #[test]
    fn combinations_are_kept_while_all_their_limits_have_room() {
        let narrowed = narrowed(1_000);
        let is_kept = |first: u16, limits: usize| {
            let numbers: Vec<u16> = (first..).take(limits).collect();
            narrowed.get(&numbers, || Some(vec![])).is_some()
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
            assert!(narrowed.get(&[1], fails).is_none());
        }
        assert_eq!(tries.into_inner(), 1);
    }
}
