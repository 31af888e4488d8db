//! Batches the decisions of a set that wait for the connection: they travel in one call. On a cluster, they are those
//! about one slot.
//!
//! A few calls are under way at once, and each carries all waiting decisions. While calls with many decisions are under
//! way, a single decision waits until one of them has ended instead of starting a call of its own, and later decisions
//! join it. A decision that arrives alone does not wait. A call takes its decisions when its task runs, not when it is
//! spawned, so the decisions of the tasks that run before it travel with it. A call carries at most [`CALL`] of work,
//! so that it does not delay the calls behind it.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::call;
use crate::link::call_error::CallError;
use crate::link::in_flight_limit::Held;
use crate::observed::WaitingDecision;
use crate::script::reply::{Part, Parts};
use crate::script::request::Ask;
use crate::script::server_work::CALL;
use crate::shared::Shared;

/// Calls of a set that are under way at once: enough that the server has the next call when it has answered one.
const CALLS_IN_FLIGHT: usize = 6;

/// A call carries at least the decisions under way divided by this, unless those are few. About three calls share the
/// decisions of a busy process then: the server always has work, and most of a call's cost is shared by many.
const SHARE: usize = 2;

/// How long after its deadline a decision waits for an answer that says so.
const GRACE: Duration = Duration::from_millis(5);

/// The decisions of one set that wait for a call, and the calls under way. Clones are the same batcher.
#[derive(Clone, Default)]
pub(crate) struct Batcher(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Job>,
    in_flight: SmallVec<[InFlight; CALLS_IN_FLIGHT]>,
    started: u64,
    /// Whether the call that ended last carried several decisions: its callers may ask again, one after the other.
    is_busy: bool,
    /// The runtime that sends the queued decisions.
    runtime: Option<Handle>,
    /// While a task that a caller has spawned is about to start a call: the instant at which its runtime counts as
    /// standing still.
    starting: Option<Instant>,
}

/// A call under way: its number, the decisions in it, and the instant by which all of them have timed out.
struct InFlight {
    number: u64,
    decisions: usize,
    over: Instant,
}

struct Job {
    ask: Arc<Ask>,
    work: u32,
    caller: Caller,
    /// Dropped when the job is sent or given up.
    _waiting: WaitingDecision,
}

/// The caller of a decision, which waits for the answer.
struct Caller {
    until: Instant,
    /// Taken when the answer is sent.
    answer: Option<Answer>,
    /// Taken by the call that sends the decision, or by a caller that gives it up before.
    claim: Arc<Claim>,
}

/// Can be taken once.
#[derive(Default)]
struct Claim(AtomicBool);

impl Claim {
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

type Answer = oneshot::Sender<Result<Part, CallError>>;
type Answered = oneshot::Receiver<Result<Part, CallError>>;

impl Batcher {
    pub(crate) async fn ask(&self, shared: &Arc<Shared>, ask: &Arc<Ask>, until: Instant) -> Result<Part, CallError> {
        let (claim, mut answered) = match self.enqueue(shared, ask, until)? {
            Enqueued::Now(_guard) => return call::decide_one(shared, ask, until).await,
            Enqueued::Queued(claim, answered) => (claim, answered),
        };
        match timeout_at(until + GRACE, &mut answered).await {
            Ok(Ok(answer)) => answer,
            // The runtime of the call was stopped. It may have sent the question before that.
            Ok(Err(_)) => Err(CallError::Late),
            // The runtime of the call stands still or is overloaded.
            Err(_) => Err(if claim.take() { CallError::Expired } else { CallError::Late }),
        }
    }

    fn enqueue(&self, shared: &Arc<Shared>, ask: &Arc<Ask>, until: Instant) -> Result<Enqueued, CallError> {
        let mut waiting = self.0.lock();
        if !waiting.may_start(1) || waiting.starting.is_some() {
            waiting.give_up_stalled();
        }
        if waiting.may_travel_alone() {
            let number = waiting.start(1, until);
            let guard = CallGuard { shared: Arc::clone(shared), batcher: Arc::clone(&self.0), number };
            return Ok(Enqueued::Now(guard));
        }
        if waiting.queue.len() >= shared.options.queue {
            // If the calls under way were given up above, the queue would stay full for ever.
            spawn_start(shared, &self.0, waiting, Spawned::ByCaller);
            return Err(CallError::Saturated);
        }
        let (answer, answered) = oneshot::channel();
        let (work, claim) = (ask.work(), Arc::<Claim>::default());
        let caller = Caller { until, answer: Some(answer), claim: Arc::clone(&claim) };
        let (_waiting, begins) = shared.link.counters.observed.queued();
        waiting.queue.push_back(Job { ask: Arc::clone(ask), work, caller, _waiting });
        // The caller's runtime is running; that of an earlier decision may have shut down.
        waiting.runtime = Some(Handle::current());
        spawn_start(shared, &self.0, waiting, Spawned::ByCaller);
        // The lock is released.
        begins.now();
        Ok(Enqueued::Queued(claim, answered))
    }
}

enum Enqueued {
    Now(CallGuard),
    Queued(Arc<Claim>, Answered),
}

impl Waiting {
    /// Whether a call with `count` decisions may start.
    fn may_start(&self, count: usize) -> bool {
        let under_way = self.decisions();
        self.in_flight.len() < CALLS_IN_FLIGHT && (under_way < CALLS_IN_FLIGHT || count * SHARE >= under_way)
    }

