use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use throttle_core::backend::Call;
use throttle_core::{BackendErrorKind, Decision, Policy, PolicyName, Status};
use tokio::time::Instant;

use super::buckets::Buckets;
use super::changes::Changes;
use super::tightest::{Standing, Tightest};
use crate::observe::backends::Backends;
use crate::observe::decider::Decider;
use crate::observe::{BuiltOn, Observer};
use crate::throttle::{Event, OUTCOMES, Outcome};

/// Counts what a layer does, for its page: two minutes by the second, at 2.5 KB for each policy. A request adds to a few
/// numbers, and waits for nothing.
pub(super) struct Board {
    started: Instant,
    pub(super) requests: Flow,
    /// Since the start, in the order of [`OUTCOMES`].
    outcomes: [AtomicU64; OUTCOMES.len()],
    pub(super) policies: Box<[PolicyBoard]>,
    pub(super) permits: Box<[PermitBoard]>,
    pub(super) changes: Changes,
    /// Decisions, by the place of the decider.
    pub(super) deciders: [Recent; Decider::ALL.len()],
    pub(super) tightest: Tightest,
    pub(super) store: StoreBoard,
    backends: Backends,
}

/// Requests of each of the last two minutes' seconds.
#[derive(Default)]
pub(super) struct Flow {
    pub(super) admitted: Seconds,
    pub(super) refused: Seconds,
}

/// The running second, 120 before it, and some that make indexing cheap.
pub(super) type Seconds = Buckets<128>;

/// By ten seconds: the running ones, and twelve times ten before them.
pub(super) type Recent = Buckets<16>;

#[derive(Default)]
pub(super) struct PolicyBoard {
    pub(super) name: String,
    pub(super) flow: Flow,
    /// Requests of which the policy was the binding one.
    pub(super) bound_admitted: Recent,
    pub(super) bound_refused: Recent,
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

/// The number of the first second: two minutes before it have numbers too.
const FIRST: u32 = 1_200;

const TEN: u32 = 10;

impl Board {
    /// `secret` is what digests of keys are under.
    pub(super) fn new<'a>(
        policies: &[Policy],
        permits: impl Iterator<Item = &'a PolicyName>,
        secret: RandomState,
    ) -> Self {
        let policy = |policy: &Policy| PolicyBoard { name: policy.name().to_owned(), ..PolicyBoard::default() };
        let permit = |name: &PolicyName| PermitBoard { name: name.as_str().to_owned(), ..PermitBoard::default() };
        Self {
            started: Instant::now(),
            requests: Flow::default(),
            outcomes: Default::default(),
            policies: policies.iter().map(policy).collect(),
            permits: permits.map(permit).collect(),
            changes: Changes::default(),
            deciders: Default::default(),
            tightest: Tightest::new(secret),
            store: StoreBoard::default(),
            backends: Backends::default(),
        }
    }

    pub(super) fn moment(&self) -> Moment {
        let now = Instant::now();
        Moment { now, running: now.saturating_duration_since(self.started).as_secs() }
    }

    /// How many requests had each of the [`OUTCOMES`].
    pub(super) fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        self.outcomes.each_ref().map(|outcome| outcome.load(Ordering::Relaxed))
    }

    pub(super) fn keys_held(&self) -> Option<usize> {
        self.backends.keys_held()
    }

    fn decided(&self, moment: &Moment, event: &Event<'_>, decision: &Decision, calls: &[Call]) {
        let is_admitted = decision.is_admitted();
        let statuses = self.policies.iter().zip(decision.statuses()).zip(calls).enumerate();
        for (place, ((policy, status), call)) in statuses.filter(|(_, ((_, status), _))| status.applies()) {
            policy.flow.count(moment, is_admitted, status);
            if let (Some(key), Some(limit)) = (call.key(), event.policies.get(place)) {
                let of = limit.tier(status.tier()).algorithm().capacity();
                let standing = Standing { left: status.remaining(), of, reset_after: status.reset_after() };
                self.tightest.note(place, key, &standing, moment.now);
            }
        }
        if let Some(binding) = decision.binding().and_then(|place| self.policies.get(place)) {
            let bound = if is_admitted { &binding.bound_admitted } else { &binding.bound_refused };
            bound.count(moment.ten());
        }
    }
}

/// The page has the board, too.
impl Observer for Arc<Board> {
    fn built(&self, on: &Arc<BuiltOn>) {
        self.backends.add(on);
    }

    fn judged(&self, event: &Event<'_>, calls: &[Call]) {
        let moment = self.moment();
        if let Outcome::NoPermit(full) = event.outcome {
            self.permits_ran_out(&moment, full);
        }
        self.outcomes[event.outcome.place()].fetch_add(1, Ordering::Relaxed);
        let flow = if event.outcome.is_passed_on() { &self.requests.admitted } else { &self.requests.refused };
        flow.count(moment.second());
        if let Some(decider) = Decider::of(event) {
            self.deciders[decider as usize].count(moment.ten());
            self.changes.note(moment.second(), decider, event.degraded());
        }
        if let Some(decision) = event.decision {
            self.decided(&moment, event, decision, calls);
        }
    }

    fn answered(&self, after: Duration, result: Result<(), BackendErrorKind>) {
        let ten = self.moment().ten();
        match result {
            Ok(()) => {
                self.store.answers.count(ten);
                self.store.slowest_ms.raise(ten, whole_millis(after));
            }
            Err(_) => self.store.failures.count(ten),
        }
    }

    fn queued(&self, policy: usize) {
        if let Some(policy) = self.policies.get(policy) {
            policy.queued.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn left_queue(&self, policy: usize, after: Duration) {
        if let Some(policy) = self.policies.get(policy) {
            policy.queued.fetch_sub(1, Ordering::Relaxed);
            policy.longest_wait_ms.raise(self.moment().ten(), whole_millis(after));
        }
    }

    fn took_permits(&self, limit: usize, permits: u64) {
        if let Some(limit) = self.permits.get(limit) {
            let permits = i64::try_from(permits).unwrap_or(i64::MAX);
            let taken = limit.taken.fetch_add(permits, Ordering::Relaxed).saturating_add(permits);
            limit.most_taken.raise(self.moment().ten(), not_negative(taken));
        }
    }

    fn returned_permits(&self, limit: usize, permits: u64) {
        if let Some(limit) = self.permits.get(limit) {
            limit.taken.fetch_sub(i64::try_from(permits).unwrap_or(i64::MAX), Ordering::Relaxed);
        }
    }
}

impl Board {
    fn permits_ran_out(&self, moment: &Moment, full: &[PolicyName]) {
        for name in full {
            if let Some(limit) = self.permits.iter().find(|limit| limit.name == name.as_str()) {
                limit.refused.count(moment.ten());
            }
        }
    }
}

impl Flow {
    /// A member of an `any` that refuses a request which another one admits did neither.
    fn count(&self, moment: &Moment, is_admitted: bool, status: &Status) {
        if is_admitted && !status.refuses() {
            self.admitted.count(moment.second());
        } else if status.is_violated() {
            self.refused.count(moment.second());
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
    pub(super) now: Instant,
    /// Whole seconds since the start.
    pub(super) running: u64,
}

impl Moment {
    pub(super) fn second(&self) -> u32 {
        u32::try_from(self.running).unwrap_or(u32::MAX).saturating_add(FIRST)
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

/// What came in by another order for a moment counts as nothing.
fn not_negative(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
