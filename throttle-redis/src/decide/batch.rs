//! Batches the decisions of a set that wait for the connection: they travel in one call.
//!
//! A few calls are under way at once, and each takes along all decisions that wait. While calls with many decisions are
//! under way, a single decision waits until one has landed rather than leave by itself, and later decisions join it. A
//! decision that comes alone does not wait. A call carries at most [so much work](CALL), so that it does not delay the
//! calls behind it.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::call;
use super::reply::Part;
use super::request::Ask;
use super::work::CALL;
use crate::link::call_error::CallError;
use crate::link::room::Held;
use crate::shared::Shared;

/// Calls of a set that are under way at once: so many that the server has the next one when it has answered one.
const FLIGHTS: usize = 6;

/// How long after its deadline an answer that says so is waited for.
const GRACE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(crate) struct Batcher(Arc<Mutex<Waiting>>);

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
    work: u32,
    caller: Caller,
}

/// A decision that is waited for.
struct Caller {
    until: Instant,
    /// Taken when it is answered.
    answer: Option<Answer>,
    /// Taken by the call that sends it, or by the caller that gives it up before.
    claim: Arc<Claim>,
}

/// Taken once.
#[derive(Default)]
struct Claim(AtomicBool);

impl Claim {
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

type Answer = oneshot::Sender<Result<(Part, Ask), CallError>>;
type Told = oneshot::Receiver<Result<(Part, Ask), CallError>>;

impl Batcher {
    /// The answer, with the question given back.
    pub(crate) async fn ask(&self, shared: &Arc<Shared>, ask: Ask, until: Instant) -> Result<(Part, Ask), CallError> {
        let (claim, mut told) = match self.enter(shared, ask, until)? {
            Entered::Leaves(ask, _flight) => return Ok((call::decide_one(shared, &ask, until).await?, ask)),
            Entered::Waits(claim, told) => (claim, told),
        };
        match timeout_at(until + GRACE, &mut told).await {
            Ok(Ok(answer)) => answer,
            // The runtime of the call was stopped. The question may have been sent by then.
            Ok(Err(_)) => Err(CallError::Late),
            // That runtime stands still, or has too much to do.
            Err(_) => Err(if claim.take() { CallError::Expired } else { CallError::Late }),
        }
    }

    fn enter(&self, shared: &Arc<Shared>, ask: Ask, until: Instant) -> Result<Entered, CallError> {
        let mut waiting = self.0.lock();
        if !waiting.may_leave(1) {
            waiting.give_up_missing();
        }
        if waiting.queue.is_empty() && waiting.may_leave(1) {
            let number = waiting.leave(1, until);
            let flight = Flight { shared: Arc::clone(shared), batcher: Arc::clone(&self.0), number };
            return Ok(Entered::Leaves(ask, flight));
        }
        if waiting.queue.len() >= shared.options.queue {
            return Err(CallError::Saturated);
        }
        let (answer, told) = oneshot::channel();
        let (work, claim) = (ask.work(), Arc::<Claim>::default());
        let caller = Caller { until, answer: Some(answer), claim: Arc::clone(&claim) };
        waiting.queue.push_back(Job { ask, work, caller });
        waiting.runtime.get_or_insert_with(Handle::current);
        drop(waiting);
        depart(shared, &self.0);
        Ok(Entered::Waits(claim, told))
    }
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart where it is returned to")]
enum Entered {
    Leaves(Ask, Flight),
    Waits(Arc<Claim>, Told),
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

    /// Gives up the calls of a runtime that stands still: it does not end them, and other decisions must not wait for
    /// it.
    fn give_up_missing(&mut self) {
        let (now, before) = (Instant::now(), self.flights.len());
        self.flights.retain(|flight| flight.over > now);
        if self.flights.len() < before {
            // What is still in the queue runs in a runtime that is awake.
            self.runtime = Some(Handle::current());
        }
    }