    /// Whether a decision that asks now starts a call at once, without a task.
    fn may_travel_alone(&self) -> bool {
        let is_worth_it = self.in_flight.is_empty() || !self.is_busy;
        self.queue.is_empty() && is_worth_it && self.may_start(1)
    }

    fn decisions(&self) -> usize {
        self.in_flight.iter().map(|call| call.decisions).sum()
    }

    fn start(&mut self, count: usize, until: Instant) -> u64 {
        self.started += 1;
        self.in_flight.push(InFlight { number: self.started, decisions: count, over: until + GRACE });
        self.started
    }

    fn end(&mut self, number: u64) {
        if let Some(place) = self.in_flight.iter().position(|call| call.number == number) {
            self.is_busy = self.in_flight.remove(place).decisions > 1;
        }
    }

    /// Gives up the calls of a runtime that stands still: such calls do not end, and other decisions must not wait for
    /// them.
    fn give_up_stalled(&mut self) {
        let (now, before) = (Instant::now(), self.in_flight.len());
        self.in_flight.retain(|call| call.over > now);
        let starts = self.starting.take_if(|over| *over <= now);
        if self.in_flight.len() < before || starts.is_some() {
            // The queue is sent by the current runtime, which is running.
            self.runtime = Some(Handle::current());
        }
    }

    /// Returns the runtime for a task that starts a call, if a call may start and no task is about to.
    fn next_start(&mut self, spawned: Spawned) -> Option<Handle> {
        if self.queue.is_empty() || self.starting.is_some() || !self.may_start(self.queue.len()) {
            return None;
        }
        let runtime = self.runtime.clone()?;
        if spawned == Spawned::ByCaller {
            self.starting = Some(Instant::now() + GRACE);
        }
        Some(runtime)
    }

    /// Returns the jobs of the next call, if one may start.
    fn next_call(&mut self, most: usize) -> Option<(u64, Vec<Job>)> {
        if self.queue.is_empty() || !self.may_start(self.queue.len()) {
            return None;
        }
        // With no call under way, half of the queue starts now and the other half at once behind it, so that the server
        // has work while the answers of the first half are read. Otherwise the server is busy, and all of it starts.
        let is_idle = self.in_flight.is_empty() || (self.is_busy && self.decisions() == 1);
        let share = if is_idle { self.queue.len().div_ceil(2) } else { self.queue.len() };
        let mut work = 0;
        let fits = |job: &&Job| {
            work += job.work;
            work <= CALL
        };
        let count = self.queue.iter().take(share.min(most)).take_while(fits).count().max(1);
        let jobs: Vec<Job> = self.queue.drain(..count).collect();
        let until = jobs.iter().map(|job| job.caller.until).max()?;
        let number = self.start(count, until);
        if self.queue.is_empty() {
            // The next job may come from another runtime.
            self.runtime = None;
        }
        Some((number, jobs))
    }
}

/// What spawns a task that starts a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spawned {
    /// A caller, which then waits for its answer: the task runs soon.
    ByCaller,
    /// A call that has ended. The caller of that call goes on, perhaps for long, before its thread runs other tasks, so
    /// later decisions do not rely on the task.
    ByEndedCall,
}

/// Starts the next call, if one may start.
fn start_calls(shared: &Arc<Shared>, batcher: &Arc<Mutex<Waiting>>) {
    spawn_start(shared, batcher, batcher.lock(), Spawned::ByEndedCall);
}

