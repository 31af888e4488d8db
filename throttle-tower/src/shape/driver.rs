//! The task that offers the turns of one key while calls wait for them.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Backend, Key, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::answer::{PaceCalls, TurnAnswer};
use super::error::ShapeError;
use super::queue::{CallQueue, Driver, Due, NextStep, PaceTurn};
use super::schedule::Schedule;
use crate::time::micros;

/// A driver that is later than this has a runtime that does not run.
const OVERDUE: Duration = Duration::from_millis(50);

/// What a driver asks a store for: the turns of the first calls, which are due before the answer
/// can be here. A turn that other units count in is alone.
struct StoreQuestion {
    /// The ticket of the first call.
    first: u64,
    calls: PaceCalls,
    turns: Vec<PaceTurn>,
    as_of: Option<Timestamp>,
}

impl CallQueue {
    /// Whether a future that waits has to begin a driver. If the driver sleeps for too long, it is
    /// woken.
    pub(super) fn needs_driver(&mut self, next: Instant, now: Instant) -> bool {
        let Some(driver) = self
            .driver
            .as_ref()
            .filter(|driver| now < driver.next + OVERDUE)
        else {
            return true;
        };
        if next < driver.next {
            self.aftermath.driver = Some(Arc::clone(&driver.wakes));
        }
        false
    }

    /// Offers a turn that is due, and lets the driver know when the next one is.
    pub(super) fn go_on(&mut self, now: Instant) {
        let next = self.advance(now).at(now);
        self.needs_driver(next, now);
    }

    /// As [`go_on`](Self::go_on), after a change by which the next turn may be due earlier or later
    /// than was known.
    pub(super) fn look_again(&mut self, now: Instant) {
        self.is_due(Due::at(now));
        self.go_on(now);
    }

    /// Begins a driver, which replaces the former one. The result wakes it.
    fn begin_driver(&mut self, now: Instant) -> Arc<Notify> {
        let wakes = Arc::default();
        self.driver = Some(Driver {
            next: now,
            wakes: Arc::clone(&wakes),
        });
        wakes
    }

    fn is_driven_by(&self, wakes: &Arc<Notify>) -> bool {
        self.driver
            .as_ref()
            .is_some_and(|driver| Arc::ptr_eq(&driver.wakes, wakes))
    }
}

/// Begins a driver in the current runtime.
pub(super) fn begin(schedule: &Arc<Schedule>, key: &Key, runtime: &Handle) {
    let Some(wakes) = schedule.change(key, false, CallQueue::begin_driver) else {
        return;
    };
    let ends = DriverTask {
        schedule: Arc::clone(schedule),
        key: key.clone(),
        wakes,
    };
    drop(runtime.spawn(async move { ends.drive().await }));
}

/// A driver. When its runtime ends, it is dropped, and the calls of other runtimes go on without
/// it.
struct DriverTask {
    schedule: Arc<Schedule>,
    key: Key,
    wakes: Arc<Notify>,
}

impl DriverTask {
    async fn drive(&self) {
        while let Some(step) = self.step() {
            match step {
                DriverStep::Ask(question) => self.ask(question).await,
                DriverStep::Sleep(until) => drop(timeout_at(until, self.wakes.notified()).await),
            }
        }
    }

    fn step(&self) -> Option<DriverStep> {
        let step = self.schedule.change(&self.key, false, |queue, now| {
            if !queue.is_driven_by(&self.wakes) {
                return None;
            }
            let (step, next) = match queue.advance(now) {
                NextStep::Nothing => {
                    queue.driver = None;
                    return None;
                }
                NextStep::At(at) => (DriverStep::Sleep(at), at),
                // The store answers within its deadline.
                NextStep::Ask => (
                    DriverStep::Ask(Box::new(self.schedule.question(queue, now)?)),
                    now + Duration::from_secs(1),
                ),
            };
            if let Some(driver) = &mut queue.driver {
                driver.next = next;
            }
            Some(step)
        });
        step.flatten()
    }

