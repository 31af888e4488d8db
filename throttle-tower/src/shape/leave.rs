//! How a call that waits leaves: it takes a turn, is refused, or is given up.

use std::task::Waker;
use std::time::Duration;

use throttle_core::backend::Receipt;
use throttle_core::{Backend, Key, Timestamp};
use tokio::time::Instant;

use super::answer::TurnAnswer;
use super::error::QueueFull;
use super::queue::{CallQueue, CallState, Due, HeldCall};
use super::schedule::Schedule;
use crate::time::micros;

/// How much later than its latest instant a call is refused that no turn was offered to: its turn
/// may be on the way.
const LAST_CALL: Duration = Duration::from_millis(20);

impl Schedule {
    /// A call that waits is polled.
    pub(super) fn poll_call(&self, key: &Key, ticket: u64, waker: &Waker) -> CallState {
        let polled = self.change(key, false, |queue, now| {
            loop {
                if let Some(refused) = queue.poll(ticket, waker) {
                    queue.remove(ticket);
                    return CallState::Refused(refused);
                }
                let next = queue.advance(now);
                if queue.is_offered(ticket, now) {
                    if let Some(receipt) = self.take_turn(queue, ticket, now) {
                        queue.remove(ticket);
                        // The next turn may be due as well.
                        queue.go_on(now);
                        return CallState::Left(receipt);
                    }
                    continue;
                }
                let Some(call) = queue.call(ticket) else {
                    return CallState::Refused(QueueFull::TOO_MANY.into());
                };
                if call.is_refused() {
                    continue;
                }
                let latest = call.latest;
                let start = queue.start_of_next(ticket, now);
                if now > latest + LAST_CALL {
                    let refusal = queue.refusal(&call.bounds, start, now);
                    queue.remove(ticket);
                    return CallState::Refused(refusal.into());
                }
                let needs_driver = queue.needs_driver(next.at(now), now);
                let held_until = queue.pauses.held(now).unwrap_or(now);
                return CallState::Waits {
                    look_at: start.max(held_until).min(latest),
                    needs_driver,
                };
            }
        });
        // The queue of a call that waits is not removed.
        polled.unwrap_or_else(|| CallState::Refused(QueueFull::TOO_MANY.into()))
    }

    /// Takes a turn that is offered to a call. `None` if it is not due after all.
    fn take_turn(
        &self,
        queue: &mut CallQueue,
        ticket: u64,
        now: Instant,
    ) -> Option<Option<Box<Receipt>>> {
        let call = queue.call(ticket)?;
        let HeldCall { demand, .. } = call;
        let is_by_units = demand.units.is_some();
        if !queue.turns.is_empty() {
            let turn = queue.take_turn(ticket, now)?;
            queue.left(ticket, now);
            return Some(turn.receipt.filter(|_| is_by_units));
        }
        let start = self.not_too_late(queue.turn_of(call, now), now);
        let late = micros(now.saturating_duration_since(start));
        let calls = demand.calls();
        let present = self.backend.now(&self.prepared, &calls);
        let as_of = present.map(|present| match queue.due.by_backend {
            Some(due) if queue.due.at == start => due.min(present),
            _ => Timestamp::from_micros(present.as_micros().saturating_sub_unsigned(late)),
        });
        let due = |wait: Duration| match present.zip(as_of) {
            Some((present, as_of)) => Due::by_backend(as_of + wait, present, now),
            None => Due::at(now + wait),
        };
        match self.ask_now(&calls, as_of) {
            Some(TurnAnswer::Granted { next, receipt }) => {
                // What is left of a microsecond is found out by asking.
                queue.is_due(due(next.saturating_sub(Duration::from_micros(1))));
                queue.left(ticket, now);
                return Some(receipt.filter(|_| is_by_units));
            }
            Some(TurnAnswer::Wait(wait)) => queue.is_due(due(wait)),
            Some(_) => queue.refuse(ticket),
            None => {
                queue.decides_now = false;
                queue.is_due(queue.due);
            }
        }
        None
    }

    /// A call that waits is dropped. The next one has its position immediately.
    pub(super) fn give_up(&self, key: &Key, ticket: u64) {
        self.change(key, false, |queue, now| {
            queue.give_up(ticket, now);
            queue.go_on(now);
        });
    }
}
