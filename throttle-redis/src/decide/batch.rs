//! Batches the decisions of a set that wait for the connection: they travel in one call. On a
//! cluster, they are those about one slot.
//!
//! A few calls are under way at once, and each carries all waiting decisions. While calls with many
//! decisions are under way, a single decision waits until one of them has ended instead of starting
//! a call of its own, and later decisions join it. A decision that arrives alone does not wait. A
//! call takes its decisions when its task runs, not when it is spawned, so the decisions of the
//! tasks that run before it travel with it. A call carries at most [`CALL`] of work, so that it
//! does not delay the calls behind it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use throttle_core::backend::is_correction;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::call;
use crate::counters::WaitingDecision;
use crate::link::Link;
use crate::link::call_error::CallError;
use crate::link::in_flight_limit::InFlightPermit;
use crate::link::sent_command::LateAnswer;
use crate::script::reply::{Part, Parts};
use crate::script::request::Ask;
use crate::script::server_work::CALL;
use crate::shared_backend::SharedBackend;

/// Calls of a set that are under way at once: enough that the server has the next call when it has
/// answered one.
const CALLS_IN_FLIGHT: usize = 6;

/// A call carries at least the decisions under way divided by this, unless those are few. About
/// three calls share the decisions of a busy process then: the server always has work, and most of
/// a call's cost is shared by many.
const SHARE: usize = 2;

/// How long after its deadline a decision waits for an answer that says so.
const GRACE: Duration = Duration::from_millis(5);

/// The decisions of one set that wait for a call, and the calls under way. Clones are the same
/// batcher.
#[derive(Clone, Default)]
pub(crate) struct Batcher(Arc<Mutex<BatcherState>>);

#[derive(Default)]
struct BatcherState {
    queue: VecDeque<Job>,
    in_flight: SmallVec<[InFlight; CALLS_IN_FLIGHT]>,
    started: u64,
    /// Whether the call that ended last carried several decisions: its callers may ask again, one
    /// after the other.
    is_busy: bool,
    /// The runtime that sends the queued decisions.
    runtime: Option<Handle>,
    /// While a task that a caller has spawned is about to start a call: the instant at which its
    /// runtime counts as standing still.
    starting: Option<Instant>,
}

/// A call under way: its number, the decisions in it, and the instant by which all of them have
/// timed out.
struct InFlight {
    number: u64,
    decisions: usize,
    over: Instant,
}

struct Job {
    ask: Arc<Ask>,
    work: u32,
    until: Instant,
    answer: AnswerSender,
    /// Taken by the call that sends the decision, or by the caller when it gives the decision up.
    claim: Arc<Claim>,
    /// Dropped when the job is sent or given up.
    _waiting: WaitingDecision,
}

impl Job {
    /// Whether the caller waits, and the deadline has not passed.
    fn is_due(&self) -> bool {
        !self.answer.is_closed() && self.until > Instant::now()
    }
}

/// Can be taken once.
#[derive(Default)]
struct Claim(AtomicBool);

impl Claim {
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

type AnswerSender = oneshot::Sender<Result<Part, CallError>>;
type AnswerReceiver = oneshot::Receiver<Result<Part, CallError>>;

impl Batcher {
    pub(crate) async fn ask(
        &self,
        shared: &Arc<SharedBackend>,
        ask: &Arc<Ask>,
        until: Instant,
    ) -> Result<Part, CallError> {
        let (claim, mut receiver) = match self.enqueue(shared, ask, until)? {
            // Boxed because a busy process queues its decisions: each of their futures would have
            // room for it.
            EnqueueResult::Now(_call) => {
                return Box::pin(call::decide_one(shared, ask, until)).await;
            }
            EnqueueResult::Queued(claim, receiver) => (claim, receiver),
        };
        match timeout_at(until + GRACE, &mut receiver).await {
            Ok(Ok(answer)) => answer,
            // No call has taken the job, or the call's runtime was stopped, stands still or is
            // overloaded.
            _ if claim.take() => Err(CallError::Expired),
            // The request was dropped, and its charge is given back when it is known.
            Err(_) if is_correction() => {
                match timeout(shared.links.deadlines.correction, receiver).await {
                    Ok(Ok(answer)) => answer,
                    _ => Err(CallError::Late),
                }
            }
            _ => Err(CallError::Late),
        }
    }

