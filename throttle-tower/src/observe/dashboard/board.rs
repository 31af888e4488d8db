use std::any::Any;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use throttle_core::{Policy, PolicyName};
use tokio::time::Instant;

use super::flows::{Flows, Recent, TEN, second};
use super::shown::Shown;
use super::tightest::Tightest;
use crate::Offender;
use crate::candidate::Candidates;
use crate::event::Backends;
use crate::event::Observed;
use crate::event::{BuiltInObserver, BuiltOn, Observers};
use crate::lock::lock;
use crate::observe::offenders::tracker::Tracker;
use crate::time::micros;
use crate::{Activity, LimitState};
use crate::{Event, Outcome};

/// What a layer does, for its page: two minutes by the second, at 2.5 KB for each policy. A request
/// adds to a few numbers, and waits for nothing.
pub(super) struct Board {
    pub(super) started: Instant,
    pub(super) flows: Flows,
    pub(super) policies: Box<[PolicyBoard]>,
    pub(super) permits: Box<[PermitBoard]>,
    pub(super) tightest: Tightest,
    pub(super) tracker: Arc<Tracker>,
    pub(super) store: StoreBoard,
    backends: Backends,
    /// The last seconds in which rules replaced the limits, oldest first. No request locks it.
    rules_changes: Mutex<Vec<u32>>,
    /// No request locks it.
    pub(super) candidates: Mutex<Candidates>,
    /// The limits that it is of.
    of: Arc<[Policy]>,
    page: Weak<Shown<Self>>,
}

#[derive(Default)]
pub(super) struct PolicyBoard {
    pub(super) name: String,
    pub(super) is_audited: bool,
    queued: AtomicI64,
    pub(super) longest_wait_ms: Recent,
}

#[derive(Default)]
pub(super) struct PermitBoard {
    pub(super) name: String,
    taken: AtomicI64,
    pub(super) most_taken: Recent,
    pub(super) refused: Recent,
}

/// Decisions that had to be waited for.
#[derive(Default)]
pub(super) struct StoreBoard {
    pub(super) answers: Recent,
    pub(super) failures: Recent,
    pub(super) slowest_ms: Recent,
}

impl Board {
    /// The tracker counts the refusals of the page's layer, and its secret is what digests of keys
    /// are under.
    pub(super) fn new(
        of: Arc<[Policy]>,
        permits: &[PolicyName],
        tracker: Arc<Tracker>,
        page: &Arc<Shown<Self>>,
    ) -> Self {
        let policy = |policy: &Policy| PolicyBoard {
            name: policy.name().to_owned(),
            is_audited: policy.is_audited(),
            ..PolicyBoard::default()
        };
        let permit = |name: &PolicyName| PermitBoard {
            name: name.as_str().to_owned(),
            ..PermitBoard::default()
        };
        Self {
            started: Instant::now(),
            flows: Flows::new(of.len()),
            policies: of.iter().map(policy).collect(),
            permits: permits.iter().map(permit).collect(),
            tightest: Tightest::new(tracker.secret()),
            tracker,
            store: StoreBoard::default(),
            backends: Backends::default(),
            rules_changes: Mutex::default(),
            candidates: Mutex::default(),
            of,
            page: Arc::downgrade(page),
        }
    }

    /// The keys that were refused most.
    pub(super) fn offenders(&self, n: usize) -> Vec<Offender> {
        self.tracker.list(n, &self.of)
    }

    /// Whether all that a board knows of limits is the same of these.
    pub(super) fn is_of(&self, other: &Observed) -> bool {
        let permits = self.permits.iter().map(|permit| permit.name.as_str());
        let is_same = |(own, other): (&Policy, &Policy)| {
            own.policy_name() == other.policy_name()
                && own.is_audited() == other.is_audited()
                && capacities(own).eq(capacities(other))
        };
        self.of.len() == other.policies.len()
            && self.of.iter().zip(&*other.policies).all(is_same)
            && permits.eq(other.permits.iter().map(PolicyName::as_str))
    }

    pub(super) fn moment(&self) -> Moment {
        let since = self.started.elapsed();
        Moment {
            micros: micros(since),
            running: since.as_secs(),
        }
    }

    pub(super) fn keys_held(&self) -> Option<usize> {
        self.backends.keys_held()
    }

    /// The seconds in which rules replaced the limits, newest first.
    pub(super) fn rules_changes(&self) -> Vec<u32> {
        lock(&self.rules_changes).iter().rev().copied().collect()
    }

    /// The candidates are those among the observers of the layer.
    pub(super) fn note_candidates(&self, observers: &Observers) {
        *lock(&self.candidates) = observers.find().cloned().unwrap_or_default();
    }

    /// Rules have replaced the limits of a layer, if only by the same ones.
    fn note_rules_change(&self, beside: &Observers) {
        self.note_candidates(beside);
        let (second, mut changes) = (self.moment().second(), lock(&self.rules_changes));
        // Each layer of a page notes it.
        if changes.last() != Some(&second) {
            if changes.len() == RULES_CHANGES {
                changes.remove(0);
            }
            changes.push(second);
        }
    }
}

/// The page has the board, too.
impl BuiltInObserver for Arc<Board> {
    fn part(&self) -> Option<&dyn Any> {
        Some(&self.tracker)
    }

