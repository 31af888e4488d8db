//! How a call that waits leaves: it takes a turn, is refused, or is given up.

use std::task::Waker;
use std::time::Duration;

use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key, Timestamp};
use tokio::time::Instant;

use super::answer::Answer;
use super::error::QueueFull;
use super::queue::{Due, Polled, Queue, Waiting};
use super::schedule::Schedule;
use crate::time::micros;

/// How much later than its latest instant a call is refused that no turn was offered to: its turn
/// may be on the way.
const LAST_CALL: Duration = Duration::from_millis(20);

impl<B: Backend> Schedule<B> {
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
                let Some(call) = queue.call(ticket) else {
                    return Polled::Refused(QueueFull::TOO_MANY.into());
                };
                if call.is_refused() {
                    continue;
                }
                let latest = call.latest;
                let start = queue.start_of_next(ticket, now);
                if now > latest + LAST_CALL {
                    let refusal = queue.refusal(&call.bounds, start, now);
                    queue.remove(ticket);
                    return Polled::Refused(refusal.into());
                }
                let needs_driver = queue.needs_driver(next.at(now), now);
                let held_until = queue.pauses.held(now).unwrap_or(now);
                return Polled::Waits {
                    look_at: start.max(held_until).min(latest),
                    needs_driver,
                };
            }
        });
        // The queue of a call that waits is not removed.
        polled.unwrap_or_else(|| Polled::Refused(QueueFull::TOO_MANY.into()))
    }

    /// Takes a turn that is offered to a call. `None` if it is not due after all.
    fn take_turn(
        &self,
        queue: &mut Queue,
        ticket: u64,
        now: Instant,
    ) -> Option<Option<Box<Receipt>>> {
        let call = queue.call(ticket)?;
        let Waiting { wanted, .. } = call;
        let (requests, is_by_units) = (wanted.cost, wanted.units.is_some());
        if !queue.turns.is_empty() {
            let turn = queue.take_turn(ticket, now)?;
            queue.left(ticket, now);
            return Some(turn.receipt.filter(|_| is_by_units));
        }
        let start = self.not_too_late(queue.turn_of(call, now), now);
        if let Some(one_key) = self.one_key(&wanted.key) {
            let left = one_key.leave_as_of(start, requests);
            queue.is_due(Due::at(left.unwrap_or_else(|later| later)));
            return left.is_ok().then(|| {
                queue.left(ticket, now);
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
                Due {
                    at: (now + ahead).checked_sub(behind).unwrap_or(now),
                    by_backend: Some(due),
                }
            }
            None => Due::at(now + wait),
        };
        match self.ask_at_once(wanted, as_of) {
            Some(Answer::Granted { next, receipt }) => {
                // What is left of a microsecond is found out by asking.
                queue.is_due(due(next.saturating_sub(Duration::from_micros(1))));
                queue.left(ticket, now);
                return Some(receipt.filter(|_| is_by_units));
            }
            Some(Answer::Wait(wait)) => queue.is_due(due(wait)),
            Some(_) => queue.refuse(ticket),
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
