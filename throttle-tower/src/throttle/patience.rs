//! Requests that are held until they can be admitted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throttle_core::{Algorithm, Backend, Call, Key, LimitSet, TreeNode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use super::LimitReport;
use super::in_flight::Needs;
use super::rules::{Answer, Attempt, Calls, Rules};

/// The lines of those who are held, one for each key that somebody is held for.
///
/// Whoever is first in line asks the backend; the others wait for their turn, and so do newcomers. So nobody is overtaken
/// by those who came later, as long as the time that each may be held lasts.
#[derive(Default)]
pub(crate) struct Lines {
    /// Those who are held, in all lines.
    held: AtomicUsize,
    by_key: Mutex<HashMap<LineKey, Line>>,
}

type LineKey = (usize, Key);

struct Line {
    /// Whoever holds the one permit is first. It is handed on in the order in which it was asked for.
    first: Arc<Semaphore>,
    held: usize,
}

impl Lines {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.load(Ordering::Acquire) == 0
    }

    fn exists(&self, key: &LineKey) -> bool {
        self.lock().contains_key(key)
    }

    /// A place at the end of a line, unless it is too long already, or too many are held in all of them.
    fn join(self: &Arc<Self>, key: LineKey, longest: usize, most: usize) -> Option<Place> {
        let mut lines = self.lock();
        if self.held.load(Ordering::Acquire) >= most {
            return None;
        }
        let line = lines.entry(key.clone()).or_insert_with(|| Line { first: Arc::new(Semaphore::new(1)), held: 0 });
        if line.held >= longest {
            return None;
        }
        line.held += 1;
        self.held.fetch_add(1, Ordering::AcqRel);
        let first = Arc::clone(&line.first);
        drop(lines);
        Some(Place { lines: Arc::clone(self), key, first, first_turn: None })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LineKey, Line>> {
        // Counting does not panic halfway.
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in a line. Dropping it lets the next one through.
struct Place {
    lines: Arc<Lines>,
    key: LineKey,
    first: Arc<Semaphore>,
    first_turn: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Whether it is the first, or nobody else is.
    fn is_first(&mut self) -> bool {
        if self.first_turn.is_none() {
            self.first_turn = Arc::clone(&self.first).try_acquire_owned().ok();
        }
        self.first_turn.is_some()
    }

    /// Waits to be the first; gives up at an instant.
    async fn become_first(&mut self, until: Instant) {
        let turn = timeout_at(until, Arc::clone(&self.first).acquire_owned()).await;
        self.first_turn = turn.ok().and_then(Result::ok);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            line.held -= 1;
            if line.held == 0 {
                lines.remove(&self.key);
            }
        }
        self.lines.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Most requests that a layer holds at once, unless it is told otherwise.
pub(crate) const DEFAULT_MAX_HELD: usize = 10_000;

impl<B: Backend> Rules<B> {
    /// Whether somebody is held for a key of this request's, so that it has to stand in line.
    #[inline]
    pub(super) fn stands_in_line(&self, calls: &[Call]) -> bool {
        self.wanted.waits && !self.lines.is_empty() && self.line_of(calls).is_some()
    }

    /// Whether a refusal is worth being held for.
    #[inline]
    pub(super) fn is_worth_holding(&self, attempt: &Attempt) -> bool {
        let Answer::Decided(report) = &attempt.answer else { return false };
        self.wanted.waits && self.hold(report, Duration::ZERO).is_some()
    }

    /// Decides about a request, holding it if that helps.
    pub(super) async fn decide_patiently(self: Arc<Self>, calls: Calls, needs: Needs) -> Attempt {
        let arrived = Instant::now();
        let mut place = None;
        if let Some((key, longest)) = self.line_of(&calls) {
            place = self.join(key, &calls);
            if let Some(place) = &mut place {
                // Who does not become the first in time is decided about all the same: there may be room by now.
                place.become_first(arrived + longest).await;
            }
        }
        loop {
            let attempt = self.attempt(&calls, &needs).await;
            let Answer::Decided(report) = &attempt.answer else { return attempt };
            let Some(hold) = self.hold(report, arrived.elapsed()) else { return attempt };
            if place.is_none() {
                let key = calls.get(hold.policy).and_then(Call::key);
                place = key.and_then(|key| self.join((hold.policy, key.clone()), &calls));
            }
            let Some(place) = &mut place else { return attempt };
            drop(attempt);
            if place.is_first() {
                sleep(hold.wait).await;
            } else {
                // What it was told is of the past by then.
                place.become_first(arrived + hold.longest).await;
            }
        }
    }

    /// The line that a request has to join, and how long it may be held there.
    fn line_of(&self, calls: &[Call]) -> Option<(LineKey, Duration)> {
        self.applied.iter().zip(calls).enumerate().find_map(|(policy, (how, call))| {
            let key = (policy, call.key()?.clone());
            let longest = how.wait_up_to?;
            self.lines.exists(&key).then_some((key, longest))
        })
    }

    fn join(&self, key: LineKey, calls: &[Call]) -> Option<Place> {
        let (how, policy) = (self.applied.get(key.0)?, self.answers.policies.get(key.0)?);
        let longest = longest_line(policy.tier(calls.get(key.0)?.tier()).algorithm(), how.wait_up_to?);
        self.lines.join(key, longest, self.answers.options.max_held)
    }

    /// What a request that was refused can be held for, so long after it has arrived.
    fn hold(&self, report: &LimitReport, elapsed: Duration) -> Option<Hold> {
        let decision = report.decision();
        if decision.is_allowed() {
            return None;
        }
        let (policy, wait) = (decision.binding()?, decision.retry_after()?);
        let longest = self.applied.get(policy)?.wait_up_to?;
        // Where all must admit, none may be one that does not wait.
        let others = decision.statuses().iter().zip(self.applied.iter());
        let impatient = |how: &crate::limit::Applied| how.wait_up_to.is_none_or(|longest| elapsed + wait > longest);
        let refuses = !has_any(B::set(&self.prepared))
            && others.into_iter().any(|(status, how)| status.is_violated() && impatient(how));
        (elapsed + wait <= longest && !refuses).then_some(Hold { policy, wait, longest })
    }
}

struct Hold {
    policy: usize,
    wait: Duration,
    longest: Duration,
}

fn has_any(set: &LimitSet) -> bool {
    set.tree().any(|(node, _)| matches!(node, TreeNode::Any(_)))
}

/// No more than so many can be admitted in that time, if each takes a unit: who comes after them would wait in vain.
fn longest_line(algorithm: &Algorithm, longest: Duration) -> usize {
    let rate = algorithm.rate();
    let refilled = longest.as_micros() * u128::from(rate.count()) / u128::from(rate.period_micros().max(1));
    let most = u128::from(algorithm.capacity()) + refilled + 1;
    usize::try_from(most).unwrap_or(usize::MAX)
}
