use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use throttle_core::Decision;

use super::buckets::Buckets;
use super::changes::Changes;
use crate::event::{Event, OUTCOMES};
use crate::lock::{lock, try_lock};
use crate::observe::decider::Decider;
use crate::observe::per_thread::counts::{Counts, ROW, Rows, USUAL};
use crate::observe::per_thread::report::Reports;
use crate::observe::per_thread::schedule::{Schedule, next_second};
use crate::observe::per_thread::turns::Turns;

/// Counts requests by the second.
///
/// Requests add to counters of their threads, which run on for ever. When a second has ended, what the counters have
/// come to more is counted as its own: by the first request that sees it, or by a task at its end. So most requests
/// need not know the time.
pub(super) struct Flows {
    pub(super) counts: Counts,
    pub(super) schedule: Schedule,
    /// The second to which counters add now.
    second: AtomicU32,
    counted: Mutex<Counted>,
    pub(super) requests: Flow,
    pub(super) policies: Box<[PolicyFlow]>,
    pub(super) changes: Changes,
    /// Decisions, by the place of the decider.
    pub(super) deciders: [Recent; Decider::ALL.len()],
}

/// What each counter had come to.
struct Counted {
    usual: [u64; USUAL],
    rows: Box<[[u64; ROW]]>,
}

/// Requests of each of the last two minutes' seconds.
#[derive(Default)]
pub(super) struct Flow {
    pub(super) admitted: Seconds,
    pub(super) refused: Seconds,
}

#[derive(Default)]
pub(super) struct PolicyFlow {
    pub(super) flow: Flow,
    /// Requests of which the policy was the binding one.
    pub(super) bound_admitted: Recent,
    pub(super) bound_refused: Recent,
}

/// The running second, 120 before it, and some that make indexing cheap.
pub(super) type Seconds = Buckets<128>;

/// By ten seconds: the running ones, and twelve times ten before them.
pub(super) type Recent = Buckets<16>;

/// The number of the first second: two minutes before it have numbers too.
const FIRST: u32 = 1_200;

pub(super) const TEN: u32 = 10;

/// Where the counters are: a row for all requests, by their outcomes and then their deciders, and one for each policy.
mod place {
    use crate::event::OUTCOMES;

    pub(super) const REQUESTS: usize = 0;
    pub(super) const POLICIES: usize = 1;

    pub(super) const DECIDERS: usize = OUTCOMES.len();

    /// The outcomes of requests that are passed on.
    pub(super) const PASSED_ON: [usize; 2] = [0, 4];

    /// Of a policy, and of the usual requests.
    pub(super) const ADMITTED: usize = 0;
    pub(super) const REFUSED: usize = 1;
    /// Of a policy.
    pub(super) const BOUND_ADMITTED: usize = 2;
    pub(super) const BOUND_REFUSED: usize = 3;
}

impl Flows {
    pub(super) fn new(policies: usize) -> Self {
        let rows = place::POLICIES + policies;
        Self {
            counts: Counts::new(rows),
            schedule: Schedule::new(next_second),
            second: AtomicU32::new(second(0)),
            counted: Mutex::new(Counted { usual: [0; USUAL], rows: vec![[0; ROW]; rows].into() }),
            requests: Flow::default(),
            policies: (0..policies).map(|_| PolicyFlow::default()).collect(),
            changes: Changes::default(),
            deciders: Default::default(),
        }
    }

    /// Counts a request that the only policy of the layer has admitted or refused, as the store decided.
    #[inline(always)]
    pub(super) fn count_usual<const OWN: bool>(rows: Rows<'_, OWN>, is_refused: bool) {
        rows.add_usual(if is_refused { place::REFUSED } else { place::ADMITTED }, 1);
    }

    /// Counts any request.
    pub(super) fn count<const OWN: bool>(&self, rows: Rows<'_, OWN>, event: &Event<'_>) {
        rows.add(place::REQUESTS, event.outcome.place(), 1);
        if let Some(decider) = Decider::of(event) {
            rows.add(place::REQUESTS, place::DECIDERS + decider as usize, 1);
        }
        if let Some(decision) = event.decision {
            self.count_decision(rows, decision);
        }
    }

