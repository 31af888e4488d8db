//! The fast path of a set: of keys with slots, and of new ones.
//!
//! The tables of the keys are held. Every policy with a small state is asked as if it was charged alone, and what it
//! would write is kept until the set has decided. Large states are asked without a charge, and their shards are locked
//! first. A small state that other parameters wrote is read by a [`Cell`].
//!
//! A key without a slot counts as unused. If it is charged it gets a slot, after all known states are written, because
//! that moves slots. It takes locks that are free. A request that would have to wait for one, or that meets a nearly full
//! store, is decided anew on the [general way](Store::decide_located).

use smallvec::SmallVec;

use super::policies::Parameters;
use super::request::{Request, Run};
use super::shard::{LockedShard, Rest};
use super::slot::{Content, Label, Slot};
use super::store::{MemorySet, Store};
use super::sync::MutexGuard;
use super::table::ChangingTable;
use crate::algorithm::{Cell, Repr, Stored, Transition, Visitor, Words, ask, decide, take};
use crate::backend::Call;
use crate::decision::{Decision, Status, Summary};
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
    run: &'a Run<'a>,
}

impl Asked<'_> {
    /// Whether the key gets a slot.
    fn is_new(&self, statuses: &[Status]) -> bool {
        self.slot.is_none() && statuses[self.place].taken.cost > 0
    }
}

type Rests<'a> = SmallVec<[MutexGuard<'a, Rest>; 1]>;

/// What a request has found so far.
struct Found<'a> {
    /// Of each of its shards, if one may have a large state.
    rests: Rests<'a>,
    asked: SmallVec<[Asked<'a>; 8]>,
    /// Whether a key has no slot.
    misses: bool,
}

impl Store {
    /// Decides any set on any keys, in place, because a decision is large to be moved.
    #[inline(never)]
    pub(super) fn decide_set(&self, set: &MemorySet, calls: &[Call], now: Timestamp, decision: &mut Decision) {
        let mut request = Request::new(self, set, calls, now);
        request.locate();
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
        let mut found = Found { rests: SmallVec::new(), asked: SmallVec::new(), misses: false };
        if self.has_large() {
            if self.set.audits_delays {
                return false;
            }
            found.rests.extend(self.shards.iter().map(|shard| shard.lock_rest()));
        }
        let mut held: SmallVec<[ChangingTable<'_>; 8]> = SmallVec::new();
        held.extend(self.shards.iter().map(|shard| shard.table.change()));
        // Room is made once, so that many policies are no dearer each than a few.
        if self.calls.len() > found.asked.inline_size() {
            found.asked = SmallVec::from_vec(Vec::with_capacity(self.calls.len()));
        }
        let (summary, statuses) = decision.skip(self.set.policies.len());
        for run in &self.runs {
            for place in run.places.clone() {
                let status = &mut statuses[place];
                if self.calls[place].key.is_none() {
                    continue;
                }
                if !self.ask(place, run, status, &mut found) {
                    return false;
                }
                summary.ask(place, status);
            }
        }
        set::conclude(&self.set.set, summary, statuses);
        if found.misses && found.asked.iter().any(|part| part.is_new(statuses)) {
            return self.answer_new(&mut found, &mut held, summary, statuses);
        }
        self.answer_all(&mut found, summary, statuses);
        true
    }

    /// Asks one policy. Returns `false` if its state is not known.
    #[inline(always)]
    fn ask<'b>(&'b self, place: usize, run: &'b Run<'a>, status: &mut Status, found: &mut Found<'b>) -> bool {
        let (call, now) = (&self.calls[place], self.now);
        let parameters = self.set.policies[place].parameters(call.tier());
        if !call.is_usual() {
            return false;
        }
        let slot = run.shard.table.find_held(Label::new(run.hash, parameters.policy));
        status.tier = parameters.tier;
        if let Some(known) = slot
            && let Some(words) = known.words_of(parameters.writer)
        {
            let mut part = Asked { place, parameters, slot, words, run };
            if parameters.is_plain {
                part.words = parameters.algorithm.accept(Step { words, cost: call.cost, now, status });
            } else if parameters.unnumbered.is_none() {
                self.step(&mut part, Some(call.cost), &mut found.rests, status);
            } else {
                return false;
            }
            found.asked.push(part);
            return true;
        }
        self.ask_unusual(place, run, slot, status, found)
    }