    async fn ask(&self, mut question: Box<StoreQuestion>) {
        let StoreQuestion {
            first,
            calls,
            turns,
            as_of,
        } = &mut *question;
        let first = *first;
        let start = turns[0].at;
        let asked = Instant::now();
        let (answer, is_degraded) = match self.schedule.ask(calls, *as_of).await {
            Ok(answer) => (answer, false),
            Err(error) => {
                // Without the store only the first call is decided.
                turns.truncate(1);
                set_requests(calls, turns[0].cost);
                (self.schedule.without_the_store(error, calls), true)
            }
        };
        let now = Instant::now();
        let trip = now - asked;
        let at = match as_of {
            // Turns that the round trip has made late are not taken all together.
            Some(_) => self.schedule.not_too_late(start, now),
            // Without the store's clock, the decision was made somewhere between.
            None => asked + trip / 2,
        };
        if !is_degraded {
            self.schedule.note_trip(trip);
        }
        let mut answer = Some(answer);
        self.schedule.change(&self.key, false, |queue, _| {
            match answer.take() {
                Some(TurnAnswer::Granted { next, receipt }) => {
                    queue.is_due(Due::at(at + next));
                    if let [turn] = &mut turns[..] {
                        turn.receipt = receipt;
                    }
                    turns.iter_mut().for_each(|turn| turn.at += at - start);
                    queue.turns.extend(turns.drain(..));
                }
                // The first call may have given up, and what it waits for says nothing about the
                // next one.
                Some(TurnAnswer::Wait(_) | TurnAnswer::Never | TurnAnswer::Failed(_))
                    if queue.next_call(now) != Ok(first) =>
                {
                    return queue.is_due(Due::at(now));
                }
                Some(TurnAnswer::Wait(wait)) => return queue.is_due(Due::at(at + wait)),
                Some(TurnAnswer::Never) => queue.refuse(first),
                Some(TurnAnswer::Unpaced) => {
                    // Calls that a pause has held do not leave all together.
                    let is_paced = queue.pauses.have_held();
                    let from = queue.next_call(now).unwrap_or_default();
                    let most = if is_paced { 1 } else { usize::MAX };
                    let calls = queue.ready_from(from).take(most);
                    let unpaced: Vec<PaceTurn> = calls.map(|call| call.turn(at)).collect();
                    let length = match queue.ready_from(from).next() {
                        Some(call) if is_paced => call.length,
                        _ => Duration::ZERO,
                    };
                    queue.is_due(Due::at(at + length));
                    queue.turns.extend(unpaced);
                }
                Some(TurnAnswer::Failed(error)) => queue.fail(first, ShapeError::Store(error)),
                None => {}
            }
            if is_degraded {
                (0..queue.turns.len().max(1)).for_each(|_| self.schedule.counters.degraded());
            }
        });
        if let Some(TurnAnswer::Granted { receipt, .. }) = answer {
            // All calls of the key have given up.
            self.schedule.give_back(receipt);
        }
    }
}

enum DriverStep {
    Sleep(Instant),
    Ask(Box<StoreQuestion>),
}

impl Schedule {
    /// Asks for the turn of the first call, and for those that are due before the answer can be
    /// here, so that a round trip does not limit the rate.
    fn question(&self, queue: &mut CallQueue, now: Instant) -> Option<StoreQuestion> {
        let ticket = queue.next_call(now).ok()?;
        let first = queue.call(ticket)?;
        let start = self.not_too_late(queue.turn_of(first, now), now);
        let horizon = now + self.trip();
        // The upstream may let calls leave farther apart than a batch of turns is.
        let is_alone = first.demand.units.is_some() || queue.pauses.is_active(now);
        let mut turns = Vec::new();
        let mut at = start;
        let mut cost = 0_u64;
        for call in queue.ready_from(ticket) {
            if !turns.is_empty() && (at > horizon || is_alone) {
                break;
            }
            turns.push(call.turn(at));
            cost = cost.saturating_add(call.demand.cost);
            at += call.length;
        }
        let mut calls = first.demand.calls();
        if turns.len() > 1 {
            set_requests(&mut calls, cost);
        }
        let late = micros(now.saturating_duration_since(start));
        let as_of = self.backend.now(&self.prepared, &calls);
        let as_of =
            as_of.map(|now| Timestamp::from_micros(now.as_micros().saturating_sub_unsigned(late)));
        Some(StoreQuestion {
            first: ticket,
            calls,
            turns,
            as_of,
        })
    }
}

/// Sets how many requests the turn of a question is for.
fn set_requests(calls: &mut PaceCalls, requests: u64) {
    if let Some(call) = calls.first_mut().filter(|_| requests > 0) {
        *call = call.clone().costing(requests);
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.schedule.change(&self.key, false, |queue, _| {
            if queue.is_driven_by(&self.wakes) {
                queue.driver = None;
                queue.wake_all();
            }
        });
    }
}
