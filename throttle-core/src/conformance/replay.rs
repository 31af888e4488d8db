//! Replays a trace on a backend, beside the reference.

use std::collections::{HashMap, HashSet};

use super::Harness;
use super::difference::{Cause, Difference, KEY_IN_TWO_CALLS, WITHOUT_A_POLICY, fields};
use super::reference::Reference;
use super::step::{ClockMove, TraceStep};
use super::subject::{DropPoint, Manner, Subject};
use crate::algorithm::Exception;
use crate::backend::{BackendError, BackendErrorKind, Call, KeyStep, Receipt};
use crate::decision::Decision;
use crate::key::Key;
use crate::set::{PolicySet, PolicyTree};
use crate::time::Timestamp;

/// An instant that no window starts at.
pub(super) const START: Timestamp = Timestamp::from_micros(1_790_000_123_456_789);

/// How far from 1970 the clock of a trace goes that begins within this distance: 71 years. Beyond
/// it, a database that calculates in doubles cannot add the longest waits exactly.
const FAR: i64 = 1 << 51;

/// How far behind its clock a backend may read it, in µs.
const BEHIND: u64 = 100_000;

/// Replays a trace on an empty store, from an instant on. Returns the first difference.
pub(super) fn replay<H: Harness>(
    trees: &[PolicyTree],
    start: Timestamp,
    trace: &[TraceStep],
) -> Result<(), Difference> {
    let harness = H::start();
    harness.set_time(start);
    let subject = |tree: &PolicyTree| Subject::new(&harness, tree.clone());
    let mut subjects: Vec<Subject<'_, H>> = trees.iter().map(subject).collect();
    // A clone of the backend and a set that is prepared again share the store.
    let again: Vec<Subject<'_, H>> = subjects.iter().map(Subject::prepared_again).collect();
    subjects.extend(again);
    let mut replay = Replay {
        harness: &harness,
        subjects,
        reference: Reference::new(),
        set: 0,
        start,
        now: start,
        latest: start,
        wait: 0,
        reset: 0,
        charges: HashMap::new(),
        cause: Cause::default(),
    };
    for (number, step) in trace.iter().enumerate() {
        replay.step(step).map_err(|mut difference| {
            difference.step = number;
            difference.cause = replay.cause;
            difference
        })?;
    }
    Ok(())
}

struct Replay<'h, H: Harness> {
    harness: &'h H,
    subjects: Vec<Subject<'h, H>>,
    reference: Reference,
    /// The set that decides.
    set: usize,
    start: Timestamp,
    now: Timestamp,
    latest: Timestamp,
    /// The last wait of a refusal, in µs.
    wait: u64,
    /// The reset of the last decision, in µs.
    reset: u64,
    /// Open charges, with the set, the backend's receipt and the reference's.
    charges: HashMap<usize, (usize, Receipt, Receipt)>,
    cause: Cause,
}

