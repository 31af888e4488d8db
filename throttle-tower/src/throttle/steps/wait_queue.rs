//! Requests that are held until they can be admitted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Algorithm, Backend, Key, PolicyNode, PolicySet, Status, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::ask::Calls;
use super::decide::{self, Answer};
use super::forecast::{Forecast, made_up_for};
use crate::lock::lock;
use crate::throttle::permits::Needs;
use crate::throttle::report::LimitReport;
use crate::throttle::shared::Shared;
use crate::time::{FAR, micros};

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
    progress: Progress,
}

/// How far a line is.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// The instant as of which the last decision was made, here and by the backend's clock.
    decided: Option<(Instant, Timestamp)>,
    forecast: Option<Forecast>,
    /// How late requests are admitted. Zero where they are decided as of their turn.
    late: Duration,
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

    /// A place at the end of a line, unless its last request would wait in vain, or too many are held in all lines.
    fn join(self: &Arc<Self>, key: LineKey, joining: &Joining<'_>) -> Option<Place> {
        let mut lines = self.lock();
        if let Some(line) = lines.get(&key) {
            joining.makes_it_behind(line).then_some(())?;
        }
        if self.held.load(Ordering::Acquire) >= joining.most {
            return None;
        }
        let progress = Progress { late: joining.late, ..Progress::default() };
        let new = || Line { first: Arc::new(Semaphore::new(1)), held: 0, units: 0, progress };
        let line = lines.entry(key.clone()).or_insert_with(new);
        (line.held, line.units) = (line.held + 1, line.units.saturating_add(joining.units));
        self.held.fetch_add(1, Ordering::AcqRel);
        let first = Arc::clone(&line.first);
        drop(lines);
        Some(Place { lines: Arc::clone(self), key, units: joining.units, first, first_turn: None })
    }

    /// When a request behind all others of a line is admitted.
    fn admits_by(&self, key: &LineKey, algorithm: &Algorithm, units: u64) -> Option<Instant> {
        let lines = self.lock();
        let line = lines.get(key)?;
        Some(line.progress.forecast?.admits_by(algorithm, line.units.saturating_add(units)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LineKey, Line>> {
        lock(&self.by_key)
    }
}

/// A request that wants to be held.
struct Joining<'a> {
    algorithm: &'a Algorithm,
    units: u64,
    deadline: Instant,
    /// Most requests in all lines.
    most: usize,
    /// How late turns are taken until that is measured.
    late: Duration,
}

impl Joining<'_> {
    fn makes_it_behind(&self, line: &Line) -> bool {
        let Some(units) = line.units.checked_add(self.units) else { return false };
        let lost = line.progress.late.saturating_sub(made_up_for(self.algorithm, self.units));
        let turns = u32::try_from(line.held).unwrap_or(u32::MAX).saturating_add(1);
        let late = lost.saturating_mul(turns).min(FAR);
        line.progress.forecast.is_none_or(|forecast| forecast.admits_by(self.algorithm, units) + late <= self.deadline)
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

    fn progress(&self) -> Progress {
        self.lines.lock().get(&self.key).map_or_else(Progress::default, |line| line.progress)
    }

    /// When the first request is due: here, and by the backend's clock. `None` if only the backend can tell.
    fn due(&self, algorithm: &Algorithm) -> Option<(Instant, Timestamp)> {
        let Progress { decided, forecast, .. } = self.progress();
        let ((at, as_of), forecast) = decided.zip(forecast.filter(|_| algorithm.drains()))?;
        let due = forecast.admits_by(algorithm, self.units);
        Some((due, as_of + due.saturating_duration_since(at)))
    }

    fn advance(&self, change: impl FnOnce(&mut Progress)) {
        if let Some(line) = self.lines.lock().get_mut(&self.key) {
            change(&mut line.progress);
        }
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

/// How late the first request of a line may wake and still be decided as of its turn. Turns that a line misses in a longer
/// stall are lost, so that it does not leave all at once.
const LATEST: Duration = Duration::from_millis(50);

/// How late a turn is taken where the backend's clock is not known, until it is measured: a timer's step and a round trip.
const LATE_OVER_A_STORE: Duration = Duration::from_millis(2);

impl<B: Backend> Shared<B> {
    /// Whether somebody is held for a key of this request's, so that it has to stand in line.
    #[inline]
    pub(in crate::throttle) fn stands_in_line(&self, calls: &[Call]) -> bool {
        self.uses.queues && !self.lines.is_empty() && self.line_of(calls).is_some()
    }

    /// Whether a refusal is worth being held for.
    #[inline]
    pub(in crate::throttle) fn is_worth_holding(&self, answer: &Answer) -> bool {
        let Answer::Decided(report) = answer else { return false };
        self.uses.queues && self.hold(report, Duration::ZERO).is_some()
    }

    /// Decides about a request, holding it if that helps.
    pub(in crate::throttle) async fn decide_patiently(self: &Arc<Self>, calls: &Calls, needs: &Needs) -> Answer {
        let arrived = Instant::now();
        let mut since = self.now(&calls);
        let mut place = None;
        if let Some((key, longest)) = self.line_of(&calls) {
            let policy = key.0;
            let mut joined = self.join(key.clone(), &calls, arrived + longest);
            if let Some(place) = &mut joined {
                place.become_first(arrived + longest + self.grace(&calls)).await;
            }
            place = joined.filter(|place| place.first_turn.is_some());
            if place.is_none() && self.lines.units(&key).is_some() {
                // What is left belongs to those before it.
                return self.refuse_behind(policy, &key, &calls).await;
            }
            since = self.await_turn(since, place.as_ref(), &calls, arrived + longest).await;
        }
        loop {
            let turn = self.take_turn(&calls, &needs, since, place.as_ref()).await;
            if let Some(place) = &place {
                self.advance(place, &calls, &turn);
            }
            let Answer::Decided(report) = &turn.answer else { return turn.answer };
            let Some(hold) = self.hold(report, turn.at.saturating_duration_since(arrived)) else {
                // The client counts its wait from now.
                let is_stale = turn.is_late && !report.decision().is_admitted();
                return if is_stale { decide::decide(self, calls, needs).await } else { turn.answer };
            };
            let Some(key) = calls.get(hold.policy).and_then(Call::key) else { return turn.answer };
            let key = (hold.policy, key.clone());
            if place.as_ref().is_some_and(|place: &Place| place.key != key) {
                // Another limit holds it now: who waits for the first one only must not wait for that too.
                place = None;
            }
            if place.is_none() {
                place = self.join(key.clone(), &calls, arrived + hold.longest);
                if let Some(place) = &place {
                    self.advance(place, &calls, &turn);
                }
            }
            let Some(here) = &mut place else { return turn.answer };
            since = turn.as_of.map(|as_of| as_of + hold.wait);
            let due = turn.at + hold.wait;
            drop(turn);
            if here.is_first() {
                sleep_until(due).await;
                continue;
            }
            here.become_first(arrived + hold.longest + self.grace(&calls)).await;
            if here.first_turn.is_none() {
                drop(place);
                return self.refuse_behind(hold.policy, &key, &calls).await;
            }
            since = self.await_turn(since, place.as_ref(), &calls, arrived + hold.longest).await;
        }
    }

    fn now(&self, calls: &[Call]) -> Option<Timestamp> {
        self.backend.now(&self.prepared, calls)
    }

    /// A late first request delays the ones behind it in real time only, where they are decided as of their own turn.
    fn grace(&self, calls: &[Call]) -> Duration {
        if self.now(calls).is_some() { LATEST } else { Duration::ZERO }
    }

    /// Waits until a request that has become the first is due, as far as that is known without asking the backend. Returns
    /// the instant by the backend's clock.
    async fn await_turn(
        &self,
        since: Option<Timestamp>,
        place: Option<&Place>,
        calls: &[Call],
        deadline: Instant,
    ) -> Option<Timestamp> {
        let Some((since, place)) = since.zip(place) else { return since };
        let due = self.algorithm(place.key.0, calls).and_then(|algorithm| place.due(algorithm));
        let Some((at, as_of)) = due.filter(|(at, _)| *at <= deadline) else { return Some(since) };
        sleep_until(at).await;
        Some(since.max(as_of))
    }

    /// Decides about the first request of a line, as of the instant at which its turn came: the lateness of timers, and of
    /// the way to a store, does not add up.
    async fn take_turn(
        self: &Arc<Self>,
        calls: &[Call],
        needs: &Needs,
        since: Option<Timestamp>,
        place: Option<&Place>,
    ) -> Turn {
        if let Some(saturated) = decide::saturated(self, needs) {
            return Turn { answer: saturated, at: Instant::now(), as_of: None, is_late: false };
        }
        if let (Some(place), Some(since), Some(now)) = (place, since, self.now(calls)) {
            let earliest = Timestamp::from_micros(now.as_micros().saturating_sub_unsigned(micros(LATEST)));
            let before = place.progress().decided.map_or(since, |(_, before)| before);
            let as_of = since.max(before).max(earliest).min(now);
            let late = Duration::from_micros(now.micros_since(as_of).unsigned_abs());
            let present = Instant::now();
            let at = present.checked_sub(late).unwrap_or(present);
            let answer = decide::decide_as_of(self, calls, as_of).await;
            return Turn { answer, at, as_of: Some(as_of), is_late: !late.is_zero() };
        }
        let answer = decide::decide(self, calls, needs).await;
        Turn { answer, at: Instant::now(), as_of: self.now(calls), is_late: false }
    }

    /// Notes what a decision says of a line.
    fn advance(&self, place: &Place, calls: &[Call], turn: &Turn) {
        let (Answer::Decided(report), policy) = (&turn.answer, place.key.0) else { return };
        let status = report.decision().statuses().get(policy);
        let known = self.announced.policies.get(policy).zip(status).zip(self.algorithm(policy, calls));
        let Some(((policy, status), algorithm)) = known else { return };
        let next = Forecast::new(policy, status, turn.at, place.units);
        place.advance(|progress| {
            let before = progress.forecast.replace(next);
            match (turn.as_of, before) {
                (Some(as_of), _) => progress.decided = Some((turn.at, as_of)),
                (None, Some(before)) if report.decision().is_admitted() => {
                    let late = turn.at.saturating_duration_since(before.admits_by(algorithm, place.units));
                    // A single quick turn does not make the next one quick.
                    progress.late = late.max(progress.late - progress.late / 8);
                }
                (None, _) => {}
            }
        });
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
                let own = calls.get(policy).map_or(0, Call::cost);
                let turn =
                    self.algorithm(policy, calls).and_then(|algorithm| self.lines.admits_by(key, algorithm, own));
                let wait = turn.map_or(Duration::ZERO, |turn| turn.saturating_duration_since(Instant::now()));
                Answer::Decided(decide::report(self, decision.refused(policy, wait)))
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

    fn join(&self, key: LineKey, calls: &[Call], deadline: Instant) -> Option<Place> {
        let late = if self.now(calls).is_some() { Duration::ZERO } else { LATE_OVER_A_STORE };
        let (algorithm, units) = (self.algorithm(key.0, calls)?, calls.get(key.0)?.cost());
        self.lines.join(key, &Joining { algorithm, units, deadline, most: self.options.max_held, late })
    }

    /// What the policy at a place is for this request, which may be in a tier.
    fn algorithm(&self, policy: usize, calls: &[Call]) -> Option<&Algorithm> {
        Some(self.announced.policies.get(policy)?.tier(calls.get(policy)?.tier()).algorithm())
    }

    /// What a request that was refused can be held for, so long after it has arrived.
    fn hold(&self, report: &LimitReport, elapsed: Duration) -> Option<Hold> {
        let decision = report.decision();
        if decision.is_admitted() {
            return None;
        }
        let (policy, wait) = (decision.binding()?, decision.retry_after()?);
        let longest = self.applied.get(policy)?.wait_up_to?.min(FAR);
        let waits = |policy: usize, status: &Status| {
            let longest = self.applied.get(policy).and_then(|how| how.wait_up_to);
            longest.zip(status.retry_after()).is_some_and(|(longest, wait)| elapsed.saturating_add(wait) <= longest)
        };
        let nodes: SmallVec<[(PolicyNode, usize); 8]> = B::set(&self.prepared).tree().collect();
        let is_patient = Patience { nodes: &nodes, statuses: decision.statuses(), waits: &waits }.of(0);
        (is_patient && elapsed.saturating_add(wait) <= longest).then_some(Hold { policy, wait, longest })
    }
}

/// One decision about a held request.
struct Turn {
    answer: Answer,
    /// The instant as of which it was made.
    at: Instant,
    /// The same by the backend's clock, if that can be read here.
    as_of: Option<Timestamp>,
    is_late: bool,
}

struct Hold {
    policy: usize,
    wait: Duration,
    longest: Duration,
}

/// Whether those who refuse are ready to wait: of an `all` everybody who refuses, of an `any` somebody.
struct Patience<'a> {
    nodes: &'a [(PolicyNode, usize)],
    statuses: &'a [Status],
    waits: &'a dyn Fn(usize, &Status) -> bool,
}

impl Patience<'_> {
    fn of(&self, node: usize) -> bool {
        match self.nodes[node].0 {
            PolicyNode::Policy(policy) => {
                self.statuses.get(policy).is_none_or(|status| !status.is_violated() || (self.waits)(policy, status))
            }
            PolicyNode::All => members(self.nodes, node).all(|member| self.of(member)),
            PolicyNode::Any(_) => members(self.nodes, node).any(|member| self.of(member)),
        }
    }
}

/// The members of the node at `parent`, by their places.
pub(in crate::throttle) fn members(nodes: &[(PolicyNode, usize)], parent: usize) -> impl Iterator<Item = usize> + '_ {
    let mut next = parent + 1;
    std::iter::from_fn(move || {
        let here = next;
        (here < nodes[parent].1).then(|| {
            next = nodes[here].1;
            here
        })
    })
}

fn has_any(set: &PolicySet) -> bool {
    set.tree().any(|(node, _)| matches!(node, PolicyNode::Any(_)))
}

#[cfg(test)]
mod tests {
    use throttle_core::{Gcra, ManualClock, MemoryBackend, Policy, Rate};

    use super::*;

    /// How many requests a line holds of which the last one is admitted in two seconds, if each turn is taken so late.
    fn longest(burst: u64, late: Duration) -> usize {
        let policy = Policy::new("p", Gcra::new(Rate::per_second(10)).burst(burst)).unwrap();
        let store = MemoryBackend::builder().clock(ManualClock::default()).build();
        let set = store.prepare(PolicySet::new(policy.clone()).unwrap()).unwrap();
        let decide = || store.decide_now(&set, &[Call::from(Key::from("key"))]);
        let refused = std::iter::repeat_with(decide).find(|decision| !decision.is_admitted()).unwrap();
        let (lines, key, now) = (Arc::new(Lines::default()), (0, Key::from("key")), Instant::now());
        let (algorithm, deadline) = (policy.algorithm(), now + Duration::from_secs(2));
        let join = || lines.join(key.clone(), &Joining { algorithm, units: 1, deadline, most: 100, late });
        let first = join().unwrap();
        first.advance(|progress| {
            progress.forecast = Some(Forecast::new(&policy, &refused.statuses()[0], now, 1));
        });
        1 + std::iter::from_fn(join).collect::<Vec<_>>().len()
    }

    #[tokio::test(start_paused = true)]
    async fn line_is_shorter_by_the_lateness_of_each_turn_that_no_burst_makes_up_for() {
        let late = Duration::from_millis(10);
        assert_eq!(longest(1, Duration::ZERO), 20, "one each 100 ms");
        assert_eq!(longest(1, late), 18, "one each 110 ms");
        assert_eq!(longest(2, late), 20, "the burst makes up for 100 ms");
    }
}
