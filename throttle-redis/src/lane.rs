//! Decisions of one set that wait for the connection travel together.
//!
//! A few calls are under way at once, and one that leaves takes along all who wait: while calls with many are on their way, a
//! single decision waits until one has landed rather than leave by itself, and is joined by who else comes meanwhile.
//! Nobody waits when nobody else is there.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::ask::{Ask, Part};
use crate::line::Trouble;
use crate::shared::Shared;

/// Calls of a set that are under way at once: so many that the server has the next one when it has answered one.
const FLIGHTS: usize = 6;

/// How long after its deadline an answer that says so is waited for.
const GRACE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(crate) struct Lane(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Job>,
    /// Calls under way.
    flights: SmallVec<[Away; FLIGHTS]>,
    departed: u64,
    /// Where those in the queue run.
    runtime: Option<Handle>,
}

/// A call under way: which one, the decisions in it, and when all of them have been given up.
struct Away {
    number: u64,
    aboard: usize,
    over: Instant,
}

struct Job {
    ask: Ask,
    until: Instant,
    answer: Answer,
}

type Answer = oneshot::Sender<Result<(Part, Ask), Trouble>>;

impl Lane {
    /// The answer, with the question given back.
    pub(crate) async fn ask(&self, shared: &Arc<Shared>, ask: Ask, until: Instant) -> Result<(Part, Ask), Trouble> {
        let told = match self.enter(shared, ask, until)? {
            Entered::Leaves(ask, _flight) => return Ok((shared.decide_one(&ask, until).await?, ask)),
            Entered::Waits(told) => told,
        };
        // Nobody answers when the runtime of whoever works here was stopped, or stands still. The question may have been
        // sent by then. In all other cases the answer comes by itself, and says whether it was.
        match timeout_at(until + GRACE, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Trouble::Late),
        }
    }

    fn enter(&self, shared: &Arc<Shared>, ask: Ask, until: Instant) -> Result<Entered, Trouble> {
        let mut waiting = self.0.lock();
        if !waiting.may_leave(1) {
            waiting.give_up_missing();
        }
        if waiting.queue.is_empty() && waiting.may_leave(1) {
            let number = waiting.leave(1, until);
            let flight = Flight { shared: Arc::clone(shared), lane: Arc::clone(&self.0), number };
            return Ok(Entered::Leaves(ask, flight));
        }
        if waiting.queue.len() >= shared.options.queue {
            return Err(Trouble::Saturated);
        }
        let (answer, told) = oneshot::channel();
        waiting.queue.push_back(Job { ask, until, answer });
        waiting.runtime.get_or_insert_with(Handle::current);
        drop(waiting);
        depart(shared, &self.0);
        Ok(Entered::Waits(told))
    }
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is returned to")]
enum Entered {
    Leaves(Ask, Flight),
    Waits(oneshot::Receiver<Result<(Part, Ask), Trouble>>),
}

impl Waiting {
    /// Whether a call may leave that takes so many along: no fewer than its share.
    fn may_leave(&self, count: usize) -> bool {
        self.flights.len() < FLIGHTS && count * (FLIGHTS - 1) >= self.aboard()
    }

    /// Decisions in the calls under way.
    fn aboard(&self) -> usize {
        self.flights.iter().map(|flight| flight.aboard).sum()
    }

    fn leave(&mut self, count: usize, until: Instant) -> u64 {
        self.departed += 1;
        self.flights.push(Away { number: self.departed, aboard: count, over: until + GRACE });
        self.departed
    }

    /// A runtime that stands still does not end what was left to it, and nobody else may wait for that.
    fn give_up_missing(&mut self) {
        let (now, before) = (Instant::now(), self.flights.len());
        self.flights.retain(|flight| flight.over > now);
        if self.flights.len() < before {
            // Whoever is still in the queue runs where somebody is awake.
            self.runtime = Some(Handle::current());
        }
    }

