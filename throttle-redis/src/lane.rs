//! Decisions of one set that wait for the connection travel together.
//!
//! While a few calls are under way, what arrives is queued; the next call takes all of it along, up to a limit. Nobody
//! waits for company: a decision that finds nobody before it leaves at once, by itself.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::ask::{Ask, Part};
use crate::line::Trouble;
use crate::shared::Shared;

/// Calls of a set that are under way at once. With fewer the server idles between them; with more they are smaller.
const FLIGHTS: usize = 4;

/// How long after its deadline an answer that says so is waited for.
const GRACE: Duration = Duration::from_millis(5);

pub(crate) struct Lane {
    flights: Arc<Semaphore>,
    queue: Mutex<Option<mpsc::Sender<Job>>>,
}

struct Job {
    ask: Ask,
    until: Instant,
    answer: oneshot::Sender<Result<Part, Trouble>>,
}

impl Lane {
    pub(crate) fn new() -> Self {
        Self { flights: Arc::new(Semaphore::new(FLIGHTS)), queue: Mutex::default() }
    }

    pub(crate) async fn ask(&self, shared: &Arc<Shared>, ask: &Ask, until: Instant) -> Result<Part, Trouble> {
        // The worker of a queue that is not empty waits for the next place already, so nobody is overtaken.
        if let Ok(_place) = self.flights.try_acquire() {
            return shared.decide_one(ask, until).await;
        }
        let (answer, told) = oneshot::channel();
        match self.queue(shared).try_send(Job { ask: ask.clone(), until, answer }) {
            // Nobody answers when the runtime of whoever works here was stopped, or stands still. The question may have
            // been sent by then. In all other cases the answer comes by itself, and says whether it was.
            Ok(()) => match timeout_at(until + GRACE, told).await {
                Ok(Ok(answer)) => answer,
                _ => Err(Trouble::Late),
            },
            Err(_) => Err(Trouble::Saturated),
        }
    }

    /// The queue, with somebody who works it off.
    fn queue(&self, shared: &Arc<Shared>) -> mpsc::Sender<Job> {
        let mut queue = self.queue.lock();
        match &*queue {
            // Closed, its worker went down with its runtime.
            Some(sender) if !sender.is_closed() => sender.clone(),
            _ => {
                let (sender, receiver) = mpsc::channel(shared.options.queue);
                tokio::spawn(work(Arc::clone(shared), receiver, Arc::clone(&self.flights)));
                *queue = Some(sender.clone());
                sender
            }
        }
    }
}

async fn work(shared: Arc<Shared>, mut queue: mpsc::Receiver<Job>, flights: Arc<Semaphore>) {
    while let Some(first) = queue.recv().await {
        let Ok(place) = Arc::clone(&flights).acquire_owned().await else { return };
        let mut jobs = vec![first];
        while jobs.len() < shared.options.merge
            && let Ok(next) = queue.try_recv()
        {
            jobs.push(next);
        }
        // Whose caller has gone must not be charged any more.
        jobs.retain(|job| !job.answer.is_closed());
        tokio::spawn(fly(Arc::clone(&shared), jobs, place));
    }
}

/// Asks for all of them in as few calls as there are versions of the set, which is one.
async fn fly(shared: Arc<Shared>, mut jobs: Vec<Job>, _place: OwnedSemaphorePermit) {
    while let Some(first) = jobs.first() {
        let (linked, until) = (Arc::clone(&first.ask.linked), first.until);
        let alike = jobs.iter().take_while(|job| Arc::ptr_eq(&job.ask.linked, &linked)).count();
        let rest = jobs.split_off(alike);
        let (asks, answers): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.ask, job.answer)).unzip();
        match shared.decide_merged(&asks, until).await {
            Ok(parts) => {
                for (answer, part) in answers.into_iter().zip(parts) {
                    // Nobody listens any more: charged all the same, as when an answer comes too late.
                    let _ = answer.send(Ok(part));
                }
            }
            Err(trouble) => {
                for answer in answers {
                    let _ = answer.send(Err(trouble.clone()));
                }
            }
        }
        jobs = rest;
    }
}