/// The task takes its jobs when it runs: the tasks that run before it may ask too, and their decisions join the call.
/// The lock is released before the task is spawned, because a runtime that is shutting down drops it at once.
fn spawn_start(
    shared: &Arc<Shared>,
    batcher: &Arc<Mutex<Waiting>>,
    mut waiting: MutexGuard<'_, Waiting>,
    spawned: Spawned,
) {
    let runtime = waiting.next_start(spawned);
    drop(waiting);
    if let Some(runtime) = runtime {
        let start = Start { shared: Arc::clone(shared), batcher: Arc::clone(batcher), is_due: true };
        runtime.spawn(start.run());
    }
}

/// A task that is about to start a call.
struct Start {
    shared: Arc<Shared>,
    batcher: Arc<Mutex<Waiting>>,
    is_due: bool,
}

impl Start {
    async fn run(mut self) {
        let Some((jobs, guard)) = self.take_jobs() else { return };
        // What the call has no room for starts right behind it.
        start_calls(&self.shared, &self.batcher);
        drop(self);
        send(jobs, guard).await;
    }

    fn take_jobs(&mut self) -> Option<(Vec<Job>, CallGuard)> {
        self.is_due = false;
        let mut waiting = self.batcher.lock();
        waiting.starting = None;
        waiting.runtime = Some(Handle::current());
        let (number, jobs) = waiting.next_call(self.shared.options.max_batch)?;
        Some((jobs, CallGuard { shared: Arc::clone(&self.shared), batcher: Arc::clone(&self.batcher), number }))
    }
}

impl Drop for Start {
    /// A task that never ran was in a runtime that has shut down: the runtime of the next decision sends the queue.
    fn drop(&mut self) {
        if self.is_due {
            let mut waiting = self.batcher.lock();
            (waiting.starting, waiting.runtime) = (None, None);
        }
    }
}

/// Ends a call under way when it is dropped, whatever the outcome of the call.
struct CallGuard {
    shared: Arc<Shared>,
    batcher: Arc<Mutex<Waiting>>,
    number: u64,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.batcher.lock().end(self.number);
        start_calls(&self.shared, &self.batcher);
    }
}

/// Sends all jobs in one call.
async fn send(jobs: Vec<Job>, guard: CallGuard) {
    let shared = &guard.shared;
    let jobs = still_waiting(jobs);
    if let Some((_room, mut jobs)) = room_for(shared, jobs).await {
        jobs.retain(|job| job.caller.claim.take());
        let (asks, mut callers) = unzip(jobs);
        match decide_in_time(shared, &asks, &mut callers).await {
            // A decision is charged even if its caller no longer waits.
            Ok(parts) => callers.iter_mut().zip(parts).for_each(|(caller, part)| caller.answer(Ok(part))),
            Err(error) => callers.iter_mut().for_each(|caller| caller.answer(Err(error.clone()))),
        }
    }
}

impl Caller {
    fn answer(&mut self, answer: Result<Part, CallError>) {
        if let Some(answered) = self.answer.take() {
            let _ = answered.send(answer);
        }
    }

    fn is_waiting(&self) -> bool {
        self.answer.as_ref().is_some_and(|answered| !answered.is_closed())
    }
}

fn unzip(jobs: Vec<Job>) -> (Vec<Arc<Ask>>, Vec<Caller>) {
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
        && !link.is_silent()
        && let Some(room) = link.room.take_now(link.range(slot), work)
    {
        return Some((room, jobs));
    }
    let name = ask.names.first().cloned().unwrap_or_default();
    let last = jobs.iter().map(|job| job.caller.until).max()?;
    let mut room = pin!(async {
        link.live_for((slot, &name), Instant::now(), last).await?;
        link.room_by(slot, work, last).await
    });
    let room = loop {
        let next = jobs.iter().map(|job| job.caller.until).min()?;
        // The deadline of the last job ends the wait itself, which knows what was missing.
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

/// Sends the question while at least one job has time left. Jobs that time out first get [`CallError::Late`] at once.
async fn decide_in_time(shared: &Arc<Shared>, asks: &[Arc<Ask>], callers: &mut [Caller]) -> Result<Parts, CallError> {
    let last = callers.iter().map(|caller| caller.until).max().unwrap_or_else(Instant::now);
    let mut deciding = pin!(call::decide_batch(shared, asks, last));
    loop {
        let waiting = callers.iter().filter(|caller| caller.answer.is_some());
        let next = waiting.map(|caller| caller.until).min().unwrap_or(last);
        // The deadline of the last job ends the call itself, which knows whether the question was sent.
        if next >= last {
            return deciding.await;
        }
        if let Ok(decided) = timeout_at(next, &mut deciding).await {
            return decided;
        }
        answer_overdue(callers.iter_mut(), next, &CallError::Late);
    }
}

#[cfg(test)]
mod tests;