    fn enqueue(
        &self,
        shared: &Arc<SharedBackend>,
        ask: &Arc<Ask>,
        until: Instant,
    ) -> Result<EnqueueResult, CallError> {
        // The gauge is code of a recorder, and must not run under a lock.
        let _waiting = shared.links.counters.waiting();
        let mut waiting = self.0.lock();
        if !waiting.may_start(1) || waiting.starting.is_some() {
            waiting.give_up_stalled();
        }
        if waiting.may_travel_alone() {
            let number = waiting.start(1, until);
            let (shared, batcher) = (Arc::clone(shared), Arc::clone(&self.0));
            return Ok(EnqueueResult::Now(BatchCall {
                shared,
                batcher,
                number: Some(number),
            }));
        }
        if waiting.queue.len() >= shared.options.queue {
            // If the calls under way were given up above, the queue would stay full for ever.
            spawn_start(shared, &self.0, waiting, TaskSpawner::Caller);
            return Err(CallError::Saturated);
        }
        let (answer, receiver) = oneshot::channel();
        let (work, claim) = (ask.work(), Arc::<Claim>::default());
        let job = Job {
            ask: Arc::clone(ask),
            work,
            until,
            answer,
            claim: Arc::clone(&claim),
            _waiting,
        };
        waiting.queue.push_back(job);
        // The caller's runtime is running; that of an earlier decision may have shut down.
        waiting.runtime = Some(Handle::current());
        spawn_start(shared, &self.0, waiting, TaskSpawner::Caller);
        Ok(EnqueueResult::Queued(claim, receiver))
    }
}

enum EnqueueResult {
    Now(BatchCall),
    Queued(Arc<Claim>, AnswerReceiver),
}

impl BatcherState {
    /// Whether a call with `count` decisions may start.
    fn may_start(&self, count: usize) -> bool {
        let under_way = self.decisions();
        self.in_flight.len() < CALLS_IN_FLIGHT
            && (under_way < CALLS_IN_FLIGHT || count * SHARE >= under_way)
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
        self.in_flight.push(InFlight {
            number: self.started,
            decisions: count,
            over: until + GRACE,
        });
        self.started
    }

    fn end(&mut self, number: u64) {
        if let Some(position) = self.in_flight.iter().position(|call| call.number == number) {
            self.is_busy = self.in_flight.remove(position).decisions > 1;
        }
    }

    /// Gives up the calls of a runtime that stands still: such calls do not end, and other
    /// decisions must not wait for them.
    fn give_up_stalled(&mut self) {
        let (now, before) = (Instant::now(), self.in_flight.len());
        self.in_flight.retain(|call| call.over > now);
        let starts = self.starting.take_if(|over| *over <= now);
        if self.in_flight.len() < before || starts.is_some() {
            // The queue is sent by the current runtime, which is running.
            self.runtime = Some(Handle::current());
        }
    }

    /// Returns the runtime for a task that starts a call, if a call may start and no task is about
    /// to.
    fn next_start(&mut self, spawned: TaskSpawner) -> Option<Handle> {
        if self.queue.is_empty() || self.starting.is_some() || !self.may_start(self.queue.len()) {
            return None;
        }
        let runtime = self.runtime.clone()?;
        if spawned == TaskSpawner::Caller {
            self.starting = Some(Instant::now() + GRACE);
        }
        Some(runtime)
    }