    /// Those who leave next, if a call may leave.
    fn board(&mut self, most: usize) -> Option<(Handle, u64, Vec<Job>)> {
        if self.queue.is_empty() || !self.may_leave(self.queue.len()) {
            return None;
        }
        // With nobody on the way, half of them leave now and half at once behind them; else the server is busy, and all leave.
        let share = if self.flights.is_empty() { self.queue.len().div_ceil(2) } else { self.queue.len() };
        let count = share.min(most).min(self.queue.len());
        let jobs: Vec<Job> = self.queue.drain(..count).collect();
        let until = jobs.iter().map(|job| job.until).max()?;
        let number = self.leave(count, until);
        // The next may wait elsewhere.
        let runtime = if self.queue.is_empty() { self.runtime.take() } else { self.runtime.clone() };
        Some((runtime?, number, jobs))
    }
}

/// Lets calls leave that may. The lock is not held meanwhile: a runtime that is going down drops the flight at once.
fn depart(shared: &Arc<Shared>, lane: &Arc<Mutex<Waiting>>) {
    loop {
        let Some((runtime, number, jobs)) = lane.lock().board(shared.options.merge) else { return };
        let flight = Flight { shared: Arc::clone(shared), lane: Arc::clone(lane), number };
        runtime.spawn(fly(jobs, flight));
    }
}

/// A call under way. It lands when this is dropped, whatever became of it.
struct Flight {
    shared: Arc<Shared>,
    lane: Arc<Mutex<Waiting>>,
    number: u64,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.lane.lock().flights.retain(|flight| flight.number != self.number);
        depart(&self.shared, &self.lane);
    }
}

/// Asks for all of them in as few calls as there are versions of the set, which is one.
async fn fly(mut jobs: Vec<Job>, flight: Flight) {
    loop {
        jobs = still_waiting(jobs);
        let Some(first) = jobs.first() else { return };
        let linked = Arc::clone(&first.ask.linked);
        let alike = jobs.iter().take_while(|job| Arc::ptr_eq(&job.ask.linked, &linked)).count();
        let rest = jobs.split_off(alike);
        let (asks, answers): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.ask, (job.until, job.answer))).unzip();
        let (decided, answers) = decide_in_time(&flight.shared, &asks, answers).await;
        match decided {
            Ok(parts) => {
                for (answer, told) in answers.into_iter().zip(parts.into_iter().zip(asks)) {
                    // Nobody listens any more: charged all the same, as when an answer comes too late.
                    if let Some(answer) = answer {
                        let _ = answer.send(Ok(told));
                    }
                }
            }
            Err(trouble) => {
                for answer in answers.into_iter().flatten() {
                    let _ = answer.send(Err(trouble.clone()));
                }
            }
        }
        jobs = rest;
    }
}

/// Whose caller has gone must not be charged any more, nor whose time is up.
fn still_waiting(jobs: Vec<Job>) -> Vec<Job> {
    let now = Instant::now();
    let mut waiting = Vec::with_capacity(jobs.len());
    for job in jobs {
        if job.until <= now {
            let _ = job.answer.send(Err(Trouble::TooLate));
        } else if !job.answer.is_closed() {
            waiting.push(job);
        }
    }
    waiting
}

/// Asks for as long as one of them has time left. Whose own time is up is told so meanwhile.
async fn decide_in_time(
    shared: &Arc<Shared>,
    asks: &[Ask],
    answers: Vec<(Instant, Answer)>,
) -> (Result<Vec<Part>, Trouble>, Vec<Option<Answer>>) {
    let (untils, answers): (Vec<Instant>, Vec<Answer>) = answers.into_iter().unzip();
    let mut answers: Vec<Option<Answer>> = answers.into_iter().map(Some).collect();
    let last = untils.iter().copied().max().unwrap_or_else(Instant::now);
    let mut deciding = pin!(shared.decide_merged(asks, last));
    loop {
        let waiting = untils.iter().zip(&answers).filter(|(_, answer)| answer.is_some());
        let next = waiting.map(|(until, _)| *until).min().unwrap_or(last);
        // The last one's time ends the question itself, which knows whether it was asked.
        if next >= last {
            return (deciding.await, answers);
        }
        if let Ok(decided) = timeout_at(next, &mut deciding).await {
            return (decided, answers);
        }
        for (_, answer) in untils.iter().zip(&mut answers).filter(|(until, _)| **until <= next) {
            if let Some(answer) = answer.take() {
                let _ = answer.send(Err(Trouble::Late));
            }
        }
    }
}
