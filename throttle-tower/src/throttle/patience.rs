//! Requests that are held until they can be admitted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use smallvec::SmallVec;
use throttle_core::{Algorithm, Backend, Call, Key, LimitSet, Status, TreeNode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};

use super::LimitReport;
use super::attempt::Answer;
use super::in_flight::Needs;
use super::rules::{Calls, Rules};
use crate::lock::lock;
use crate::time::FAR;

/// The lines of those who are held, one for each key that somebody is held for.
///
/// Whoever is first in line asks the backend; the others wait for their turn, and so do newcomers. So nobody is overtaken
/// by those who came later.
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
    /// What they ask for together.
    units: u64,
}

impl Lines {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.load(Ordering::Acquire) == 0
    }

    /// The units that a line asks for, if there is one.
    fn units(&self, key: &LineKey) -> Option<u64> {
        self.lock().get(key).map(|line| line.units)
    }

    /// A place at the end of a line, unless it would be too long then, or too many are held in all of them.
    fn join(self: &Arc<Self>, key: LineKey, units: u64, longest: u64, most: usize) -> Option<Place> {
        let mut lines = self.lock();
        let before = lines.get(&key).map_or(0, |line| line.units);
        let after = before.checked_add(units).filter(|after| before == 0 || *after <= longest)?;
        if self.held.load(Ordering::Acquire) >= most {
            return None;
        }
        let new = || Line { first: Arc::new(Semaphore::new(1)), held: 0, units: 0 };
        let line = lines.entry(key.clone()).or_insert_with(new);
        (line.held, line.units) = (line.held + 1, after);
        self.held.fetch_add(1, Ordering::AcqRel);
        let first = Arc::clone(&line.first);
        drop(lines);
        Some(Place { lines: Arc::clone(self), key, units, first, first_turn: None })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LineKey, Line>> {
        lock(&self.by_key)
    }
}

/// A place in a line. Dropping it lets the next one through.
struct Place {
    lines: Arc<Lines>,
    key: LineKey,
    units: u64,
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