    /// Returns the jobs of the next call, if one may start.
    fn next_call(&mut self, most: usize) -> Option<(u64, Vec<Job>)> {
        if self.queue.is_empty() || !self.may_start(self.queue.len()) {
            return None;
        }
        // With no call under way, half of the queue starts now and the other half at once behind
        // it, so that the server has work while the answers of the first half are read. Otherwise
        // the server is busy, and all of it starts.
        let is_idle = self.in_flight.is_empty() || (self.is_busy && self.decisions() == 1);
        let share = if is_idle {
            self.queue.len().div_ceil(2)
        } else {
            self.queue.len()
        };
        let mut work = 0;
        let fits = |job: &&Job| {
            work += job.work;
            work <= CALL
        };
        let count = self
            .queue
            .iter()
            .take(share.min(most))
            .take_while(fits)
            .count()
            .max(1);
        let jobs: Vec<Job> = self.queue.drain(..count).collect();
        let until = jobs.iter().map(|job| job.until).max()?;
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
enum TaskSpawner {
    /// A caller, which then waits for its answer: the task runs soon.
    Caller,
    /// A call that has ended. The caller of that call goes on, perhaps for long, before its thread
    /// runs other tasks, so later decisions do not rely on the task.
    EndedCall,
}

/// The task takes its jobs when it runs: the tasks that run before it may ask too, and their
/// decisions join the call. The lock is released before the task is spawned, because a runtime that
/// is shutting down drops it at once.
fn spawn_start(
    shared: &Arc<SharedBackend>,
    batcher: &Arc<Mutex<BatcherState>>,
    mut waiting: MutexGuard<'_, BatcherState>,
    spawned: TaskSpawner,
) {
    let runtime = waiting.next_start(spawned);
    drop(waiting);
    if let Some(runtime) = runtime {
        let call = BatchCall {
            shared: Arc::clone(shared),
            batcher: Arc::clone(batcher),
            number: None,
        };
        runtime.spawn(call.start());
    }
}

/// A call that a task is about to start, or that is under way. When this is dropped the call has
/// ended, whatever its outcome.
struct BatchCall {
    shared: Arc<SharedBackend>,
    batcher: Arc<Mutex<BatcherState>>,
    /// `None` before the task runs.
    number: Option<u64>,
}

impl BatchCall {
    async fn start(mut self) {
        let jobs = self.take_jobs();
        // What the call has no room for starts right behind it.
        spawn_start(
            &self.shared,
            &self.batcher,
            self.batcher.lock(),
            TaskSpawner::EndedCall,
        );
        let Some(late) = send(&self.shared, jobs).await else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        // Decisions do not wait for an answer that is late.
        drop(self);
        late.wait(&shared).await;
    }

    /// Takes none if no call may start.
    fn take_jobs(&mut self) -> Vec<Job> {
        let mut waiting = self.batcher.lock();
        waiting.starting = None;
        waiting.runtime = Some(Handle::current());
        let (number, jobs) = waiting
            .next_call(self.shared.options.max_batch)
            .unwrap_or_default();
        self.number = Some(number);
        jobs
    }
}

impl Drop for BatchCall {
    fn drop(&mut self) {
        let mut waiting = self.batcher.lock();
        match self.number {
            Some(number) => {
                waiting.end(number);
                spawn_start(&self.shared, &self.batcher, waiting, TaskSpawner::EndedCall);
            }
            // Its runtime has shut down: the runtime of the next decision sends the queue.
            None => (waiting.starting, waiting.runtime) = (None, None),
        }
    }
}

/// A call whose answer did not come before the deadlines of its decisions. Corrections wait for it.
struct LateCall {
    asks: Vec<Arc<Ask>>,
    answers: Vec<AnswerSender>,
    late: LateAnswer,
}

impl LateCall {
    async fn wait(self, shared: &SharedBackend) {
        let parts = call::late_parts(shared, &self.asks, self.late).await;
        deliver(self.answers, parts);
    }
}

/// Sends all jobs in one call, except those whose caller left or whose deadline passed: these are
/// dropped, and not charged. Callers whose deadline passes during the call find that out
/// themselves.
async fn send(shared: &Arc<SharedBackend>, mut jobs: Vec<Job>) -> Option<LateCall> {
    jobs.retain(Job::is_due);
    let last = jobs.iter().map(|job| job.until).max()?;
    let first = &jobs[0].ask;
    let link = shared.links.resolve(first.slot, first.name(), last).await;
    let room = match &link {
        Ok(link) => room_for(link, &jobs, last).await,
        Err(error) => Err(error.clone()),
    };
    match room {
        Ok(_room) => {
            jobs.retain(|job| job.is_due() && job.claim.take());
            let (asks, answers): (Vec<_>, Vec<_>) =
                jobs.into_iter().map(|job| (job.ask, job.answer)).unzip();
            let late = LateAnswer::default();
            match call::decide_batch(shared, &asks, last, &late).await {
                Err(CallError::Late) => {
                    return Some(LateCall {
                        asks,
                        answers,
                        late,
                    });
                }
                parts => deliver(answers, parts),
            }
        }
        Err(error) => fail(jobs.into_iter().map(|job| job.answer), &error),
    }
    None
}

/// A decision is charged even if its caller no longer waits.
fn deliver(answers: Vec<AnswerSender>, parts: Result<Parts, CallError>) {
    match parts {
        Ok(parts) => answers
            .into_iter()
            .zip(parts)
            .for_each(|(answer, part)| drop(answer.send(Ok(part)))),
        Err(error) => fail(answers, &error),
    }
}

fn fail(answers: impl IntoIterator<Item = AnswerSender>, error: &CallError) {
    answers
        .into_iter()
        .for_each(|answer| drop(answer.send(Err(error.clone()))));
}

/// Waits for a connection and for room at the server.
async fn room_for<'a>(
    link: &'a Arc<Link>,
    jobs: &[Job],
    last: Instant,
) -> Result<InFlightPermit<'a>, CallError> {
    if !link.is_connected() || link.is_silent() {
        let name = jobs[0].ask.name();
        link.live_for(name, Instant::now(), last).await?;
    }
    let work = jobs.iter().map(|job| job.work).sum();
    let room = link.room.take_by(work, last).await;
    room.ok_or(CallError::Expired)
}

#[cfg(test)]
mod tests;
