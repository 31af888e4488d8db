//! The fast path of a set whose keys have slots that the same parameters wrote.
//!
//! The tables of the keys are held. Every policy with a small state is asked as if it was charged alone, and what it
//! would write is kept until the set has decided. Large states are asked without a charge, and their shards are locked
//! first. A key without a slot counts as unused. If it is charged, the request is decided anew on the [general
//! way](Store::decide_located), which gives the key a slot.

use smallvec::SmallVec;

use super::policies::Parameters;
use super::request::{Request, Run};
use super::shard::Rest;
use super::slot::{Label, Slot};
use super::store::{MemorySet, Store};
use super::sync::MutexGuard;
use super::table::ChangingTable;
use crate::algorithm::{Repr, Stored, Transition, Visitor, Words, ask, decide, take};
use crate::backend::Call;
use crate::decision::{Decision, Status};
use crate::set;
use crate::time::Timestamp;

/// A policy that was asked.
struct Asked<'a> {
    place: usize,
    parameters: &'a Parameters,
    /// `None` for a key without one.
    slot: Option<&'a Slot>,
    /// What a small state is after the charge, or where a large one is.
    words: Words,
    /// Which of the request's shards has a large state.
    shard: usize,
}

type Rests<'a> = SmallVec<[MutexGuard<'a, Rest>; 1]>;

impl Store {
    /// Decides any set on any keys, in place, because a decision is large to be moved.
    #[inline(never)]
    pub(super) fn decide_set(&self, set: &MemorySet, calls: &[Call], now: Timestamp, decision: &mut Decision) {
        let mut request = Request::new(set, calls, now);
        request.locate(self);
        if !request.decide_known(decision) {
            *decision = self.decide_located(&request);
        } else if set.policies.len() == 1 {
            *decision = std::mem::replace(decision, Decision::new()).in_one_form();
        }
    }
}

