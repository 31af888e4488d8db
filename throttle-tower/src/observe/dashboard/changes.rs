use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use throttle_core::BackendErrorKind;

use crate::observe::decider::Decider;

/// The moments at which another one began to decide. A second counts as a whole, so a store that fails every other
/// request changes nothing every other request.
#[derive(Default)]
pub(super) struct Changes {
    /// The latest second with a decision, and how the seconds before it ended: a packed [`Latest`].
    latest: AtomicU64,
    /// A ring of packed [`Change`]s.
    changes: [AtomicU64; MOST],
    made: AtomicU32,
}

const MOST: usize = 20;

/// The decider of whole seconds has become another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) second: u32,
    /// `None` for the first decision of all.
    pub(super) from: Option<Decider>,
    pub(super) to: Decider,
    pub(super) why: Option<BackendErrorKind>,
}

#[derive(Clone, Copy)]
struct Latest {
    second: u32,
    decider: Option<Decider>,
    why: Option<BackendErrorKind>,
    /// Of the seconds before.
    before: Option<Decider>,
}

impl Changes {
    /// Notes a decision of a second.
    #[inline]
    pub(super) fn note(&self, second: u32, decider: Decider, why: Option<BackendErrorKind>) {
        let latest = Latest::unpack(self.latest.load(Ordering::Relaxed));
        if latest.second != second || latest.decider < Some(decider) {
            self.note_other(second, decider, why);
        }
    }

    #[cold]
    fn note_other(&self, second: u32, decider: Decider, why: Option<BackendErrorKind>) {
        let noted = self.latest.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| {
            let old = Latest::unpack(old);
            let before = match old.second {
                same if same == second && old.decider < Some(decider) => old.before,
                earlier if earlier < second => old.decider,
                _ => return None,
            };
            Some(Latest { second, decider: Some(decider), why, before }.pack())
        });
        // One thread alone ends a second, and that one writes down how it ended.
        if let Ok(ended) = noted.map(Latest::unpack)
            && ended.second < second
            && let Some(change) = ended.change()
        {
            let place = self.made.fetch_add(1, Ordering::Relaxed) as usize % MOST;
            self.changes[place].store(change.pack(), Ordering::Release);
        }
    }

    /// What decides now; `None` before the first decision.
    pub(super) fn decider(&self) -> Option<Decider> {
        Latest::unpack(self.latest.load(Ordering::Acquire)).decider
    }

    /// The latest changes, the newest first.
    pub(super) fn list(&self) -> Vec<Change> {
        let latest = Latest::unpack(self.latest.load(Ordering::Acquire)).change();
        let noted = self.changes.iter().filter_map(|change| Change::unpack(change.load(Ordering::Acquire)));
        let mut changes: Vec<_> = noted.chain(latest).collect();
        changes.sort_unstable_by_key(|change| std::cmp::Reverse(change.second));
        // A second may end while it is read.
        changes.dedup();
        changes.truncate(MOST);
        changes
    }
}

impl Latest {
    /// The change that this second makes, should it end now.
    fn change(self) -> Option<Change> {
        let to = self.decider?;
        (self.before != Some(to)).then_some(Change { second: self.second, from: self.before, to, why: self.why })
    }

    const fn pack(self) -> u64 {
        pack(self.second, self.decider, self.why, self.before)
    }

    fn unpack(packed: u64) -> Self {
        let (second, decider, why, before) = unpack(packed);
        Self { second, decider, why, before }
    }
}

impl Change {
    const fn pack(self) -> u64 {
        pack(self.second, Some(self.to), self.why, self.from)
    }

    /// `None` if there is none yet.
    fn unpack(packed: u64) -> Option<Self> {
        let (second, to, why, from) = unpack(packed);
        Some(Self { second, from, to: to?, why })
    }
}

/// In one number, so that no lock is needed. 0 is nothing at all.
const fn pack(second: u32, decider: Option<Decider>, why: Option<BackendErrorKind>, before: Option<Decider>) -> u64 {
    (second as u64) << 32 | place(decider) << 16 | place_of_reason(why) << 8 | place(before)
}

