//! The task that offers the turns of one key while calls wait for them.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use throttle_core::{Backend, Key, Timestamp};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use super::ask::{Answer, Calls};
use super::error::ShapeError;
use super::queue::{Afterwards, Driver, Due, Next, Queue, Turn};
use super::schedule::Schedule;
use super::wanted::Wanted;
use crate::time::micros;

/// A driver that is later than this has a runtime that does not run.
const OVERDUE: Duration = Duration::from_millis(50);

/// What a driver asks a store for: the turns of the first calls, which are due before the answer can be here.
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
    /// Whether a future that waits has to begin a driver. If the driver sleeps for too long, it is woken.
    pub(super) fn needs_driver(&self, next: Instant, now: Instant, afterwards: &mut Afterwards) -> bool {
        let Some(driver) = self.driver.as_ref().filter(|driver| now < driver.next + OVERDUE) else { return true };
        if next < driver.next {
            afterwards.wakers.extend(driver.waker.clone());
        }
        false
    }

    /// Offers a turn that is due, and lets the driver know when the next one is.
    pub(super) fn go_on(&mut self, now: Instant, afterwards: &mut Afterwards) {
        let next = match self.advance(now, afterwards) {
            Next::At(next) => next,
            Next::Nothing | Next::Ask => now,
        };
        self.needs_driver(next, now, afterwards);
    }

    /// The number of a new driver, which replaces the former one.
    pub(super) fn begin_driver(&mut self, now: Instant) -> u64 {
        static BEGUN: AtomicU64 = AtomicU64::new(0);
        let number = BEGUN.fetch_add(1, Ordering::Relaxed);
        self.driver = Some(Driver { number, next: now, waker: None });
        number
    }

    fn is_driven_by(&self, number: u64) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.number == number)
    }
}

/// Begins a driver in the current runtime.
pub(super) fn begin<B: Backend>(schedule: &Arc<Schedule<B>>, key: &Key, runtime: &Handle, now: Instant) {
    let Some(number) = schedule.queues.change(key, |queue| queue.begin_driver(now)) else { return };
    let ends = Ends { schedule: Arc::clone(schedule), key: key.clone(), number };
    drop(runtime.spawn(async move { ends.drive().await }));
}

/// A driver. When its runtime ends, it is dropped, and the calls of other runtimes go on without it.
struct Ends<B: Backend> {
    schedule: Arc<Schedule<B>>,
    key: Key,
    number: u64,
}

impl<B: Backend> Ends<B> {
    async fn drive(&self) {
        let mut sleep = Box::pin(sleep_until(Instant::now()));
        loop {
            let asking = poll_fn(|cx| {
                loop {
                    match self.step(Instant::now(), cx) {
                        None => return Poll::Ready(None),
                        Some(Step::Ask(asking)) => return Poll::Ready(Some(asking)),
                        Some(Step::Sleep(until)) => {
                            if sleep.deadline() != until {
                                sleep.as_mut().reset(until);
                            }
                            if sleep.as_mut().poll(cx).is_pending() {
                                return Poll::Pending;
                            }
                        }
                    }
                }
            });
            let Some(asking) = asking.await else { return };
            self.ask(asking).await;
        }
    }

    fn step(&self, now: Instant, cx: &Context<'_>) -> Option<Step> {
        let mut afterwards = Afterwards::default();
        let step = self.schedule.queues.change(&self.key, |queue| {
            if !queue.is_driven_by(self.number) {
                return None;
            }
            let (step, next) = match queue.advance(now, &mut afterwards) {
                Next::Nothing => {
                    queue.driver = None;
                    return None;
                }
                Next::At(at) => (Step::Sleep(at), at),
                // The store answers within its deadline.
                Next::Ask => (Step::Ask(Box::new(self.schedule.asking(queue, now)?)), now + Duration::from_secs(1)),
            };
            if let Some(driver) = &mut queue.driver {
                driver.next = next;
                afterwards.replaced.extend(driver.waker.replace(cx.waker().clone()));
            }
            Some(step)
        });
        self.schedule.finish(afterwards);
        step.flatten()
    }

