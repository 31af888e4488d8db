//! How a call starts: it leaves now, or it joins the queue of its key and leaves when it takes a turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Decision, Key, Timestamp};
use tokio::time::Instant;

use super::answer::Answer;
use super::error::{Bound, QueueFull, ShapeError};
use super::queue::{Bounds, Due, Polled, Queue, Waiting};
use super::schedule::Schedule;
use super::waits::Waits;
use super::wanted::{Class, Wanted};
use crate::time::{micros, time_for};

/// A call that is not refused.
pub(super) enum Start<B: Backend> {
    /// It has left, with what it was charged if that can be settled.
    Left(Option<Box<Receipt>>),
    Waits(Waits<B>),
}

pub(super) type Started<B> = Result<Start<B>, ShapeError>;

/// How much later than its latest instant a call is refused that no turn was offered to: its turn may be on the way.
const LAST_CALL: Duration = Duration::from_millis(20);

impl<B: Backend> Schedule<B> {
    /// Starts a call. Its class is asked for if it does not leave at once.
    #[inline(always)]
    pub(super) fn start(self: &Arc<Self>, wanted: &Wanted, class: impl FnOnce() -> Class) -> Started<B> {
        if self.queues.is_empty() && wanted.cost == 1 && self.leaves_at_once(wanted) {
            return Ok(Start::Left(None));
        }
        self.start_or_wait(wanted, class())
    }

    /// Whether a single request leaves without waiting for anything. Nothing is charged otherwise.
    #[inline(always)]
    fn leaves_at_once(self: &Arc<Self>, wanted: &Wanted) -> bool {
        match self.one_key(&wanted.key) {
            Some(one_key) => {
                let leaves = one_key.leave();
                if leaves {
                    self.counters.sent_at_once();
                }
                leaves
            }
            None => wanted.units.is_none() && self.backend_lets_leave(&wanted.key),
        }
    }

    #[inline(never)]
    fn backend_lets_leave(self: &Arc<Self>, key: &Key) -> bool {
        let decision = self.backend.decide_at_once(&self.prepared, &[Call::from(key.clone())]);
        let leaves = decision.as_ref().is_some_and(Decision::is_admitted);
        if leaves {
            self.counters.sent();
            if self.shared_pauses.is_some() {
                self.look_for_pauses(key);
            }
        }
        leaves
    }

    // Not inlined, so that what it keeps does not enlarge the frame of a call that leaves at once.
    #[inline(never)]
    fn start_or_wait(self: &Arc<Self>, wanted: &Wanted, class: Class) -> Started<B> {
        let started = self.try_start(wanted, class);
        match &started {
            Ok(Start::Left(_)) => self.counters.sent(),
            Ok(Start::Waits(_)) => {}
            Err(_) => self.counters.refused(),
        }
        started
    }

    fn try_start(self: &Arc<Self>, wanted: &Wanted, class: Class) -> Started<B> {
        let (key, now) = (&wanted.key, Instant::now());
        let bounds = self.bounds(wanted, (Bound::MaxWait, self.max_wait))?;
        let door = match class.reserve {
            0 => bounds,
            reserve => {
                let reserved = time_for(self.paces.requests, reserve);
                self.bounds(wanted, (Bound::Class, self.max_wait.saturating_sub(reserved)))?
            }
        };
        let must_wait =
            |queue: &mut Queue, now| queue.has_ready_calls() || queue.start() > now || queue.pauses.is_active(now);
        let mut due = None;
        if self.change(key, false, must_wait) != Some(true) {
            if let Some(one_key) = self.one_key(key) {
                match one_key.leave_as_of(now, wanted.cost) {
                    Ok(_) => return Ok(Start::Left(None)),
                    Err(at) => due = Some(Due::at(at)),
                }
            } else {
                // Read before the decision, so that the next turn is not expected too late.
                let by_backend = self.backend_now(wanted);
                let answer = self.ask_at_once(wanted, None);
                // Written once, because calls on other cores read it.
                if answer.is_some() && !self.is_at_once(key) {
                    self.answers_at_once.store(true, Ordering::Relaxed);
                }
                match answer {
                    Some(Answer::Granted { receipt, .. }) => {
                        self.look_for_pauses(key);
                        return Ok(Start::Left(receipt));
                    }
                    Some(Answer::Wait(wait)) => {
                        due = Some(Due { at: now + wait, by_backend: by_backend.map(|now| now + wait) });
                    }
                    Some(_) => return Err(QueueFull { retry_after: None, ..bounds.full }.into()),
                    None => {}
                }
            }
        }
        let ticket = self.change(key, true, |queue, now| {
            if let Some(due) = due.filter(|due| due.at > queue.due.at) {
                queue.is_due(due);
            }
            queue.at_once |= self.is_at_once(key);
            let ticket = queue.next_ticket(class.place);
            let start = queue.start_of_next(ticket, now);
            if start > now + door.window {
                return Err(door.refusal(start, now));
            }
            if !self.counters.begin_wait(self.max_waiting) {
                return Err(TOO_MANY);
            }
            let (call, told) = ((wanted.clone(), self.paces.length(wanted)), Bounds { full: bounds.full, ..door });
            queue.join(ticket, call, told, bounds.window, now);
            Ok(ticket)
        });
        Ok(Start::Waits(Waits::new(self, key.clone(), ticket.unwrap_or(Err(TOO_MANY))?)))
    }