    /// Waits to be the first, until an instant at most.
    async fn become_first(&mut self, until: Instant) {
        let turn = timeout_at(until, Arc::clone(&self.first).acquire_owned()).await;
        self.first_turn = turn.ok().and_then(Result::ok);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get_mut(&self.key) {
            (line.held, line.units) = (line.held - 1, line.units - self.units);
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
    pub(super) fn is_worth_holding(&self, answer: &Answer) -> bool {
        let Answer::Decided(report) = answer else { return false };
        self.wanted.waits && self.hold(report, Duration::ZERO).is_some()
    }

    /// Decides about a request, holding it if that helps.
    pub(super) async fn decide_patiently(self: Arc<Self>, calls: Calls, needs: Needs) -> Answer {
        let arrived = Instant::now();
        let mut place = None;
        if let Some((key, longest)) = self.line_of(&calls) {
            let policy = key.0;
            let mut joined = self.join(key.clone(), &calls);
            if let Some(place) = &mut joined {
                place.become_first(arrived + longest).await;
            }
            place = joined.filter(|place| place.first_turn.is_some());
            if place.is_none() && self.lines.units(&key).is_some() {
                // What is left belongs to those before it.
                return self.refuse_behind(policy, &key, &calls).await;
            }
        }
        loop {
            let answer = self.answer(&calls, &needs).await;
            let Answer::Decided(report) = &answer else { return answer };
            let Some(hold) = self.hold(report, arrived.elapsed()) else { return answer };
            let Some(key) = calls.get(hold.policy).and_then(Call::key) else { return answer };
            let key = (hold.policy, key.clone());
            if place.as_ref().is_some_and(|place: &Place| place.key != key) {
                // Another limit holds it now: who waits for the first one only must not wait for that too.
                place = None;
            }
            if place.is_none() {
                place = self.join(key.clone(), &calls);
            }
            let Some(here) = &mut place else { return answer };
            drop(answer);
            if here.is_first() {
                sleep(hold.wait).await;
                continue;
            }
            here.become_first(arrived + hold.longest).await;
            if here.first_turn.is_none() {
                drop(place);
                return self.refuse_behind(hold.policy, &key, &calls).await;
            }
        }
    }

    /// Refuses a request that others stand before, without asking for anything: it looks.
    async fn refuse_behind(&self, policy: usize, key: &LineKey, calls: &[Call]) -> Answer {
        let look: Calls = calls.iter().map(|call| call.clone().costing(0)).collect();
        let looked = match self.backend.decide_at_once(&self.prepared, &look) {
            Some(decision) => Ok(decision),
            None => self.backend.decide(&self.prepared, &look).await,
        };
        match looked {
            Ok(decision) => {
                let ahead = self.lines.units(key).unwrap_or(1);
                let wait = self.algorithm(policy, calls).map_or(Duration::ZERO, |algorithm| takes(algorithm, ahead));
                Answer::Decided(self.report(decision.refused(policy, wait)))
            }
            Err(error) => Answer::Failed(error),
        }
    }

    /// The line that a request has to join, and how long it may be held there. In an `any` another member may admit it.
    fn line_of(&self, calls: &[Call]) -> Option<(LineKey, Duration)> {
        if has_any(B::set(&self.prepared)) {
            return None;
        }
        self.applied.iter().zip(calls).enumerate().find_map(|(policy, (how, call))| {
            let longest = how.wait_up_to?.min(FAR);
            // Who only looks takes nothing from anybody.
            let key = (policy, call.key().filter(|_| call.cost() > 0)?.clone());
            self.lines.units(&key).map(|_| (key, longest))
        })
    }

    fn join(&self, key: LineKey, calls: &[Call]) -> Option<Place> {
        let units = calls.get(key.0)?.cost();
        let longest = longest_line(self.algorithm(key.0, calls)?, self.applied.get(key.0)?.wait_up_to?);
        self.lines.join(key, units, longest, self.answers.options.max_held)
    }

    /// What the policy at a place is for this request, which may be in a tier.
    fn algorithm(&self, policy: usize, calls: &[Call]) -> Option<&Algorithm> {
        Some(self.answers.policies.get(policy)?.tier(calls.get(policy)?.tier()).algorithm())
    }

    /// What a request that was refused can be held for, so long after it has arrived.
    fn hold(&self, report: &LimitReport, elapsed: Duration) -> Option<Hold> {
        let decision = report.decision();
        if decision.is_allowed() {
            return None;
        }
        let (policy, wait) = (decision.binding()?, decision.retry_after()?);
        let longest = self.applied.get(policy)?.wait_up_to?.min(FAR);
        let waits = |policy: usize, status: &Status| {
            let longest = self.applied.get(policy).and_then(|how| how.wait_up_to);
            longest.zip(status.retry_after()).is_some_and(|(longest, wait)| elapsed.saturating_add(wait) <= longest)
        };
        let nodes: SmallVec<[(TreeNode, usize); 8]> = B::set(&self.prepared).tree().collect();
        let is_patient = Patience { nodes: &nodes, statuses: decision.statuses(), waits: &waits }.of(0);
        (is_patient && elapsed.saturating_add(wait) <= longest).then_some(Hold { policy, wait, longest })
    }
}

struct Hold {
    policy: usize,
    wait: Duration,
    longest: Duration,
}

/// Whether those who refuse are ready to wait: of an `all` everybody who refuses, of an `any` somebody.
struct Patience<'a> {
    nodes: &'a [(TreeNode, usize)],
    statuses: &'a [Status],
    waits: &'a dyn Fn(usize, &Status) -> bool,
}

impl Patience<'_> {
    fn of(&self, node: usize) -> bool {
        match self.nodes[node].0 {
            TreeNode::Policy(policy) => {
                self.statuses.get(policy).is_none_or(|status| !status.is_violated() || (self.waits)(policy, status))
            }
            TreeNode::All => members(self.nodes, node).all(|member| self.of(member)),
            TreeNode::Any(_) => members(self.nodes, node).any(|member| self.of(member)),
        }
    }
}

/// The members of the node at `parent`, by their places.
pub(super) fn members(nodes: &[(TreeNode, usize)], parent: usize) -> impl Iterator<Item = usize> + '_ {
    let mut next = parent + 1;
    std::iter::from_fn(move || {
        let here = next;
        (here < nodes[parent].1).then(|| {
            next = nodes[here].1;
            here
        })
    })
}

fn has_any(set: &LimitSet) -> bool {
    set.tree().any(|(node, _)| matches!(node, TreeNode::Any(_)))
}

/// No more units can be admitted in that time: who comes after them would wait in vain.
fn longest_line(algorithm: &Algorithm, longest: Duration) -> u64 {
    let rate = algorithm.rate();
    let refilled =
        longest.as_micros().saturating_mul(u128::from(rate.count())) / u128::from(rate.period_micros().max(1));
    // A bucket that drains has nothing left while somebody waits for it; a window may begin anew.
    let at_once = if algorithm.drains() { 0 } else { u128::from(algorithm.capacity()) };
    u64::try_from(at_once.saturating_add(refilled).saturating_add(1)).unwrap_or(u64::MAX)
}

/// How long so many units take at the rate.
fn takes(algorithm: &Algorithm, units: u64) -> Duration {
    let rate = algorithm.rate();
    let micros = u128::from(units) * u128::from(rate.period_micros()) / u128::from(rate.count().max(1));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}