fn unpack(packed: u64) -> (u32, Option<Decider>, Option<BackendErrorKind>, Option<Decider>) {
    let [before, why, decider, ..] = packed.to_le_bytes().map(usize::from);
    let decider_at = |place: usize| Decider::ALL.get(place.checked_sub(1)?).copied();
    let reason = why.checked_sub(1).and_then(|place| BackendErrorKind::ALL.get(place)).copied();
    ((packed >> 32) as u32, decider_at(decider), reason, decider_at(before))
}

const fn place(decider: Option<Decider>) -> u64 {
    match decider {
        Some(decider) => decider as u64 + 1,
        None => 0,
    }
}

const fn place_of_reason(why: Option<BackendErrorKind>) -> u64 {
    match why {
        Some(why) => why as u64 + 1,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const TIMEOUT: Option<BackendErrorKind> = Some(BackendErrorKind::Timeout);

    fn seen(changes: &Changes) -> Vec<(u32, Option<Decider>, Decider, Option<BackendErrorKind>)> {
        changes.list().into_iter().map(|change| (change.second, change.from, change.to, change.why)).collect()
    }

    #[test]
    fn moments_of_change_are_listed_newest_first_with_their_reasons() {
        let changes = Changes::default();
        assert_eq!((changes.decider(), changes.list()), (None, vec![]), "nothing yet");
        changes.note(5, Decider::Store, None);
        changes.note(9, Decider::Store, None);
        assert_eq!(seen(&changes), [(5, None, Decider::Store, None)]);
        changes.note(10, Decider::Local, TIMEOUT);
        changes.note(11, Decider::Local, TIMEOUT);
        changes.note(12, Decider::Closed, Some(BackendErrorKind::Suspended));
        changes.note(20, Decider::Store, None);
        assert_eq!(changes.decider(), Some(Decider::Store));
        assert_eq!(
            seen(&changes),
            [
                (20, Some(Decider::Closed), Decider::Store, None),
                (12, Some(Decider::Local), Decider::Closed, Some(BackendErrorKind::Suspended)),
                (10, Some(Decider::Store), Decider::Local, TIMEOUT),
                (5, None, Decider::Store, None),
            ]
        );
    }

    #[test]
    fn a_second_counts_as_its_worst_decision() {
        let changes = Changes::default();
        changes.note(5, Decider::Store, None);
        for _ in 0..100 {
            changes.note(6, Decider::Store, None);
            changes.note(6, Decider::Open, TIMEOUT);
            changes.note(6, Decider::Local, TIMEOUT);
        }
        assert_eq!(changes.decider(), Some(Decider::Open));
        assert_eq!(
            seen(&changes),
            [(6, Some(Decider::Store), Decider::Open, TIMEOUT), (5, None, Decider::Store, None)]
        );
        changes.note(5, Decider::Closed, TIMEOUT);
        assert_eq!(changes.decider(), Some(Decider::Open), "a late note changes nothing");
    }

    #[test]
    fn a_store_that_flaps_for_ever_leaves_the_latest_changes_only() {
        let changes = Changes::default();
        for second in 1..=1_000 {
            let decider = if second % 2 == 0 { Decider::Store } else { Decider::Local };
            changes.note(second, decider, None);
        }
        let seconds: Vec<_> = changes.list().iter().map(|change| change.second).collect();
        assert_eq!(seconds, (981..=1_000).rev().collect::<Vec<_>>());
    }

    #[test]
    fn every_reason_is_found_again() {
        for reason in BackendErrorKind::ALL.iter().copied().map(Some).chain([None]) {
            for to in Decider::ALL {
                let change = Change { second: u32::MAX, from: Some(Decider::Open), to, why: reason };
                assert_eq!(Change::unpack(change.pack()), Some(change));
            }
        }
    }

    #[test]
    fn threads_that_end_a_second_together_write_one_change() {
        let changes = Changes::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for second in 1..=20_000 {
                        changes.note(second, if second < 10_000 { Decider::Store } else { Decider::Local }, TIMEOUT);
                    }
                });
            }
        });
        let found: Vec<_> = changes.list().iter().map(|change| (change.second, change.to)).collect();
        assert_eq!(found, [(10_000, Decider::Local), (1, Decider::Store)]);
    }
}