    async fn ask(&self, asking: Box<Asking>) {
        let asked = Instant::now();
        let (first, alone) = &asking.first;
        let (answer, is_degraded) = self.schedule.ask(&asking.calls, alone, asking.as_of).await;
        let now = Instant::now();
        let trip = now - asked;
        // Without the store only the first call was decided.
        let turns = if is_degraded { &asking.turns[..1] } else { &asking.turns[..] };
        let at = match asking.as_of {
            // Turns that the round trip has made late are not taken all at once.
            Some(_) => self.schedule.not_too_late(asking.start, now),
            // Without the store's clock, the decision was made somewhere between.
            None => asked + trip / 2,
        };
        if !is_degraded {
            self.schedule.note_trip(trip);
        }
        let (mut answer, mut afterwards) = (Some(answer), Afterwards::default());
        self.schedule.queues.change(&self.key, |queue| {
            let granted = |queue: &mut Queue, receipt| {
                let mut receipt = Some(receipt).filter(|_| turns.len() == 1).flatten();
                for (cost, later) in turns {
                    queue.turns.push_back(Turn {
                        at: at + *later,
                        cost: *cost,
                        units: asking.units.clone(),
                        receipt: receipt.take(),
                    });
                }
            };
            // The first call may have given up, and what it waits for says nothing about the next one.
            let is_first = queue.first_ticket() == Some(*first);
            match answer.take() {
                Some(Answer::Granted { next, receipt }) => {
                    queue.is_due(Due { at: at + next, by_backend: None });
                    granted(queue, receipt);
                }
                Some(Answer::Wait(_) | Answer::Never | Answer::Failed(_)) if !is_first => {
                    return queue.is_due(Due { at: now, by_backend: None });
                }
                Some(Answer::Wait(wait)) => return queue.is_due(Due { at: at + wait, by_backend: None }),
                Some(Answer::Never) => queue.refuse_first(&mut afterwards),
                Some(Answer::Unpaced) => {
                    // Those that a pause has held do not leave all at once.
                    let is_paced = queue.pauses.have_held();
                    let calls = queue.ready_calls().take(if is_paced { 1 } else { usize::MAX });
                    let turn = |wanted: &Wanted| {
                        let (cost, units) = (wanted.cost, wanted.units.clone());
                        Turn { at, cost, units, receipt: None }
                    };
                    let turns: Vec<Turn> = calls.map(|call| turn(&call.wanted)).collect();
                    let length = queue.first().filter(|_| is_paced).map_or(Duration::ZERO, |call| call.length);
                    queue.is_due(Due { at: at + length, by_backend: None });
                    queue.turns.extend(turns);
                }
                Some(Answer::Failed(error)) => queue.fail(ShapeError::Store(error), &mut afterwards),
                None => {}
            }
            if is_degraded {
                let turns = queue.turns.len().max(1);
                (0..turns).for_each(|_| self.schedule.counters.degraded());
            }
        });
        if let Some(Answer::Granted { receipt, .. }) = answer {
            // All calls of the key have given up.
            afterwards.unused.extend(receipt);
        }
        self.schedule.finish(afterwards);
    }
}

enum Step {
    Sleep(Instant),
    Ask(Box<Asking>),
}

impl<B: Backend> Schedule<B> {
    /// Asks for the turn of the first call, and for those that are due before the answer can be here, so that a round
    /// trip does not limit the rate.
    fn asking(&self, queue: &Queue, now: Instant) -> Option<Asking> {
        let first = queue.first()?;
        let start = self.not_too_late(queue.start().max(first.came), now);
        let late = now.saturating_duration_since(start);
        let horizon = late + self.trip();
        let (mut turns, mut cost, mut later) = (Vec::new(), 0_u64, Duration::ZERO);
        // The upstream may let calls leave farther apart than a batch of turns is.
        let is_alone = first.wanted.units.is_some() || queue.pauses.is_active(now);
        for call in queue.ready_calls() {
            if !turns.is_empty() && (later > horizon || is_alone) {
                break;
            }
            turns.push((call.wanted.cost, later));
            cost = cost.saturating_add(call.wanted.cost);
            later += call.length;
        }
        let (ticket, alone) = (queue.first_ticket()?, first.wanted.calls());
        let mut calls = alone.clone();
        if turns.len() > 1 {
            calls.iter_mut().for_each(|call| *call = call.clone().costing(cost));
        }
        let as_of = self.backend.now(&self.prepared, &calls);
        let as_of = as_of.map(|now| Timestamp::from_micros(now.as_micros().saturating_sub_unsigned(micros(late))));
        Some(Asking { calls, first: (ticket, alone), turns, units: first.wanted.units.clone(), start, as_of })
    }
}

impl<B: Backend> Drop for Ends<B> {
    fn drop(&mut self) {
        let mut afterwards = Afterwards::default();
        self.schedule.queues.change(&self.key, |queue| {
            if queue.is_driven_by(self.number) {
                queue.driver = None;
                queue.wake_all(&mut afterwards);
            }
        });
        self.schedule.finish(afterwards);
    }
}