impl<H: Harness> Replay<'_, H> {
    fn step(&mut self, step: &TraceStep) -> Result<(), Difference> {
        self.reference.look(self.now);
        let outcome = match step {
            TraceStep::Clock(to) => {
                self.move_clock(*to);
                Ok(())
            }
            TraceStep::Set(set) => {
                self.set = *set;
                Ok(())
            }
            TraceStep::Decide {
                charge,
                calls,
                manner,
            } => self.decide(*charge, calls, *manner),
            TraceStep::Settle { charge, actual } => self.settle(*charge, *actual),
            TraceStep::OnKeys { policy, step } => self.run(*policy, step),
            TraceStep::ResetAll { prefix } => {
                self.reference.reset_all(prefix);
                failed(self.subjects[self.set].try_reset_all(prefix))
            }
            TraceStep::Drain { policy, call } => self.drain(*policy, call),
            TraceStep::ReadClock { calls } => self.read_clock(calls),
            TraceStep::DropDecision { .. } | TraceStep::DropSettlement { .. }
                if self.subjects[self.set].set().repeats =>
            {
                Ok(())
            }
            TraceStep::DropDecision { key, dropped } => self.drop_decision(key, *dropped),
            TraceStep::DropSettlement { key, dropped } => self.drop_settlement(key, *dropped),
            TraceStep::Forget => {
                self.harness.forget(self.now);
                self.reference.forget(self.now);
                Ok(())
            }
        };
        self.reference.look(self.now);
        outcome
    }

    fn move_clock(&mut self, to: ClockMove) {
        let now = match to {
            ClockMove::By(micros) => {
                Timestamp::from_micros(self.now.as_micros().saturating_add(micros))
            }
            ClockMove::Wait => self.now.after_micros(self.wait),
            ClockMove::AlmostTheWait => self.now.after_micros(self.wait.saturating_sub(1)),
            ClockMove::Reset => self.now.after_micros(self.reset),
            ClockMove::AlmostTheReset => self.now.after_micros(self.reset.saturating_sub(1)),
        };
        let far = if self.start.as_micros().abs() > FAR {
            i64::MAX
        } else {
            FAR
        };
        let now = Timestamp::from_micros(now.as_micros().clamp(-far, far));
        self.now = now.max(self.reference.floor());
        self.latest = self.latest.max(self.now);
        self.harness.set_time(self.now);
    }

    fn decide(&mut self, charge: usize, calls: &[Call], manner: Manner) -> Result<(), Difference> {
        let subject = &self.subjects[self.set];
        let (found, at) = match manner {
            Manner::Awaited => (subject.try_decide(calls), self.now),
            Manner::Immediate => (subject.try_decide_at_once(calls), self.now),
            Manner::AsOf(micros) => {
                let at = Timestamp::from_micros(self.now.as_micros() + micros);
                let at = at.max(self.reference.floor());
                // A backend that has no clock here decides as of the present instant.
                let counts = subject.now(calls).map_or(self.now, |_| at.min(self.now));
                (subject.try_decide_as_of(calls, at), counts)
            }
        };
        if subject.set().check_keys(calls).is_err() {
            // The next decisions show that nothing was charged.
            let is_error = found.is_err_and(|error| error.is_uncharged());
            return same(KEY_IN_TWO_CALLS, &is_error, &true);
        }
        let found = found.map_err(|error| Difference::error(&error))?;
        let is_known = self.reference.knows(subject.set(), calls);
        let expected = self.reference.decide(subject.set(), at, calls);
        self.cause.is_behind = at < self.latest;
        self.cause.has_several_policies = subject.set().policies().len() > 1;
        if let Err(difference) = compare::<H>(subject.set(), &found, &expected) {
            let unused = Reference::new().decide(subject.set(), at, calls);
            let unused = fields(subject.set(), &unused);
            self.cause.is_as_unused = is_known
                && [&found, &expected]
                    .iter()
                    .any(|answer| fields(subject.set(), answer) == unused);
            return Err(difference);
        }
        let refused = expected.retry_after().filter(|wait| !wait.is_zero());
        self.wait = refused.map_or(self.wait, |wait| wait.as_micros() as u64);
        self.reset = expected.reset_after().as_micros() as u64;
        let (theirs, ours) = (Receipt::of(&found, calls), Receipt::of(&expected, calls));
        if let (Some(theirs), Some(ours)) = (theirs, ours) {
            self.charges.insert(charge, (self.set, theirs, ours));
        } else {
            self.cause.has_idle_step = true;
        }
        Ok(())
    }

    fn settle(&mut self, charge: usize, actual: u64) -> Result<(), Difference> {
        let Some((set, theirs, ours)) = self.charges.remove(&charge) else {
            return Ok(());
        };
        let subject = &self.subjects[set];
        self.reference
            .settle(subject.set(), self.now, &ours.actual(actual));
        failed(subject.try_settle(theirs.actual(actual)))
    }

    fn run(&mut self, policy: usize, step: &KeyStep) -> Result<(), Difference> {
        let subject = &self.subjects[self.set];
        let mut step = step.clone();
        if let KeyStep::Except(_, Some(exception)) = &mut step {
            let micros = exception.until.as_micros().cast_unsigned();
            exception.until = self.now.after_micros(micros);
        }
        let found = subject.try_run(policy, step.clone());
        if policy == subject.set().policies().len() {
            return same(WITHOUT_A_POLICY, &found.is_err(), &true);
        }
        let Some(found) = self.is_done(&step, found)? else {
            return Ok(());
        };
        let policy = &subject.set().policies()[policy];
        let expected = self.reference.run(policy, &step, self.now);
        let expected: Vec<Vec<u8>> = expected.iter().map(Exception::to_wire).collect();
        let most = match step {
            KeyStep::Exceptions { most } => most,
            _ => usize::MAX,
        };
        let number = expected.len().min(most);
        same("the number of exceptions", &found.len(), &number)?;
        for excepted in &found {
            if !expected.contains(&excepted.exception.to_wire()) {
                return same("an exception", &Some(excepted), &None);
            }
        }
        let keys: HashSet<&str> = found.iter().map(|excepted| excepted.key.as_str()).collect();
        same("the number of keys listed", &keys.len(), &number)
    }

    fn drain(&mut self, policy: usize, call: &Call) -> Result<(), Difference> {
        let subject = &self.subjects[self.set];
        let before = self.reference.clone();
        let is_possible = self.reference.drain(subject.set(), self.now, policy, call);
        let found = subject.try_drain(policy, call);
        match found {
            Err(error) if error.kind() == BackendErrorKind::Unsupported => {
                self.reference = before;
                same("`has_exceptions`", &subject.has_exceptions(), &false)
            }
            Err(_) if !is_possible => Ok(()),
            found => failed(found).and(same("a drain of a banned key", &true, &is_possible)),
        }
    }

    /// Returns nothing if a backend without exceptions says so, or one whose clock is behind says
    /// that it does not know enough.
    fn is_done<T>(
        &self,
        step: &KeyStep,
        done: Result<T, BackendError>,
    ) -> Result<Option<T>, Difference> {
        let is_run = matches!(step, KeyStep::Reset(_)) || self.subjects[self.set].has_exceptions();
        match done {
            Ok(done) if is_run => return Ok(Some(done)),
            Ok(_) => same("a step without `has_exceptions`", &"done", &"refused"),
            Err(error) if !is_run => same("kind", &error.kind(), &BackendErrorKind::Unsupported),
            Err(error) if self.now < self.latest && error.is_uncharged() => Ok(()),
            Err(error) => Err(Difference::error(&error)),
        }?;
        Ok(None)
    }

    fn read_clock(&mut self, calls: &[Call]) -> Result<(), Difference> {
        let subject = &self.subjects[self.set];
        let peeks: Vec<Call> = calls.iter().map(|call| call.clone().peeking()).collect();
        if subject.set().check_keys(calls).is_err() {
            return Ok(());
        }
        // A backend may know its clock from its last answer alone.
        failed(subject.try_decide(&peeks).map(drop))?;
        let earliest = self.now.as_micros() - BEHIND.cast_signed();
        match subject.now(calls) {
            Some(found) if found > self.latest || found.as_micros() < earliest => {
                same("`now`", &found, &self.now)
            }
            _ => Ok(()),
        }
    }

    /// A request that was given up is charged once or not at all.
    fn drop_decision(&mut self, key: &Key, dropped: DropPoint) -> Result<(), Difference> {
        let subject = &self.subjects[self.set];
        let calls = vec![Call::from(key.clone()); subject.set().policies().len()];
        subject.drop_decision(&calls, dropped);
        let mut charged = Reference::new();
        let _ = charged.decide(subject.set(), self.now, &calls);
        self.is_either(&calls, [Reference::new(), charged])
    }

    /// A settlement that was given up is made once or not at all.
    fn drop_settlement(&mut self, key: &Key, dropped: DropPoint) -> Result<(), Difference> {
        let subject = &self.subjects[self.set];
        let calls = vec![Call::from(key.clone()); subject.set().policies().len()];
        let found = subject.try_decide(&calls);
        let found = found.map_err(|error| Difference::error(&error))?;
        let mut charged = Reference::new();
        let expected = charged.decide(subject.set(), self.now, &calls);
        compare::<H>(subject.set(), &found, &expected)?;
        let receipts = (Receipt::of(&found, &calls), Receipt::of(&expected, &calls));
        let (Some(theirs), Some(ours)) = receipts else {
            return Ok(());
        };
        subject.drop_settlement(theirs.actual(0), dropped);
        let mut settled = charged.clone();
        settled.settle(subject.set(), self.now, &ours.actual(0));
        self.is_either(&calls, [charged, settled])
    }

    fn is_either(&self, calls: &[Call], states: [Reference; 2]) -> Result<(), Difference> {
        let subject = &self.subjects[self.set];
        let peeks: Vec<Call> = calls.iter().map(|call| call.clone().costing(0)).collect();
        let found = subject.try_decide(&peeks);
        let found = found.map_err(|error| Difference::error(&error))?;
        if !H::ATOMIC_SETS && calls.len() > 1 {
            return Ok(());
        }
        let [one, other] = states.map(|mut state| {
            let expected = state.decide(subject.set(), self.now, &peeks);
            compare::<H>(subject.set(), &found, &expected)
        });
        one.or(other)
    }
}

fn compare<H: Harness>(
    set: &PolicySet,
    found: &Decision,
    expected: &Decision,
) -> Result<(), Difference> {
    let (found, expected) = (fields(set, found), fields(set, expected));
    let refused = found[0] == expected[0] && expected[0].is_false();
    if H::KEEPS_REFUSALS && set.policies().len() > 1 && refused {
        return Ok(());
    }
    Difference::between(&found, &expected).map_or(Ok(()), Err)
}

fn failed(step: Result<(), BackendError>) -> Result<(), Difference> {
    step.map_err(|error| Difference::error(&error))
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    found: &T,
    expected: &T,
) -> Result<(), Difference> {
    if found == expected {
        return Ok(());
    }
    let text = format!("{what} is {found:?}, and must be {expected:?}");
    Err(Difference::new(what, text))
}
