//! To which of the calls that wait the turns are offered that are due. Open it where calls of
//! several costs wait.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::demand::Demand;
use super::queue::{CallQueue, Due, HeldCall, PaceTurn};

/// More calls than this that pass those to which a store has granted turns may make it lose one.
const MOST_PASSING: usize = 64;

impl CallQueue {
    /// Whether a turn is offered to this call now. A call that no granted turn fits has passed
    /// those that one fits, and comes after them.
    pub(super) fn is_offered(&self, ticket: u64, now: Instant) -> bool {
        let is_granted = |ticket| self.is_granted(ticket, now);
        // Turns that fit none of them are given back by the first one.
        let gives_back =
            || self.in_offer().next() == Some(ticket) && !self.in_offer().any(is_granted);
        let is_next = self.in_offer().any(|offered| offered == ticket);
        is_next && (self.turns.is_empty() || is_granted(ticket) || gives_back())
    }

    pub(super) fn in_offer(&self) -> impl Iterator<Item = u64> {
        let (calls, from) = self
            .offer
            .as_ref()
            .map_or((0, 0), |offer| (offer.calls, offer.from));
        self.ready.range(from..).take(calls).copied()
    }

    /// Whether a granted turn that is due fits a call.
    pub(super) fn is_granted(&self, ticket: u64, now: Instant) -> bool {
        self.call(ticket)
            .is_some_and(|call| self.turns.iter().any(|turn| turn.fits(&call.demand, now)))
    }

    /// To how many of the first calls the turns that are due are offered: to as many as they fit,
    /// and to those before.
    pub(super) fn calls_for_due_turns(&self, now: Instant) -> usize {
        let mut due: SmallVec<[&PaceTurn; 8]> = self
            .turns
            .iter()
            .take_while(|turn| turn.at <= now)
            .collect();
        let mut calls = 1;
        for (index, ticket) in self
            .ready
            .iter()
            .take(2 * due.len() + MOST_PASSING)
            .enumerate()
        {
            if due.is_empty() {
                break;
            }
            let fitting =
                |call: &HeldCall| due.iter().position(|turn| turn.fits(&call.demand, now));
            if let Some(turn) = self.call(*ticket).and_then(fitting) {
                due.remove(turn);
                calls = index + 1;
            }
        }
        calls
    }

    /// Takes a granted turn for a call to which it is offered.
    pub(super) fn take_turn(&mut self, ticket: u64, now: Instant) -> Option<PaceTurn> {
        let demand = &self.call(ticket)?.demand;
        if let Some(index) = self.turns.iter().position(|turn| turn.fits(demand, now)) {
            return self.turns.remove(index);
        }
        if self.in_offer().next() == Some(ticket) {
            // It was granted for a call of another cost, which is gone.
            self.due = Due::at(now);
            self.aftermath
                .unused
                .extend(self.turns.pop_front().and_then(|turn| turn.receipt));
        }
        self.offer = None;
        None
    }
}

impl PaceTurn {
    fn fits(&self, demand: &Demand, now: Instant) -> bool {
        self.at <= now && self.cost == demand.cost && self.units == demand.units
    }
}
