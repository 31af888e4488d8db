//! How a call starts: it leaves now, or it joins the queue of its key.

use std::sync::Arc;

use throttle_core::Backend;
use throttle_core::backend::Receipt;
use tokio::time::Instant;

use super::answer::TurnAnswer;
use super::demand::Demand;
use super::error::{Bound, QueueFull, ShapeError};
use super::queue::{Bounds, CallQueue, Due};
use super::schedule::Schedule;
use super::waits::TurnWait;
use crate::time::{FAR, time_for};

/// A call that is not refused.
pub(super) enum Start {
    /// It has left, with what it was charged if that can be settled.
    Left(Option<Box<Receipt>>),
    Waits(TurnWait),
}

impl Schedule {
    pub(super) fn start(self: &Arc<Self>, demand: Demand) -> Result<Start, ShapeError> {
        let start = self.leave_or_join(demand);
        match &start {
            Ok(Start::Left(_)) => self.counters.sent(),
            Ok(Start::Waits(_)) => {}
            Err(error) => self.counters.refused(error),
        }
        start
    }

    fn leave_or_join(self: &Arc<Self>, demand: Demand) -> Result<Start, ShapeError> {
        let now = Instant::now();
        let bounds = self.bounds(&demand, 0, now)?;
        let door = match demand.class.reserve {
            0 => bounds,
            reserve => self.bounds(&demand, reserve, now)?,
        };
        let must_wait = |queue: &mut CallQueue, now| {
            queue.has_ready_calls() || queue.start() > now || queue.pauses.is_active(now)
        };
        let mut due = None;
        if self.change(&demand.key, false, must_wait) != Some(true) {
            match self.ask_now(&demand.calls(), None) {
                Some(TurnAnswer::Granted { receipt, .. }) => {
                    self.look_for_pauses(&demand.key);
                    return Ok(Start::Left(receipt));
                }
                Some(TurnAnswer::Wait(wait)) => due = Some(Due::at(now + wait)),
                Some(_) => return Err(bounds.full.into()),
                None => {}
            }
        }
        let key = demand.key.clone();
        let ticket = self.change(&key, true, |queue, now| {
            queue.decides_now |= due.is_some() || !self.backend.can_fail();
            if let Some(due) = due.filter(|due| due.at > queue.due.at) {
                queue.is_due(due);
            }
            let ticket = queue.next_ticket(demand.class.index);
            let start = queue.start_of_next(ticket, now);
            if start > door.latest {
                return Err(queue.refusal(&door, start, now));
            }
            if !self.counters.begin_wait(self.max_waiting) {
                return Err(QueueFull::TOO_MANY);
            }
            let length = self.paces.length(&demand);
            queue.join(ticket, demand, length, bounds, door, now);
            Ok(ticket)
        });
        let ticket = ticket.unwrap_or(Err(QueueFull::TOO_MANY))?;
        Ok(Start::Waits(TurnWait::new(self, key, ticket)))
    }

    /// By when the turn of a call has to begin, if requests of the reserve have to find room after
    /// it.
    ///
    /// # Errors
    ///
    /// If its last unit would leave too late although it begins now.
    fn bounds(&self, demand: &Demand, reserve: u64, now: Instant) -> Result<Bounds, QueueFull> {
        let (mut bound, mut allowed) = match reserve {
            0 => (Bound::MaxWait, self.max_wait),
            reserve => {
                let reserved = time_for(self.paces.requests, reserve);
                (Bound::Class, self.max_wait.saturating_sub(reserved))
            }
        };
        if let Some(deadline) = demand.deadline.filter(|deadline| *deadline < allowed) {
            allowed = deadline;
            bound = Bound::Deadline;
        }
        let full = QueueFull {
            bound,
            retry_after: None,
            allowed,
            unit: self.paces.slowest(demand),
            pause: None,
        };
        let window = allowed.checked_sub(self.paces.tail(demand)).ok_or(full)?;
        Ok(Bounds {
            latest: now + window.min(FAR),
            full,
        })
    }
}
