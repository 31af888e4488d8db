//! How a call starts: it leaves now, or it joins the queue of its key.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throttle_core::backend::{Call, Receipt};
use throttle_core::{Backend, Decision, Key};
use tokio::time::Instant;

use super::answer::Answer;
use super::error::{Bound, QueueFull, ShapeError};
use super::queue::{Bounds, Due, Queue};
use super::schedule::Schedule;
use super::waits::Waits;
use super::wanted::{Class, Wanted};
use crate::time::time_for;

/// A call that is not refused.
pub(super) enum Start<B: Backend> {
    /// It has left, with what it was charged if that can be settled.
    Left(Option<Box<Receipt>>),
    Waits(Waits<B>),
}

pub(super) type Started<B> = Result<Start<B>, ShapeError>;

impl<B: Backend> Schedule<B> {
    /// Starts a call. Its class is asked for if it does not leave at once.
    #[inline(always)]
    pub(super) fn start(
        self: &Arc<Self>,
        wanted: &Wanted,
        class: impl FnOnce() -> Class,
    ) -> Started<B> {
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
        let decision = self
            .backend
            .decide_at_once(&self.prepared, &[Call::from(key.clone())]);
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
            Err(error) => self.counters.refused(error),
        }
        started
    }

    fn try_start(self: &Arc<Self>, wanted: &Wanted, class: Class) -> Started<B> {
        let (key, now) = (&wanted.key, Instant::now());
        let bounds = self.bounds(wanted, (Bound::MaxWait, self.max_wait), now)?;
        let door = match class.reserve {
            0 => bounds,
            reserve => {
                let reserved = time_for(self.paces.requests, reserve);
                self.bounds(
                    wanted,
                    (Bound::Class, self.max_wait.saturating_sub(reserved)),
                    now,
                )?
            }
        };
        let must_wait = |queue: &mut Queue, now| {
            queue.has_ready_calls() || queue.start() > now || queue.pauses.is_active(now)
        };
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
                        due = Some(Due {
                            at: now + wait,
                            by_backend: by_backend.map(|now| now + wait),
                        });
                    }
                    Some(_) => {
                        return Err(QueueFull {
                            retry_after: None,
                            ..bounds.full
                        }
                        .into());
                    }
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
            if start > door.latest {
                return Err(queue.refusal(&door, start, now));
            }
            if !self.counters.begin_wait(self.max_waiting) {
                return Err(QueueFull::TOO_MANY);
            }
            let (call, told) = (
                (wanted.clone(), self.paces.length(wanted)),
                Bounds {
                    full: bounds.full,
                    ..door
                },
            );
            queue.join(ticket, call, told, bounds.latest, now);
            Ok(ticket)
        });
        Ok(Start::Waits(Waits::new(
            self,
            key.clone(),
            ticket.unwrap_or(Err(QueueFull::TOO_MANY))?,
        )))
    }

    /// By when the turn of a call has to begin, which may wait so long.
    ///
    /// # Errors
    ///
    /// If its last unit would leave too late although it begins at once.
    fn bounds(
        &self,
        wanted: &Wanted,
        (bound, longest): (Bound, Duration),
        now: Instant,
    ) -> Result<Bounds, QueueFull> {
        let (bound, allowed) = match wanted.deadline.filter(|deadline| *deadline < longest) {
            Some(deadline) => (Bound::Deadline, deadline),
            None => (bound, longest),
        };
        let full = QueueFull {
            bound,
            retry_after: None,
            allowed,
            unit: self.paces.slowest(wanted),
            paused: None,
        };
        let window = allowed.checked_sub(self.paces.tail(wanted)).ok_or(full)?;
        Ok(Bounds {
            latest: now + window.min(crate::time::FAR),
            full,
        })
    }
}