    /// The jobs of the next call, if one may leave.
    fn board(&mut self, most: usize) -> Option<(Handle, u64, Vec<Job>)> {
        if self.queue.is_empty() || !self.may_leave(self.queue.len()) {
            return None;
        }
        // With no call under way, half of them leave now and half at once behind them. Otherwise the server is busy:
        // all leave.
        let share = if self.flights.is_empty() { self.queue.len().div_ceil(2) } else { self.queue.len() };
        let mut work = 0;
        let fits = |job: &&Job| {
            work += job.work;
            work <= CALL
        };
        let count = self.queue.iter().take(share.min(most)).take_while(fits).count().max(1);
        let jobs: Vec<Job> = self.queue.drain(..count).collect();
        let until = jobs.iter().map(|job| job.caller.until).max()?;
        let number = self.leave(count, until);
        // The next may wait elsewhere.
        let runtime = if self.queue.is_empty() { self.runtime.take() } else { self.runtime.clone() };
        Some((runtime?, number, jobs))
    }
}

/// Lets calls leave that may. The lock is not held meanwhile: a runtime that is going down drops the flight at once.
fn depart(shared: &Arc<Shared>, batcher: &Arc<Mutex<Waiting>>) {
    loop {
        let Some((runtime, number, jobs)) = batcher.lock().board(shared.options.merge) else { return };
        let flight = Flight { shared: Arc::clone(shared), batcher: Arc::clone(batcher), number };
        runtime.spawn(fly(jobs, flight));
    }
}

/// A call under way. It lands when this is dropped, whatever became of it.
struct Flight {
    shared: Arc<Shared>,
    batcher: Arc<Mutex<Waiting>>,
    number: u64,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.batcher.lock().flights.retain(|flight| flight.number != self.number);
        depart(&self.shared, &self.batcher);
    }
}

/// Asks for all of them in as few calls as there are versions of the set, which is one.
async fn fly(mut jobs: Vec<Job>, flight: Flight) {
    let shared = &flight.shared;
    loop {
        jobs = still_waiting(jobs);
        let Some(first) = jobs.first() else { return };
        let prepared = Arc::clone(&first.ask.prepared);
        let alike = jobs.iter().take_while(|job| Arc::ptr_eq(&job.ask.prepared, &prepared)).count();
        let rest = jobs.split_off(alike);
        if let Some((_room, mut jobs)) = room_for(shared, jobs).await {
            jobs.retain(|job| job.caller.claim.take());
            let (asks, mut callers) = apart(jobs);
            match decide_in_time(shared, &asks, &mut callers).await {
                Ok(parts) => {
                    // A decision that is not waited for any more is charged all the same.
                    let decided = parts.into_iter().zip(asks);
                    callers.iter_mut().zip(decided).for_each(|(caller, decided)| caller.answer(Ok(decided)));
                }
                Err(error) => callers.iter_mut().for_each(|caller| caller.answer(Err(error.clone()))),
            }
        }
        jobs = rest;
    }
}

impl Caller {
    fn answer(&mut self, answer: Result<(Part, Ask), CallError>) {
        if let Some(told) = self.answer.take() {
            let _ = told.send(answer);
        }
    }

    fn is_waiting(&self) -> bool {
        self.answer.as_ref().is_some_and(|told| !told.is_closed())
    }
}

fn apart(jobs: Vec<Job>) -> (Vec<Ask>, Vec<Caller>) {
    jobs.into_iter().map(|job| (job.ask, job.caller)).unzip()
}

/// Drops jobs whose caller left or whose deadline passed: they are not charged.
fn still_waiting(mut jobs: Vec<Job>) -> Vec<Job> {
    answer_overdue(jobs.iter_mut().map(|job| &mut job.caller), Instant::now(), &CallError::Expired);
    jobs.retain(|job| job.caller.is_waiting());
    jobs
}

fn answer_overdue<'a>(callers: impl Iterator<Item = &'a mut Caller>, now: Instant, error: &CallError) {
    callers.filter(|caller| caller.until <= now).for_each(|caller| caller.answer(Err(error.clone())));
}

/// Waits for a connection and for room at the server. Jobs whose deadline passes meanwhile are not sent.
async fn room_for(shared: &Shared, mut jobs: Vec<Job>) -> Option<(Held<'_>, Vec<Job>)> {
    let (link, ask) = (&shared.link, &jobs.first()?.ask);
    let (slot, work) = (ask.slot, jobs.iter().map(|job| job.work).sum());
    if link.is_connected()
        && let Some(room) = link.room.take_now(link.range(slot), work)
    {
        return Some((room, jobs));
    }
    let name = ask.names.first().cloned().unwrap_or_default();
    let last = jobs.iter().map(|job| job.caller.until).max()?;
    let mut room = pin!(async {
        link.live_for((slot, &name), last).await?;
        link.room_by(slot, work, last).await
    });
    let room = loop {
        let next = jobs.iter().map(|job| job.caller.until).min()?;
        // The last one's time ends the wait itself, which knows what was missing.
        if next >= last {
            break room.await;
        }
        if let Ok(room) = timeout_at(next, &mut room).await {
            break room;
        }
        jobs = still_waiting(jobs);
    };
    match room {
        Ok(room) => Some((room, still_waiting(jobs))).filter(|(_, jobs)| !jobs.is_empty()),
        Err(error) => {
            jobs.iter_mut().for_each(|job| job.caller.answer(Err(error.clone())));
            None
        }
    }
}

/// Asks for as long as one of them has time left. Jobs that time out first get [`CallError::Late`] at once.
async fn decide_in_time(shared: &Arc<Shared>, asks: &[Ask], callers: &mut [Caller]) -> Result<Vec<Part>, CallError> {
    let last = callers.iter().map(|caller| caller.until).max().unwrap_or_else(Instant::now);
    let mut deciding = pin!(call::decide_merged(shared, asks, last));
    loop {
        let waiting = callers.iter().filter(|caller| caller.answer.is_some());
        let next = waiting.map(|caller| caller.until).min().unwrap_or(last);
        // The last one's time ends the question itself, which knows whether it was asked.
        if next >= last {
            return deciding.await;
        }
        if let Ok(decided) = timeout_at(next, &mut deciding).await {
            return decided;
        }
        answer_overdue(callers.iter_mut(), next, &CallError::Late);
    }
}
