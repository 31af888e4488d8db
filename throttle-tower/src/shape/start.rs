//! How a call starts: it leaves now, or it joins the queue of its key and leaves when it takes a turn.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Cost, Key, Timestamp};
use tokio::time::Instant;

use super::ask::Answer;
use super::error::{Bound, QueueFull, ShapeError};
use super::queue::{Afterwards, Bounds, Due, Next, Polled, Queue};
use super::schedule::Schedule;
use super::waits::Waits;
use super::wanted::Wanted;
use crate::time::micros;

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
    /// Starts a call.
    #[inline]
    pub(super) fn start(self: &Arc<Self>, wanted: Wanted) -> Started<B> {
        if self.queues.is_empty() && (wanted.deadline.is_none() || wanted.cost == 1) {
            match self.one_key(&wanted.key) {
                Some(one_key) if one_key.leave(Cost::at_least_one(wanted.cost)).is_ok() => {
                    self.counters.sent_at_once();
                    return Ok(Start::Left(None));
                }
                None if wanted.units.is_none() && self.leaves_at_once(&wanted) => return Ok(Start::Left(None)),
                _ => {}
            }
        }
        self.start_or_wait(wanted)
    }

    /// Whether the backend lets a call leave without waiting for anything. Nothing is charged otherwise.
    #[inline(never)]
    fn leaves_at_once(self: &Arc<Self>, wanted: &Wanted) -> bool {
        let calls = [Call::new(wanted.key.clone(), Cost::at_least_one(wanted.cost))];
        let decision = self.backend.decide_at_once(&self.prepared, &calls);
        let leaves = decision.is_some_and(|decision| decision.is_admitted());
        if leaves {
            self.counters.sent();
            self.look_for_pauses(&wanted.key);
        }
        leaves
    }

    // Not inlined, so that what it keeps does not enlarge the frame of a call that leaves at once.
    #[inline(never)]
    fn start_or_wait(self: &Arc<Self>, wanted: Wanted) -> Started<B> {
        let started = self.try_start(wanted);
        match &started {
            Ok(Start::Left(_)) => self.counters.sent(),
            Ok(Start::Waits(_)) => {}
            Err(_) => self.counters.refused(),
        }
        started
    }

    fn try_start(self: &Arc<Self>, wanted: Wanted) -> Started<B> {
        let now = Instant::now();
        let bounds = self.bounds(&wanted)?;
        let must_wait =
            |queue: &mut Queue| queue.has_ready_calls() || queue.start() > now || queue.pauses.is_active(now);
        let mut due = None;
        if self.queues.change(&wanted.key, must_wait) != Some(true) {
            // Read before the decision, so that the next turn is not expected too late.
            let by_backend = self.backend_now(&wanted);
            let answer = self.ask_at_once(&wanted, None);
            if answer.is_some() {
                self.answers_at_once();
            }
            match answer {
                Some(Answer::Granted { receipt, .. }) => {
                    self.look_for_pauses(&wanted.key);
                    return Ok(Start::Left(receipt.filter(|_| wanted.units.is_some())));
                }
                Some(Answer::Wait(wait)) => {
                    due = Some(Due { at: now + wait, by_backend: by_backend.map(|now| now + wait) });
                }
                Some(_) => return Err(QueueFull { retry_after: None, ..bounds.full }.into()),
                None => {}
            }
        }
        let (key, length) = (wanted.key.clone(), self.paces.length(&wanted));
        let ticket = self.queues.change_or_begin(&key, now, |queue| {
            if let Some(due) = due.filter(|due| due.at > queue.due.at) {
                queue.is_due(due);
            }
            queue.at_once |= self.is_at_once(&key);
            let start = queue.start_of_next(now);
            if start > now + bounds.window {
                return Err(bounds.refusal(start, now));
            }
            if !self.counters.begin_wait(self.max_waiting) {
                return Err(TOO_MANY);
            }
            Ok(queue.join(wanted, length, bounds, now))
        });
        Ok(Start::Waits(Waits::new(self, key, ticket?)))
    }

    /// By when the turn of a call has to begin.
    ///
    /// # Errors
    ///
    /// If its last unit would leave too late although it begins at once.
    fn bounds(&self, wanted: &Wanted) -> Result<Bounds, QueueFull> {
        let (bound, allowed) = match wanted.deadline.filter(|deadline| *deadline < self.max_wait) {
            Some(deadline) => (Bound::Deadline, deadline),
            None => (Bound::MaxWait, self.max_wait),
        };
        let full = QueueFull { bound, retry_after: None, allowed, unit: self.paces.slowest(wanted) };
        let window = allowed.checked_sub(self.paces.tail(wanted)).ok_or(full)?;
        Ok(Bounds { window: window.min(crate::time::FAR), full })
    }

    /// A call that waits is polled.
    pub(super) fn poll_call(
        &self,
        key: &Key,
        ticket: u64,
        waker: &Waker,
        now: Instant,
        afterwards: &mut Afterwards,
    ) -> Polled {
        let polled = self.queues.change(key, |queue| {
            loop {
                if let Some(refused) = queue.poll(ticket, waker, afterwards) {
                    afterwards.removed.extend(queue.remove(ticket));
                    return Polled::Refused(refused);
                }
                let next = queue.advance(now, afterwards);
                if queue.is_offered(ticket) {
                    if let Some(receipt) = self.take_turn(queue, ticket, now, afterwards) {
                        afterwards.removed.extend(queue.remove(ticket));
                        // The next turn may be due as well.
                        queue.go_on(now, afterwards);
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
                    let refusal = call.bounds.refusal(queue.start_of_next(now), now);
                    afterwards.removed.extend(queue.remove(ticket));
                    return Polled::Refused(refusal.into());
                }
                let next = match next {
                    Next::At(next) => next,
                    Next::Nothing | Next::Ask => now,
                };
                let needs_driver = queue.needs_driver(next, now, afterwards);
                return Polled::Waits { look_at: queue.start_of_next(now).min(latest), needs_driver };
            }
        });
        // The queue of a call that waits is not removed.
        polled.unwrap_or_else(|| Polled::Refused(TOO_MANY.into()))
    }

    /// Takes a turn that is offered to a call. `None` if it is not due after all.
    fn take_turn(
        &self,
        queue: &mut Queue,
        ticket: u64,
        now: Instant,
        afterwards: &mut Afterwards,
    ) -> Option<Option<Box<Receipt>>> {
        if !queue.turns.is_empty() {
            let turn = queue.take_turn(ticket, now, afterwards)?;
            let call = queue.call(ticket)?;
            let (requests, is_by_units) = (call.wanted.cost, call.wanted.units.is_some());
            queue.left(turn.at, requests, now);
            return Some(turn.receipt.filter(|_| is_by_units));
        }
        let call = queue.call(ticket)?;
        let wanted = &call.wanted;
        let start = self.not_too_late(queue.start().max(call.came), now);
        let late = micros(now.saturating_duration_since(start));
        let present = self.backend_now(wanted);
        let as_of = present.map(|present| match queue.due.by_backend {
            Some(due) if queue.due.at == start => due.min(present),
            _ => Timestamp::from_micros(present.as_micros().saturating_sub_unsigned(late)),
        });
        let due = |wait: Duration| match (present, as_of) {
            (Some(present), Some(as_of)) => {
                let due = as_of + wait;
                let from_now = due.micros_since(present);
                let at = if from_now >= 0 {
                    now + Duration::from_micros(from_now.unsigned_abs())
                } else {
                    now.checked_sub(Duration::from_micros(from_now.unsigned_abs())).unwrap_or(now)
                };
                Due { at, by_backend: Some(due) }
            }
            _ => Due { at: now + wait, by_backend: None },
        };
        let is_by_units = wanted.units.is_some();
        match self.ask_at_once(wanted, as_of) {
            Some(Answer::Granted { next, receipt }) => {
                // What is left of a microsecond is found out by asking.
                let due = due(next.saturating_sub(Duration::from_micros(1)));
                let requests = wanted.cost;
                queue.is_due(due);
                queue.left(start, requests, now);
                Some(receipt.filter(|_| is_by_units))
            }
            Some(Answer::Wait(wait)) => {
                let due = due(wait);
                queue.is_due(due);
                None
            }
            Some(_) => {
                queue.refuse_first(afterwards);
                None
            }
            None => {
                queue.at_once = false;
                queue.is_due(queue.due);
                None
            }
        }
    }

    /// A call that waits is dropped: the next one has its place at once.
    pub(super) fn give_up(&self, key: &Key, ticket: u64) {
        let (now, mut afterwards) = (Instant::now(), Afterwards::default());
        self.queues.change(key, |queue| {
            afterwards.removed.extend(queue.give_up(ticket, now));
            queue.go_on(now, &mut afterwards);
        });
        self.finish(afterwards);
    }
}

const TOO_MANY: QueueFull =
    QueueFull { bound: Bound::MaxWaiting, retry_after: None, allowed: Duration::ZERO, unit: None };
