//! Counts a request that was passed on or refused, for the page.
//!
//! Most requests are usual ones between two turns to read the clock. They are counted by a step that calls nothing.

use throttle_core::backend::Call;
use throttle_core::{DecidedBy, Decision, Key, Policy, Status};

use super::board::Board;
use super::flows::Flows;
use crate::event::{Event, Outcome};
use crate::observe::decider::Decider;
use crate::observe::per_thread::counts::Rows;
use crate::observe::per_thread::report::{begin_report, report_if_overdue};
use crate::observe::per_thread::turns::{NONE, PATIENT};

impl Board {
    #[inline(always)]
    pub(super) fn count_judged(&self, event: &Event<'_>, calls: &[Call]) {
        let Some(rows) = self.flows.counts.own() else { return self.judged_elsewhere(event, calls) };
        if rows.turns().due() == NONE || rows.is_turn() {
            return self.judged_in_turn(event, calls);
        }
        let Some(status) = usual_status(event) else { return self.judged_between_turns(event, calls) };
        let tightest = &self.tightest;
        let Some(is_tight) = tightest.is_tight_of_only(status.tier(), status.remaining()) else {
            return self.judged_between_turns(event, calls);
        };
        Flows::count_usual(rows, status.is_violated());
        if status.is_violated() {
            if !self.tracker.leaves_out() {
                self.note_usual_refused(event, calls);
            }
        } else if is_tight {
            self.note_tight(event, calls, 0);
        }
    }

    /// Counts a request of a thread that has no place of its own, or none yet.
    #[cold]
    fn judged_elsewhere(&self, event: &Event<'_>, calls: &[Call]) {
        match self.flows.counts.take_own() {
            Some(rows) => self.take_turn(rows, event, calls),
            None => self.take_turn(self.flows.counts.shared(), event, calls),
        }
    }

    #[inline(never)]
    fn judged_in_turn(&self, event: &Event<'_>, calls: &[Call]) {
        if let Some(rows) = self.flows.counts.own() {
            self.take_turn(rows, event, calls);
        }
    }

    /// Counts a request that reads the clock.
    fn take_turn<const OWN: bool>(&self, rows: Rows<'_, OWN>, event: &Event<'_>, calls: &[Call]) {
        let moment = self.moment();
        let at = moment.micros;
        rows.turns().taken(at, &PATIENT);
        self.flows.pass(moment.second());
        self.tracker.pass(at + self.tracker_ahead, moment.now);
        self.tightest.clear(at);
        if rows.turns().due() == NONE {
            begin_report(&self.flows);
        } else {
            report_if_overdue(&self.flows, rows.turns(), at);
        }
        let is_sparse = rows.turns().are_sparse();
        self.count(rows, event);
        each_key(event, calls, |place, key, status| {
            let (tag, left) = (self.tracker.tags().of(place, key), status.remaining());
            if event.is_refused_by(place)
                && let Some(policy) = event.policies.get(place)
                && !self.tracker.leaves_out()
            {
                self.tracker.count_in_turn(place, policy, key, tag);
            }
            if let Some(of) = self.units_of(event, place, status)
                && self.tightest.is_wanted(of, tag, left)
                && !(is_sparse && self.tightest.is_noted(tag, left, at))
            {
                self.tightest.note((place, key, tag), status, of, at);
            }
        });
    }

    /// Counts a request that does not read the clock, and is none of the usual ones.
    #[inline(never)]
    fn judged_between_turns(&self, event: &Event<'_>, calls: &[Call]) {
        let Some(rows) = self.flows.counts.own() else { return };
        self.count(rows, event);
        each_key(event, calls, |place, _, status| {
            if event.is_refused_by(place) {
                if !self.tracker.leaves_out() {
                    self.note_refused(event, calls, place);
                }
            } else if self.is_tight(event, place, status) {
                self.note_tight(event, calls, place);
            }
        });
    }

    /// Notes that the only policy of the layer has refused a request between two turns.
    #[inline(never)]
    fn note_usual_refused(&self, event: &Event<'_>, calls: &[Call]) {
        let key = calls.first().and_then(Call::key);
        let tag = key.and_then(|key| self.tracker.tags().of_short(0, key));
        if !tag.is_some_and(|tag| self.tracker.count_repeated(tag)) {
            self.note_refused(event, calls, 0);
        }
    }

