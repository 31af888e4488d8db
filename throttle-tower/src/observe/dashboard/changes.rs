use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use throttle_core::BackendErrorKind;

use crate::lock::{lock, try_lock};
use crate::observe::decider::Decider;

/// The moments at which another one began to decide. A second counts as a whole, so a store that
/// fails every other request changes nothing every other request.
#[derive(Default)]
pub(super) struct Changes {
    /// The latest second, and the index of its worst decider: a request that adds nothing to that
    /// needs no lock.
    latest: AtomicU64,
    pub(super) seconds: Mutex<DeciderSeconds>,
}

#[derive(Default)]
pub(super) struct DeciderSeconds {
    /// The running second as a change, which it is none if the second before had the same decider.
    running: Option<DeciderChange>,
    /// The latest changes of seconds that have ended, the newest last.
    ended: VecDeque<DeciderChange>,
}

const MOST: usize = 20;

/// The decider of whole seconds has become another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeciderChange {
    pub(super) second: u32,
    /// `None` for the first decision of all.
    pub(super) from: Option<Decider>,
    pub(super) to: Decider,
    pub(super) why: Option<BackendErrorKind>,
}

impl Changes {
    /// Notes a decision of a second.
    #[inline]
    pub(super) fn note(&self, second: u32, decider: Decider, why: Option<BackendErrorKind>) {
        let noted = u64::from(second) << 8 | (decider as u64 + 1);
        if noted > self.latest.load(Ordering::Relaxed) {
            self.note_other(noted, (second, decider), why);
        }
    }

    /// If the lock is not free, the next request notes it.
    fn note_other(
        &self,
        noted: u64,
        (second, decider): (u32, Decider),
        why: Option<BackendErrorKind>,
    ) {
        if let Some(mut seconds) = try_lock(&self.seconds)
            && noted > self.latest.load(Ordering::Relaxed)
        {
            self.latest.store(noted, Ordering::Relaxed);
            seconds.note(second, decider, why);
        }
    }

    /// What decides now; `None` before the first decision.
    pub(super) fn decider(&self) -> Option<Decider> {
        lock(&self.seconds).running.map(|running| running.to)
    }

    /// The latest changes, the newest first.
    pub(super) fn list(&self) -> Vec<DeciderChange> {
        let seconds = lock(&self.seconds);
        let running = seconds.running.filter(DeciderChange::is_one);
        running
            .into_iter()
            .chain(seconds.ended.iter().rev().copied())
            .take(MOST)
            .collect()
    }
}

impl DeciderSeconds {
    fn note(&mut self, second: u32, to: Decider, why: Option<BackendErrorKind>) {
        let from = match self.running {
            Some(running) if running.second == second => running.from,
            ended => {
                self.ended.extend(ended.filter(DeciderChange::is_one));
                if self.ended.len() > MOST {
                    self.ended.pop_front();
                }
                ended.map(|ended| ended.to)
            }
        };
        self.running = Some(DeciderChange {
            second,
            from,
            to,
            why,
        });
    }
}

impl DeciderChange {
    fn is_one(&self) -> bool {
        self.from != Some(self.to)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const TIMEOUT: Option<BackendErrorKind> = Some(BackendErrorKind::Timeout);

    fn seen(changes: &Changes) -> Vec<(u32, Option<Decider>, Decider, Option<BackendErrorKind>)> {
        changes
            .list()
            .into_iter()
            .map(|change| (change.second, change.from, change.to, change.why))
            .collect()
    }

    #[test]
    fn moments_of_change_are_listed_newest_first_with_their_reasons() {
        let changes = Changes::default();
        assert_eq!(
            (changes.decider(), changes.list()),
            (None, vec![]),
            "nothing yet"
        );
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
                (
                    12,
                    Some(Decider::Local),
                    Decider::Closed,
                    Some(BackendErrorKind::Suspended)
                ),
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
            [
                (6, Some(Decider::Store), Decider::Open, TIMEOUT),
                (5, None, Decider::Store, None)
            ]
        );
        changes.note(5, Decider::Closed, TIMEOUT);
        assert_eq!(
            changes.decider(),
            Some(Decider::Open),
            "a late note changes nothing"
        );
    }

    #[test]
    fn a_store_that_flaps_for_ever_leaves_the_latest_changes_only() {
        let changes = Changes::default();
        for second in 1..=1_000 {
            let decider = if second % 2 == 0 {
                Decider::Store
            } else {
                Decider::Local
            };
            changes.note(second, decider, None);
        }
        let seconds: Vec<_> = changes.list().iter().map(|change| change.second).collect();
        assert_eq!(seconds, (981..=1_000).rev().collect::<Vec<_>>());
    }

    #[test]
    fn threads_that_end_a_second_together_write_one_change() {
        let changes = Changes::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for second in 1..=20_000 {
                        let decider = if second < 10_000 {
                            Decider::Store
                        } else {
                            Decider::Local
                        };
                        // Where the lock is not free, the next request of the second notes it.
                        while changes.latest.load(Ordering::Relaxed) >> 8 < u64::from(second) {
                            changes.note(second, decider, TIMEOUT);
                        }
                    }
                });
            }
        });
        let found: Vec<_> = changes
            .list()
            .iter()
            .map(|change| (change.second, change.to))
            .collect();
        assert_eq!(found, [(10_000, Decider::Local), (1, Decider::Store)]);
    }
}