impl<'a> Request<'a> {
    /// Decides if every key is known, or unused and not charged. Otherwise returns `false`, and has charged nothing.
    #[inline(always)]
    fn decide_known(&self, decision: &mut Decision) -> bool {
        let mut rests = Rests::new();
        if self.has_large() {
            if self.set.audits_delays {
                return false;
            }
            rests.extend(self.shards.iter().map(|shard| shard.lock_rest()));
        }
        let mut held: SmallVec<[ChangingTable<'_>; 8]> = SmallVec::new();
        held.extend(self.shards.iter().map(|shard| shard.table.change()));
        let mut asked: SmallVec<[Asked<'_>; 8]> = SmallVec::new();
        // Room is made once, so that many policies are no dearer each than a few.
        if self.calls.len() > asked.inline_size() {
            asked = SmallVec::from_vec(Vec::with_capacity(self.calls.len()));
        }
        let (summary, statuses) = decision.skip(self.set.policies.len());
        for run in &self.runs {
            for place in run.places.clone() {
                let status = &mut statuses[place];
                if self.calls[place].key.is_none() {
                    continue;
                }
                if !self.ask(place, run, &mut rests, status, &mut asked) {
                    return false;
                }
                summary.ask(place, status);
            }
        }
        set::conclude(&self.set.set, summary, statuses);
        if asked.iter().any(|part| part.slot.is_none() && statuses[part.place].taken.cost > 0) {
            return false;
        }
        for part in &asked {
            let status = &mut statuses[part.place];
            if part.parameters.is_plain {
                self.answer(part, status);
            } else {
                summary.delay = summary.delay.max(self.step(part, None, &mut rests, status));
            }
            summary.answer(part.place, status);
        }
        set::sum_up(&self.set.set, summary, statuses);
        true
    }

    /// Asks one policy. Returns `false` if its state is not known.
    #[inline(always)]
    fn ask(
        &self,
        place: usize,
        run: &Run<'a>,
        rests: &mut Rests<'_>,
        status: &mut Status,
        asked: &mut SmallVec<[Asked<'a>; 8]>,
    ) -> bool {
        let (call, now) = (&self.calls[place], self.now);
        let parameters = self.set.policies[place].parameters(call.tier());
        if !call.is_usual() {
            return false;
        }
        let slot = run.shard.table.find_held(Label::new(run.hash, parameters.policy));
        let mut words = if let Some(slot) = slot {
            let Some(words) = slot.words_of(parameters.writer) else { return false };
            words
        } else if run.shard.absent.is_unused(now) {
            unused(parameters)
        } else {
            return false;
        };
        status.tier = parameters.tier;
        if parameters.is_plain {
            words = parameters.algorithm.accept(Step { words, cost: call.cost, now, status });
            asked.push(Asked { place, parameters, slot, words, shard: 0 });
            return true;
        }
        let part = Asked { place, parameters, slot, words, shard: self.shard(run) };
        if parameters.unnumbered.is_none() {
            self.step(&part, Some(call.cost), rests, status);
            asked.push(part);
        }
        parameters.unnumbered.is_none()
    }

    /// Charges one policy what the set has left to be charged to a small state.
    #[inline(always)]
    fn answer(&self, part: &Asked<'_>, status: &mut Status) {
        match part.slot {
            Some(slot) if status.taken.cost > 0 => slot.set_words(part.words),
            _ if status.wait == 0 && self.calls[part.place].cost > 0 => self.withdraw(part, status),
            _ => {}
        }
    }

    /// Reports where a key stands that was asked as if it was charged, and was not.
    #[inline(never)]
    fn withdraw(&self, part: &Asked<'_>, status: &mut Status) {
        let words = part.slot.and_then(|slot| slot.words_of(part.parameters.writer));
        let words = words.unwrap_or_else(|| unused(part.parameters));
        part.parameters.algorithm.accept(Step { words, cost: 0, now: self.now, status });
    }

    /// Asks or charges a large state.
    #[inline(never)]
    fn step(&self, part: &Asked<'_>, asked: Option<u64>, rests: &mut Rests<'_>, status: &mut Status) -> u64 {
        let rest = rests.get_mut(part.shard).filter(|_| part.slot.is_some());
        let large = rest.and_then(|rest| rest.large_state(part.words));
        part.parameters.algorithm.accept(LargeStep { large, asked, now: self.now, status })
    }
}

/// The small state of an unused key.
#[inline(never)]
fn unused(parameters: &Parameters) -> Words {
    match parameters.algorithm.fresh_repr() {
        Repr::Words(words) => words,
        _ => Words { instant: 0, amount: 0 },
    }
}

/// One policy's step on a state that fits its slot. Returns the state after its charge.
struct Step<'a> {
    words: Words,
    cost: u64,
    now: Timestamp,
    status: &'a mut Status,
}

impl Visitor for Step<'_> {
    type Output = Words;

    #[inline(always)]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Words {
        let Self { words, cost, now, status } = self;
        let Some(mut state) = A::State::from_words(words) else { return words };
        let outcome = decide(algorithm, &mut state, now, cost);
        status.report(outcome, algorithm.standing(&state, now));
        state.words().unwrap_or(words)
    }
}

/// One policy's step on a large state, or on an unused one: asks for some units, or takes those that the status has
/// been left to be charged and reports. Returns the µs to wait before going on.
struct LargeStep<'a> {
    large: Option<&'a mut Repr>,
    asked: Option<u64>,
    now: Timestamp,
    status: &'a mut Status,
}

impl Visitor for LargeStep<'_> {
    type Output = u64;

    #[inline]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> u64 {
        let Self { large, asked, now, status } = self;
        let mut step = |state: &mut A::State| {
            let mut delay = 0;
            if let Some(cost) = asked {
                status.ask(ask(algorithm, state, now, cost), cost);
            } else {
                if status.taken.cost > 0 {
                    let outcome = take(algorithm, state, now, status.taken.cost);
                    (status.taken, delay) = (outcome.taken, outcome.delay);
                }
                status.standing = algorithm.standing(state, now);
            }
            delay
        };
        match large {
            Some(large) => A::State::change(large, step).unwrap_or_default(),
            None => step(&mut algorithm.fresh()),
        }
    }
}