    /// It knows limits by their places, and what an unused key has of each. The page goes on with
    /// another board.
    fn renewed(
        &self,
        former: &Observed,
        of: &Observed,
        beside: &Observers,
    ) -> Option<Box<dyn BuiltInObserver>> {
        if self.is_of(of) {
            self.note_rules_change(beside);
            return None;
        }
        let page = self.page.upgrade();
        if let Some(made) = page
            .as_ref()
            .and_then(|page| page.made_for(|made| made.is_of(of), self))
        {
            made.note_rules_change(beside);
            return Some(Box::new(made));
        }
        let tracker = if former.has_names_of(of) {
            Arc::clone(&self.tracker)
        } else {
            Arc::new(self.tracker.anew())
        };
        let page = page.unwrap_or_default();
        let board = Arc::new(Board::new(
            Arc::clone(&of.policies),
            &of.permits,
            tracker,
            &page,
        ));
        board.note_rules_change(beside);
        page.add(Arc::clone(&board));
        Some(Box::new(board))
    }

    fn built(&self, on: &Arc<BuiltOn>) {
        self.backends.add(on);
    }

    fn decided(&self, event: &Event<'_>) {
        let moment = self.moment();
        self.flows.count(moment.second(), event);
        self.tracker.decided(event);
        if let Outcome::NoPermit(full) = event.outcome {
            self.permits_ran_out(full, &moment);
        }
        for limit in event.limits() {
            if let LimitState::Units {
                status,
                capacity,
                reserve,
                key: Some(key),
                ..
            } = limit.state
            {
                let most = capacity.saturating_sub(reserve);
                self.tightest
                    .note((limit.index, key), status, most, moment.micros);
            }
        }
    }

    fn happened(&self, activity: &Activity) {
        let ten = self.moment().ten();
        match *activity {
            Activity::Answered {
                after,
                failed: None,
            } => {
                self.store.answers.count(ten);
                self.store.slowest_ms.raise(ten, whole_millis(after));
            }
            Activity::Answered { .. } => self.store.failures.count(ten),
            Activity::Queued { limit } => {
                self.policies[limit].queued.fetch_add(1, Ordering::Relaxed);
            }
            Activity::LeftQueue { limit, after } => {
                let policy = &self.policies[limit];
                policy.queued.fetch_sub(1, Ordering::Relaxed);
                policy.longest_wait_ms.raise(ten, whole_millis(after));
            }
            Activity::TookPermits { limit, permits } => {
                let limit = &self.permits[limit - self.policies.len()];
                let permits = i64::try_from(permits).unwrap_or(i64::MAX);
                let taken = limit
                    .taken
                    .fetch_add(permits, Ordering::Relaxed)
                    .saturating_add(permits);
                limit.most_taken.raise(ten, not_negative(taken));
            }
            Activity::ReturnedPermits { limit, permits } => {
                let permits = i64::try_from(permits).unwrap_or(i64::MAX);
                self.permits[limit - self.policies.len()]
                    .taken
                    .fetch_sub(permits, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Board {
    /// These limits had too few permits for a request.
    fn permits_ran_out(&self, full: &[PolicyName], moment: &Moment) {
        for name in full {
            if let Some(limit) = self
                .permits
                .iter()
                .find(|limit| limit.name == name.as_str())
            {
                limit.refused.count(moment.ten());
            }
        }
    }
}

impl PolicyBoard {
    pub(super) fn queued(&self) -> u64 {
        not_negative(self.queued.load(Ordering::Relaxed))
    }
}

impl PermitBoard {
    pub(super) fn taken(&self) -> u64 {
        not_negative(self.taken.load(Ordering::Relaxed))
    }
}

/// When something happens, in the units of the board.
pub(super) struct Moment {
    /// Since the start.
    pub(super) micros: u64,
    /// Whole seconds since the start.
    pub(super) running: u64,
}

impl Moment {
    pub(super) fn second(&self) -> u32 {
        second(self.running)
    }

    fn ten(&self) -> u32 {
        self.second() / TEN
    }

    /// The last complete seconds since the start, at most 120.
    pub(super) fn seconds(&self) -> impl Iterator<Item = u32> + Clone + use<> {
        let complete = u32::try_from(self.running).map_or(SHOWN, |running| running.min(SHOWN));
        self.second() - complete..self.second()
    }

    /// How many seconds ago a second began.
    pub(super) fn since(&self, second: u32) -> u32 {
        self.second().saturating_sub(second)
    }

    /// What a count has come to in the last two minutes.
    pub(super) fn sum(&self, recent: &Recent) -> u64 {
        self.tens().map(|ten| u64::from(recent.get(ten))).sum()
    }

    /// The highest of the last two minutes.
    pub(super) fn most(&self, recent: &Recent) -> u32 {
        self.tens().map(|ten| recent.get(ten)).max().unwrap_or(0)
    }

    /// The running ten seconds, and those that make two minutes before them.
    fn tens(&self) -> impl Iterator<Item = u32> + use<> {
        self.ten() - SHOWN / TEN..=self.ten()
    }
}

const SHOWN: u32 = 120;

/// Most changes of the rules that are listed.
const RULES_CHANGES: usize = 20;

/// The units that an unused key has, by the policy's tiers.
fn capacities(policy: &Policy) -> impl Iterator<Item = u64> {
    let untiered = (!policy.is_tiered()).then_some(policy);
    untiered
        .into_iter()
        .chain(policy.tiers().map(|(_, tier)| tier))
        .map(|policy| policy.algorithm().capacity())
}

/// What came in by another order for a moment counts as nothing.
fn not_negative(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