    /// The same for a key without a slot, or with a state that other parameters wrote.
    #[inline(never)]
    fn ask_unusual<'b>(
        &'b self,
        place: usize,
        run: &'b Run<'a>,
        slot: Option<&'b Slot>,
        status: &mut Status,
        found: &mut Found<'b>,
    ) -> bool {
        let (Call { cost, .. }, now) = (&self.calls[place], self.now);
        let parameters = self.set.policies[place].parameters(self.calls[place].tier());
        let mut part = Asked { place, parameters, slot, words: parameters.algorithm.fresh_words(), run };
        if let Some(slot) = slot {
            let Some(words) = self.ask_of_others(parameters, slot, *cost, status) else { return false };
            part.words = words;
        } else if parameters.unnumbered.is_some() || !run.shard.absent.is_unused(now) {
            return false;
        } else if parameters.is_plain {
            part.words = parameters.algorithm.accept(Step { words: part.words, cost: *cost, now, status });
        } else {
            self.step(&mut part, Some(*cost), &mut found.rests, status);
        }
        found.misses |= slot.is_none();
        found.asked.push(part);
        true
    }

    /// Asks a state that other parameters wrote. Returns it after the charge; `None` if one of both does not fit a slot.
    #[inline(never)]
    fn ask_of_others(&self, parameters: &Parameters, slot: &Slot, cost: u64, status: &mut Status) -> Option<Words> {
        let content = slot.content();
        let writer = content.algorithm(&self.store.shared.policies);
        let writer = writer.filter(|writer| writer.is_small() && parameters.is_plain)?;
        let mut cell = Cell::new(&parameters.algorithm, writer, Repr::Words(content.words()), self.now);
        status.ask(cell.wait(cost), cost);
        if status.taken.cost > 0 {
            (_, status.taken) = cell.take(cost);
        }
        status.standing = cell.standing();
        if let Repr::Words(words) = cell.into_repr() { Some(words) } else { None }
    }

    /// Charges every policy what the set has left to be charged.
    #[inline(always)]
    fn answer_all(&self, found: &mut Found<'_>, summary: &mut Summary, statuses: &mut [Status]) {
        for part in &mut found.asked {
            let status = &mut statuses[part.place];
            match part.slot {
                _ if !part.parameters.is_plain => {
                    summary.delay = summary.delay.max(self.step(part, None, &mut found.rests, status));
                }
                Some(slot) if status.taken.cost > 0 => slot.set(part.parameters.writer, part.words),
                _ if (status.taken.cost | status.wait) == 0 && self.calls[part.place].cost > 0 => {
                    self.withdraw(part, status);
                }
                _ => {}
            }
            summary.answer(part.place, status);
        }
        set::sum_up(&self.set.set, summary, statuses);
    }

    /// The same where keys get slots. Returns `false`, and charges nothing, if that takes more than to make a table grow:
    /// to wait for a lock, or to share a bucket.
    #[inline(never)]
    fn answer_new<'b>(
        &'b self,
        found: &mut Found<'b>,
        held: &mut SmallVec<[ChangingTable<'b>; 8]>,
        summary: &mut Summary,
        statuses: &mut [Status],
    ) -> bool {
        let (new, shared) = (found.asked.iter().filter(|part| part.is_new(statuses)).count(), &self.store.shared);
        let mut rests: SmallVec<[_; 8]> = SmallVec::new();
        if found.rests.is_empty() {
            rests.extend(self.shards.iter().map_while(|shard| shard.try_lock_rest()));
        }
        if found.rests.len() + rests.len() < held.len() || shared.is_nearly_full() || !shared.reserve(new) {
            return false;
        }
        self.answer_all(found, summary, statuses);
        rests.extend(found.rests.drain(..));
        // From here on slots move, so that none that was found is written any more.
        let locked = self.shards.iter().zip(held.drain(..)).zip(rests);
        let locked = locked.map(|((shard, table), rest)| LockedShard { table, rest, absent: &shard.absent });
        let mut locked: SmallVec<[LockedShard<'_>; 4]> = locked.collect();
        for Asked { run, parameters, words, .. } in found.asked.iter().filter(|part| part.is_new(statuses)) {
            let (shard, label) = (&mut locked[self.shard(run)], Label::new(run.hash, parameters.policy));
            if shard.table.is_full() {
                shard.forget_all_stale(self.now, &[], shared);
            }
            shard.table.insert(Content::new(label, parameters.writer, *words));
        }
        true
    }

    /// Reports where a key stands that was asked as if it was charged, and was not.
    #[inline(never)]
    fn withdraw(&self, part: &Asked<'_>, status: &mut Status) {
        let (Parameters { algorithm, writer, .. }, now) = (part.parameters, self.now);
        let words = part.slot.map_or_else(|| Some(algorithm.fresh_words()), |slot| slot.words_of(*writer));
        match (words, part.slot) {
            (Some(words), _) => drop(algorithm.accept(Step { words, cost: 0, now, status })),
            (None, slot) => drop(slot.and_then(|slot| self.ask_of_others(part.parameters, slot, 0, status))),
        }
    }

    /// Asks or charges a large state.
    #[inline(never)]
    fn step(&self, part: &mut Asked<'_>, asked: Option<u64>, rests: &mut Rests<'_>, status: &mut Status) -> u64 {
        let algorithm = &part.parameters.algorithm;
        let is_new = part.slot.is_none() && asked.is_none() && status.taken.cost > 0;
        let large = rests.get_mut(self.shard(part.run)).and_then(|rest| {
            if is_new {
                part.words = rest.put_large(algorithm.fresh_repr(), None);
            }
            if is_new || part.slot.is_some() { rest.large_state(part.words) } else { None }
        });
        algorithm.accept(LargeStep { large, asked, now: self.now, status })
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
