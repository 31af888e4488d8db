//! The requests of one queue in order of arrival, and which of them has the turn.
//!
//! A request gives up its turn in two ways. It leaves, and the next one has the turn at once. Or it
//! does not use the turn because its future is kept and not polled, or because its runtime is not
//! driven. Only another request can notice that, and it is not known which of them are polled. So
//! each looks at the first after a time of its own, earlier ones sooner, and the first one that
//! looks passes the turn on.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

/// How long a request may be overdue before it is passed. A busy runtime polls a task within that
/// time.
pub(super) const GRACE: Duration = Duration::from_millis(5);

/// How much later each request looks than the one before it.
const STEP: Duration = Duration::from_millis(1);

/// The longest time between two looks. The first may leave long before its turn, when the others
/// have no reason to look.
const LONGEST_LOOK: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(super) struct Line {
    first: Option<First>,
    behind: VecDeque<WaitingEntry>,
    /// The units of all its requests.
    units: u64,
    /// Of the requests that have left their positions after the first.
    woken: Wakers,
}

pub(super) type Wakers = SmallVec<[Waker; 1]>;

/// A request as a line knows it.
#[derive(Clone, Copy)]
pub(super) struct LineEntry {
    /// Counts arrivals.
    pub(super) number: u64,
    pub(super) units: u64,
}

struct First {
    entry: LineEntry,
    /// When it has lost its turn unless it is polled.
    until: Instant,
}

struct WaitingEntry {
    entry: LineEntry,
    /// When its timer wakes it, or the instant at which it was polled.
    looks: Instant,
    waker: Option<Waker>,
}

/// What a request finds that is polled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TurnState {
    Now,
    /// When to look again.
    NotYet(Instant),
}

impl Line {
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.behind.len()
    }

    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn is_first(&self, entry: LineEntry) -> bool {
        self.first
            .as_ref()
            .is_some_and(|first| first.entry.number == entry.number)
    }

    /// Whether a request stands in the line: it was not passed.
    pub(super) fn contains(&self, entry: LineEntry) -> bool {
        self.is_first(entry) || self.position(entry).is_ok()
    }

    /// Adds a request behind those that arrived before it, if it does not stand in the line.
    pub(super) fn enter(&mut self, entry: LineEntry, now: Instant) {
        if !self.is_first(entry)
            && let Err(position) = self.position(entry)
        {
            self.units = self.units.saturating_add(entry.units);
            self.behind.insert(
                position,
                WaitingEntry {
                    entry,
                    looks: now,
                    waker: None,
                },
            );
        }
    }

    /// What a request finds when it is polled. A request that was passed stands in the line again.
    pub(super) fn look(
        &mut self,
        entry: LineEntry,
        waker: Option<&Waker>,
        now: Instant,
    ) -> TurnState {
        if !self.is_first(entry) {
            self.enter(entry, now);
            if let Ok(position) = self.position(entry) {
                self.behind[position].looks = now;
            }
            self.pass_overdue(now);
        }
        match (&self.first, self.position(entry)) {
            (Some(first), Ok(position)) => {
                let waiting = &mut self.behind[position];
                let steps = STEP.saturating_mul(u32::try_from(position).unwrap_or(u32::MAX));
                waiting.looks = first.until.min(now + LONGEST_LOOK) + steps;
                waiting.waker = waker.cloned();
                TurnState::NotYet(waiting.looks)
            }
            _ => TurnState::Now,
        }
    }

    /// Sets until when the request that has the turn keeps it although it is not polled.
    pub(super) fn keep_turn(&mut self, entry: LineEntry, until: Instant) {
        if let Some(first) = self
            .first
            .as_mut()
            .filter(|first| first.entry.number == entry.number)
        {
            first.until = until;
        }
    }

    /// Passes the requests that have not used their turn.
    pub(super) fn pass_overdue(&mut self, now: Instant) {
        while self.first.as_ref().is_none_or(|first| first.until <= now) {
            self.end_turn();
            let Some(next) = self.behind.front() else {
                return;
            };
            // It may have been woken by its own timer, and not polled since.
            let woken = next.looks.min(now);
            self.start_turn(woken + GRACE);
        }
    }

    /// Removes a request. If it had the turn, the next one has it.
    pub(super) fn leave(&mut self, entry: LineEntry, now: Instant) {
        if self.is_first(entry) {
            self.end_turn();
            self.start_turn(now + GRACE);
        } else if let Ok(position) = self.position(entry) {
            self.woken
                .extend(self.behind.remove(position).and_then(|left| left.waker));
            self.units = self.units.saturating_sub(entry.units);
        }
    }

    /// The wakers of the requests that had the turn or left since the last call. The caller wakes
    /// them outside of every lock, and drops none: a task may exist by its waker alone, and
    /// dropping a task may change this line.
    pub(super) fn take_woken(&mut self) -> Wakers {
        std::mem::take(&mut self.woken)
    }

    fn end_turn(&mut self) {
        if let Some(first) = self.first.take() {
            self.units = self.units.saturating_sub(first.entry.units);
        }
    }

    /// Gives the turn, which no request has now, to the next one.
    fn start_turn(&mut self, until: Instant) {
        if let Some(next) = self.behind.pop_front() {
            self.woken.extend(next.waker);
            self.first = Some(First {
                entry: next.entry,
                until,
            });
        }
    }

    fn position(&self, entry: LineEntry) -> Result<usize, usize> {
        self.behind
            .binary_search_by_key(&entry.number, |waiting| waiting.entry.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn entry(number: u64) -> LineEntry {
        LineEntry { number, units: 10 }
    }

    /// A line of so many requests, of which the first keeps its turn for a second.
    fn line_of(requests: u64) -> (Line, Instant) {
        let (mut line, now) = (Line::default(), Instant::now());
        for number in 0..requests {
            line.enter(entry(number), now);
            line.look(entry(number), None, now);
        }
        line.keep_turn(entry(0), now + 1_000 * MS);
        (line, now)
    }

    fn first(line: &Line) -> Option<u64> {
        line.first.as_ref().map(|first| first.entry.number)
    }

    #[test]
    fn request_that_was_passed_has_the_next_turn_when_it_is_polled() {
        let (mut line, now) = line_of(4);
        assert_eq!(line.look(entry(2), None, now + 1_010 * MS), TurnState::Now);
        assert!(!line.contains(entry(0)) && !line.contains(entry(1)));
        line.keep_turn(entry(2), now + 1_100 * MS);
        for number in [3, 1, 0] {
            assert!(matches!(
                line.look(entry(number), None, now + 1_020 * MS),
                TurnState::NotYet(_)
            ));
        }
        for next in [0, 1, 3] {
            let leaving = entry(first(&line).unwrap());
            line.leave(leaving, now + 1_020 * MS);
            assert_eq!(first(&line), Some(next));
        }
    }

    #[test]
    fn request_whose_timer_has_not_woken_it_gets_time_to_take_its_turn() {
        let (mut line, now) = line_of(3);
        for number in [1, 2] {
            line.look(entry(number), None, now + 999 * MS);
        }
        line.pass_overdue(now + 1_000 * MS);
        assert_eq!(first(&line), Some(1));
        line.pass_overdue(now + 1_004 * MS);
        assert_eq!(first(&line), Some(1));
        line.pass_overdue(now + 1_005 * MS);
        assert_eq!(first(&line), Some(2));
    }
}