    /// Notes that the policy at a place has refused a request between two turns, if it is not left out. A refusal leaves the key as it was, so
    /// what is left for a key that was refused before is noted already.
    #[inline(never)]
    fn note_refused(&self, event: &Event<'_>, calls: &[Call], place: usize) {
        let Some(key) = calls.get(place).and_then(Call::key) else { return };
        let tag = self.tracker.tags().of(place, key);
        if !self.tracker.count_repeated(tag)
            && let Some(policy) = event.policies.get(place)
        {
            self.tracker.count_new(place, policy, key, tag);
            if let Some(status) = event.decision.and_then(|decision| decision.statuses().get(place))
                && self.is_tight(event, place, status)
            {
                self.note_tight(event, calls, place);
            }
        }
    }

    /// Notes the key of a request between two turns, unless it was noted a moment ago.
    #[inline(never)]
    fn note_tight(&self, event: &Event<'_>, calls: &[Call], place: usize) {
        if let Some(status) = event.decision.and_then(|decision| decision.statuses().get(place))
            && let Some(key) = calls.get(place).and_then(Call::key)
            && let Some(rows) = self.flows.counts.own()
        {
            let (tag, left) = (self.tracker.tags().of(place, key), status.remaining());
            if !self.tightest.is_noted(tag, left, rows.turns().last())
                && let Some(of) = self.units_of(event, place, status)
            {
                self.tightest.note((place, key, tag), status, of, self.moment().micros);
            }
        }
    }

    fn is_tight(&self, event: &Event<'_>, place: usize, status: &Status) -> bool {
        match own_units(event, place, status) {
            None => self.tightest.is_tight(place, status.tier(), status.remaining()),
            Some(of) => self.tightest.is_tight_of(of, status.remaining()),
        }
    }

    /// The units that an unused key with the limit of this one has.
    fn units_of(&self, event: &Event<'_>, place: usize, status: &Status) -> Option<u64> {
        own_units(event, place, status).or_else(|| self.tightest.units_of(place, status.tier()))
    }

    fn count<const OWN: bool>(&self, rows: Rows<'_, OWN>, event: &Event<'_>) {
        if let Some(status) = usual_status(event)
            && self.policies.len() == 1
        {
            return Flows::count_usual(rows, status.is_violated());
        }
        self.flows.count(rows, event);
        if let (Some(why), Some(decider)) = (event.degraded(), Decider::of(event)) {
            let second = self.moment().second();
            self.flows.pass(second);
            self.flows.changes.note(second, decider, Some(why));
        }
        if let Outcome::NoPermit(full) = event.outcome {
            self.permits_ran_out(full);
        }
    }
}

/// The status of a usual request of a layer with one policy: the policy has admitted or refused it, as the store
/// decided.
#[inline(always)]
fn usual_status<'a>(event: &Event<'a>) -> Option<&'a Status> {
    let [status] = event.decision?.statuses() else { return None };
    let is_usual = status.decided_by() == DecidedBy::Store && status.applies();
    debug_assert!(!is_usual || matches!(event.outcome, Outcome::Admitted | Outcome::Refused));
    is_usual.then_some(status)
}

/// The units that parameters of a key's own hold; `None` for a key in a tier.
fn own_units(event: &Event<'_>, place: usize, status: &Status) -> Option<u64> {
    let own = (status.tier() == Policy::OWN).then_some(event.policies)?;
    own.get(place).map(|policy| policy.algorithm().capacity())
}

/// Calls `note` with each policy that has decided about a key, by its place.
#[inline(always)]
fn each_key(event: &Event<'_>, calls: &[Call], note: impl Fn(usize, &Key, &Status)) {
    let statuses = event.decision.map_or(&[][..], Decision::statuses);
    for (place, (status, call)) in statuses.iter().zip(calls).enumerate() {
        if status.applies()
            && let Some(key) = call.key()
        {
            note(place, key, status);
        }
    }
}