    fn count_decision<const OWN: bool>(&self, rows: Rows<'_, OWN>, decision: &Decision) {
        let is_admitted = decision.is_admitted();
        let statuses = decision.statuses().iter().take(self.policies.len()).enumerate();
        for (policy, status) in statuses.filter(|(_, status)| status.applies()) {
            // A member of an `any` that refuses a request which another one admits did neither.
            if is_admitted && !status.refuses() {
                rows.add(place::POLICIES + policy, place::ADMITTED, 1);
            } else if status.is_violated() {
                rows.add(place::POLICIES + policy, place::REFUSED, 1);
            }
        }
        if let Some(binding) = decision.binding().filter(|policy| *policy < self.policies.len()) {
            let bound = if is_admitted { place::BOUND_ADMITTED } else { place::BOUND_REFUSED };
            rows.add(place::POLICIES + binding, bound, 1);
        }
    }

    /// Goes on to the present second, if the last one has ended.
    pub(super) fn pass(&self, second: u32) {
        if second > self.second.load(Ordering::Relaxed)
            // Another thread may be doing the same.
            && let Some(mut counted) = try_lock(&self.counted)
        {
            self.turn(&mut counted, second);
        }
    }

    /// Brings all that was counted into the buckets, for a reader.
    pub(super) fn settle(&self, second: u32) {
        self.turn(&mut lock(&self.counted), second);
    }

    /// Counts what the counters have come to more as requests of the second to which they have added.
    fn turn(&self, counted: &mut Counted, to: u32) {
        let second = self.second.load(Ordering::Relaxed);
        let ten = second / TEN;
        let [admitted, refused, ..] = more(&mut counted.usual, self.counts.usual());
        let [requests, policies @ ..] = &mut *counted.rows else { return };
        let requests = more(requests, self.counts.sums(place::REQUESTS));
        let all: u64 = requests[..OUTCOMES.len()].iter().sum();
        let passed_on: u64 = place::PASSED_ON.map(|outcome| requests[outcome]).iter().sum();
        self.requests.admitted.add(second, admitted + passed_on);
        self.requests.refused.add(second, refused + all - passed_on);
        let usual = |is_usual: bool, count| if is_usual { count } else { 0 };
        for (place, decisions) in self.deciders.iter().enumerate() {
            let by_store = place == Decider::Store as usize;
            decisions.add(ten, requests[place::DECIDERS + place] + usual(by_store, admitted + refused));
        }
        if admitted + refused + requests[place::DECIDERS + Decider::Store as usize] > 0 {
            self.changes.note(second, Decider::Store, None);
        }
        for (place, (policy, counted)) in self.policies.iter().zip(policies).enumerate() {
            let more = more(counted, self.counts.sums(place::POLICIES + place));
            let [admitted, refused] = [admitted, refused].map(|count| usual(place == 0, count));
            policy.flow.admitted.add(second, more[place::ADMITTED] + admitted);
            policy.flow.refused.add(second, more[place::REFUSED] + refused);
            policy.bound_admitted.add(ten, more[place::BOUND_ADMITTED] + admitted);
            policy.bound_refused.add(ten, more[place::BOUND_REFUSED] + refused);
        }
        self.second.store(to.max(second), Ordering::Relaxed);
    }

    /// How many requests had each of the [`OUTCOMES`], since the start.
    pub(super) fn outcomes(&self) -> [u64; OUTCOMES.len()] {
        let (mut outcomes, counts) = ([0; OUTCOMES.len()], self.counts.sums(place::REQUESTS));
        outcomes.copy_from_slice(&counts[..OUTCOMES.len()]);
        let [admitted, refused, ..] = self.counts.usual();
        outcomes[0] += admitted;
        outcomes[1] += refused;
        outcomes
    }
}

/// By how much counters have risen.
fn more<const N: usize>(counted: &mut [u64; N], sums: [u64; N]) -> [u64; N] {
    let before = mem::replace(counted, sums);
    let mut more = sums;
    more.iter_mut().zip(before).for_each(|(sum, before)| *sum = sum.wrapping_sub(before));
    more
}

/// The number of a second since the start.
pub(super) fn second(running: u64) -> u32 {
    u32::try_from(running).unwrap_or(u32::MAX).saturating_add(FIRST)
}

impl Reports for Flows {
    fn turns(&self, place: usize) -> &Turns {
        self.counts.turns_of(place)
    }

    fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    fn report(&self) {
        self.pass(second(self.schedule.now() / 1_000_000));
    }
}

#[cfg(test)]
impl Flows {
    pub(super) fn hold_lock(&self) -> impl Sized + use<'_> {
        lock(&self.counted)
    }
}