    /// By when the turn of a call has to begin, which may wait so long.
    ///
    /// # Errors
    ///
    /// If its last unit would leave too late although it begins at once.
    fn bounds(&self, wanted: &Wanted, (bound, longest): (Bound, Duration)) -> Result<Bounds, QueueFull> {
        let (bound, allowed) = match wanted.deadline.filter(|deadline| *deadline < longest) {
            Some(deadline) => (Bound::Deadline, deadline),
            None => (bound, longest),
        };
        let full = QueueFull { bound, retry_after: None, allowed, unit: self.paces.slowest(wanted) };
        let window = allowed.checked_sub(self.paces.tail(wanted)).ok_or(full)?;
        Ok(Bounds { window: window.min(crate::time::FAR), full })
    }

    /// A call that waits is polled.
    pub(super) fn poll_call(&self, key: &Key, ticket: u64, waker: &Waker) -> Polled {
        let polled = self.change(key, false, |queue, now| {
            loop {
                if let Some(refused) = queue.poll(ticket, waker) {
                    queue.remove(ticket);
                    return Polled::Refused(refused);
                }
                let next = queue.advance(now);
                if queue.is_offered(ticket, now) {
                    if let Some(receipt) = self.take_turn(queue, ticket, now) {
                        queue.remove(ticket);
                        // The next turn may be due as well.
                        queue.go_on(now);
                        return Polled::Left(receipt);
                    }
                    continue;
                }
                let Some(call) = queue.call(ticket) else { return Polled::Refused(TOO_MANY.into()) };
                if call.is_refused() {
                    continue;
                }
                let latest = queue.latest(call);
                if now > latest + LAST_CALL {
                    let refusal = call.bounds.refusal(queue.start_of_next(ticket, now), now);
                    queue.remove(ticket);
                    return Polled::Refused(refusal.into());
                }
                let needs_driver = queue.needs_driver(next.at(now), now);
                return Polled::Waits { look_at: queue.start_of_next(ticket, now).min(latest), needs_driver };
            }
        });
        // The queue of a call that waits is not removed.
        polled.unwrap_or_else(|| Polled::Refused(TOO_MANY.into()))
    }

    /// Takes a turn that is offered to a call. `None` if it is not due after all.
    fn take_turn(&self, queue: &mut Queue, ticket: u64, now: Instant) -> Option<Option<Box<Receipt>>> {
        let Waiting { wanted, came, .. } = queue.call(ticket)?;
        let (requests, is_by_units) = (wanted.cost, wanted.units.is_some());
        if !queue.turns.is_empty() {
            let turn = queue.take_turn(ticket, now)?;
            queue.left(turn.at, requests, now);
            return Some(turn.receipt.filter(|_| is_by_units));
        }
        let start = self.not_too_late(queue.start().max(*came), now);
        if let Some(one_key) = self.one_key(&wanted.key) {
            let left = one_key.leave_as_of(start, requests);
            queue.is_due(Due::at(left.unwrap_or_else(|later| later)));
            return left.is_ok().then(|| {
                queue.left(start, requests, now);
                None
            });
        }
        let late = micros(now.saturating_duration_since(start));
        let present = self.backend_now(wanted);
        let as_of = present.map(|present| match queue.due.by_backend {
            Some(due) if queue.due.at == start => due.min(present),
            _ => Timestamp::from_micros(present.as_micros().saturating_sub_unsigned(late)),
        });
        let due = |wait: Duration| match present.zip(as_of) {
            Some((present, as_of)) => {
                let due = as_of + wait;
                let ahead = Duration::from_micros(due.micros_since(present).max(0).unsigned_abs());
                let behind = Duration::from_micros(present.micros_since(due).max(0).unsigned_abs());
                Due { at: (now + ahead).checked_sub(behind).unwrap_or(now), by_backend: Some(due) }
            }
            None => Due::at(now + wait),
        };
        match self.ask_at_once(wanted, as_of) {
            Some(Answer::Granted { next, receipt }) => {
                // What is left of a microsecond is found out by asking.
                queue.is_due(due(next.saturating_sub(Duration::from_micros(1))));
                queue.left(start, requests, now);
                return Some(receipt.filter(|_| is_by_units));
            }
            Some(Answer::Wait(wait)) => queue.is_due(due(wait)),
            Some(_) => queue.refuse_first(),
            None => {
                queue.at_once = false;
                queue.is_due(queue.due);
            }
        }
        None
    }

    /// A call that waits is dropped: the next one has its place at once.
    pub(super) fn give_up(&self, key: &Key, ticket: u64) {
        self.change(key, false, |queue, now| {
            queue.give_up(ticket, now);
            queue.go_on(now);
        });
    }
}

const TOO_MANY: QueueFull =
    QueueFull { bound: Bound::MaxWaiting, retry_after: None, allowed: Duration::ZERO, unit: None };
