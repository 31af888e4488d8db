//! The task that offers the turns of one key while calls wait for them.

use std::sync::Arc;
use std::time::Duration;

use throttle_core::{Backend, Key, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::answer::{Answer, Calls};
use super::error::ShapeError;
use super::queue::{Driver, Due, Next, Queue, Turn};
use super::schedule::Schedule;
use super::wanted::Wanted;
use crate::time::micros;

/// A driver that is later than this has a runtime that does not run.
const OVERDUE: Duration = Duration::from_millis(50);

/// What a driver asks a store for: the turns of the first calls, which are due before the answer
/// can be here.
struct Asking {
    calls: Calls,
    /// The ticket of the first call, and what it needs alone.
    first: (u64, Calls),
    /// Of each call its cost, and how much later than the first its turn begins.
    turns: Vec<(u64, Duration)>,
    /// Of other units; then it is one turn.
    units: Option<Box<[u64]>>,
    start: Instant,
    as_of: Option<Timestamp>,
}

impl Queue {
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
            self.afterwards.driver = Some(Arc::clone(&driver.wakes));
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

    /// Begins a driver that is woken by the result, in place of the former one.
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
pub(super) fn begin<B: Backend>(schedule: &Arc<Schedule<B>>, key: &Key, runtime: &Handle) {
    let Some(wakes) = schedule.change(key, false, Queue::begin_driver) else {
        return;
    };
    let ends = Ends {
        schedule: Arc::clone(schedule),
        key: key.clone(),
        wakes,
    };
    drop(runtime.spawn(async move { ends.drive().await }));
}

/// A driver. When its runtime ends, it is dropped, and the calls of other runtimes go on without
/// it.
struct Ends<B: Backend> {
    schedule: Arc<Schedule<B>>,
    key: Key,
    wakes: Arc<Notify>,
}

impl<B: Backend> Ends<B> {
    async fn drive(&self) {
        while let Some(step) = self.step() {
            match step {
                Step::Ask(asking) => self.ask(asking).await,
                Step::Sleep(until) => drop(timeout_at(until, self.wakes.notified()).await),
            }
        }
    }

    fn step(&self) -> Option<Step> {
        let step = self.schedule.change(&self.key, false, |queue, now| {
            if !queue.is_driven_by(&self.wakes) {
                return None;
            }
            let (step, next) = match queue.advance(now) {
                Next::Nothing => {
                    queue.driver = None;
                    return None;
                }
                Next::At(at) => (Step::Sleep(at), at),
                // The store answers within its deadline.
                Next::Ask => (
                    Step::Ask(Box::new(self.schedule.asking(queue, now)?)),
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

    async fn ask(&self, asking: Box<Asking>) {
        let asked = Instant::now();
        let (first, alone) = &asking.first;
        let (answer, is_degraded) = self.schedule.ask(&asking.calls, alone, asking.as_of).await;
        let now = Instant::now();
        let trip = now - asked;
        // Without the store only the first call was decided.
        let turns = if is_degraded {
            &asking.turns[..1]
        } else {
            &asking.turns[..]
        };
        let at = match asking.as_of {
            // Turns that the round trip has made late are not taken all at once.
            Some(_) => self.schedule.not_too_late(asking.start, now),
            // Without the store's clock, the decision was made somewhere between.
            None => asked + trip / 2,
        };
        if !is_degraded {
            self.schedule.note_trip(trip);
        }
        let mut answer = Some(answer);
        self.schedule.change(&self.key, false, |queue, _| {
            match answer.take() {
                Some(Answer::Granted { next, receipt }) => {
                    queue.is_due(Due::at(at + next));
                    let mut receipt = receipt.filter(|_| turns.len() == 1);
                    queue.turns.extend(turns.iter().map(|(cost, later)| Turn {
                        at: at + *later,
                        cost: *cost,
                        units: asking.units.clone(),
                        receipt: receipt.take(),
                    }));
                }
                // The first call may have given up, and what it waits for says nothing about the
                // next one.
                Some(Answer::Wait(_) | Answer::Never | Answer::Failed(_))
                    if queue.next_call(now) != Ok(*first) =>
                {
                    return queue.is_due(Due::at(now));
                }
                Some(Answer::Wait(wait)) => return queue.is_due(Due::at(at + wait)),
                Some(Answer::Never) => queue.refuse(*first),
                Some(Answer::Unpaced) => {
                    // Those that a pause has held do not leave all at once.
                    let is_paced = queue.pauses.have_held();
                    let from = queue.next_call(now).unwrap_or_default();
                    let calls = queue
                        .ready_from(from)
                        .take(if is_paced { 1 } else { usize::MAX });
                    let turn = |Wanted { cost, units, .. }: &Wanted| Turn {
                        at,
                        cost: *cost,
                        units: units.clone(),
                        receipt: None,
                    };
                    let turns: Vec<Turn> = calls.map(|call| turn(&call.wanted)).collect();
                    let length = queue
                        .ready_from(from)
                        .next()
                        .filter(|_| is_paced)
                        .map_or(Duration::ZERO, |call| call.length);
                    queue.is_due(Due::at(at + length));
                    queue.turns.extend(turns);
                }
                Some(Answer::Failed(error)) => queue.fail(*first, ShapeError::Store(error)),
                None => {}
            }
            if is_degraded {
                (0..queue.turns.len().max(1)).for_each(|_| self.schedule.counters.degraded());
            }
        });
        if let Some(Answer::Granted { receipt, .. }) = answer {
            // All calls of the key have given up.
            self.schedule.give_back(receipt);
        }
    }
}

enum Step {
    Sleep(Instant),
    Ask(Box<Asking>),
}

impl<B: Backend> Schedule<B> {
    /// Asks for the turn of the first call, and for those that are due before the answer can be
    /// here, so that a round trip does not limit the rate.
    fn asking(&self, queue: &mut Queue, now: Instant) -> Option<Asking> {
        let ticket = queue.next_call(now).ok()?;
        let first = queue.call(ticket)?;
        let start = self.not_too_late(queue.turn_of(first, now), now);
        let late = now.saturating_duration_since(start);
        let horizon = late + self.trip();
        let (mut turns, mut cost, mut later) = (Vec::new(), 0_u64, Duration::ZERO);
        // The upstream may let calls leave farther apart than a batch of turns is.
        let is_alone = first.wanted.units.is_some() || queue.pauses.is_active(now);
        for call in queue.ready_from(ticket) {
            if !turns.is_empty() && (later > horizon || is_alone) {
                break;
            }
            turns.push((call.wanted.cost, later));
            cost = cost.saturating_add(call.wanted.cost);
            later += call.length;
        }
        let alone = first.wanted.calls();
        let mut calls = alone.clone();
        if turns.len() > 1 {
            calls
                .iter_mut()
                .for_each(|call| *call = call.clone().costing(cost));
        }
        let as_of = self.backend.now(&self.prepared, &calls);
        let as_of = as_of.map(|now| {
            Timestamp::from_micros(now.as_micros().saturating_sub_unsigned(micros(late)))
        });
        Some(Asking {
            calls,
            first: (ticket, alone),
            turns,
            units: first.wanted.units.clone(),
            start,
            as_of,
        })
    }
}

impl<B: Backend> Drop for Ends<B> {
    fn drop(&mut self) {
        self.schedule.change(&self.key, false, |queue, _| {
            if queue.is_driven_by(&self.wakes) {
                queue.driver = None;
                queue.wake_all();
            }
        });
    }
}
