//! The fast path of a set: of keys with slots, and of new ones.
//!
//! The tables of the keys are held. Every policy with a small state is asked as if it was charged
//! alone, and what it would write is kept until the set has decided. A member of an `any` that
//! charges the first is only looked at behind a policy that admits, for it is not charged in any
//! case. Large states are asked without a charge, and their shards are locked first. A [`Cell`]
//! reads a small state that other parameters wrote, or for a call with a reserve. States that lie
//! [beside the table](super::beside) for another reason take the locks of their shards if those are
//! free.
//!
//! A key without a slot counts as unused. If it is charged it gets a slot, after all known states
//! are written, because that moves slots. It takes locks that are free. A request that would have
//! to wait for one, that meets a full store, or that peeks with a cost, is decided anew on the
//! [general way](Store::decide_located).

use std::borrow::Cow;

use smallvec::SmallVec;

use super::beside::{Beside, Kind};
use super::policies::Parameters;
use super::request::{Request, Run};
use super::shard::{LockedShard, Rest};
use super::slot::{Content, Label, Slot};
use super::store::{MemorySet, Store};
use super::sync::MutexGuard;
use super::table::ChangingTable;
use crate::algorithm::{Cell, Outcome, Repr, Stored, Transition, Visitor, Words, ask, take};
use crate::backend::Call;
use crate::decision::{Decision, Status, Summary};
use crate::policy::Policy;
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
    kind: Kind,
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
    pub(super) fn decide_set<const IS_PLAIN: bool>(
        &self,
        set: &MemorySet,
        calls: &[Call],
        now: Timestamp,
        decision: &mut Decision,
    ) {
        let mut request = Request::new(self, set, calls, now);
        request.locate();
        if !request.decide_known::<IS_PLAIN>(decision) {
            *decision = self.decide_located(&request);
        } else if set.policies.len() == 1 {
            *decision = std::mem::replace(decision, Decision::new()).in_one_form();
        }
    }
}

impl<'a> Request<'a> {
    /// Decides if every key is known, or unused and not charged. Otherwise returns `false`, and has
    /// charged nothing.
    #[inline(always)]
    fn decide_known<const IS_PLAIN: bool>(&self, decision: &mut Decision) -> bool {
        let mut found = Found {
            rests: SmallVec::new(),
            asked: SmallVec::new(),
            misses: false,
        };
        if self.has_large() {
            found
                .rests
                .extend(self.shards.iter().map(|shard| shard.lock_rest()));
        }
        let mut held: SmallVec<[ChangingTable<'_>; 8]> = SmallVec::new();
        held.extend(self.shards.iter().map(|shard| shard.table.change()));
        // Room is made once, so that many policies are no dearer each than a few.
        if self.calls.len() > found.asked.inline_size() {
            found.asked = SmallVec::from_vec(Vec::with_capacity(self.calls.len()));
        }
        let (summary, statuses) = decision.skip(self.set.policies.len());
        let mut spared = 0;
        for run in &self.runs {
            for place in run.places.clone() {
                let status = &mut statuses[place];
                if self.calls[place].key.is_none() {
                    continue;
                }
                let may_charge = IS_PLAIN || place >= spared;
                if !self.ask(place, run, may_charge, status, &mut found) {
                    return false;
                }
                summary.ask(place, status);
                if !IS_PLAIN && status.wait == 0 {
                    spared = spared.max(self.set.set.spared_by(place));
                }
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
    fn ask<'b>(
        &'b self,
        place: usize,
        run: &'b Run<'a>,
        may_charge: bool,
        status: &mut Status,
        found: &mut Found<'b>,
    ) -> bool {
        let (call, now) = (&self.calls[place], self.now);
        let parameters = self.set.policies[place].parameters(call.tier());
        let slot = run
            .shard
            .table
            .find_held(Label::new(run.hash, parameters.policy));
        status.tier = parameters.tier;
        let known = || match slot {
            Some(slot) => slot.words_of(parameters.writer),
            None if may_charge || !parameters.is_plain || !run.shard.absent.is_unused(now) => None,
            None => Some(parameters.algorithm.fresh_words()),
        };
        if call.is_usual()
            && let Some(words) = known()
        {
            let kind = if may_charge {
                Kind::Small
            } else {
                Kind::Looked
            };
            let mut part = Asked {
                place,
                parameters,
                slot,
                words,
                run,
                kind,
            };
            if parameters.is_plain {
                part.words = parameters.algorithm.accept(Step {
                    words,
                    cost: call.cost,
                    may_charge,
                    now,
                    status,
                });
            } else if parameters.unnumbered.is_none() {
                part.kind = Kind::Large;
                self.step(&mut part, Some(call.cost), &mut found.rests, status);
            } else {
                return self.ask_unusual(place, run, slot, status, found);
            }
            found.asked.push(part);
            return true;
        }
        self.ask_unusual(place, run, slot, status, found)
    }

    /// The same for a key without a slot, a call with a reserve, and a state beside the table or of
    /// other parameters. A peek with a cost is left to the general way.
    #[inline(never)]
    fn ask_unusual<'b>(
        &'b self,
        place: usize,
        run: &'b Run<'a>,
        slot: Option<&'b Slot>,
        status: &mut Status,
        found: &mut Found<'b>,
    ) -> bool {
        let call = &self.calls[place];
        if call.is_peek() && call.cost > 0 {
            return false;
        }
        let parameters = self.set.policies[place].parameters(call.tier());
        let words = Words {
            instant: 0,
            amount: 0,
        };
        let mut part = Asked {
            place,
            parameters,
            slot,
            words,
            run,
            kind: Kind::Small,
        };
        let is_numbered = call.own.is_none() && parameters.unnumbered.is_none();
        if slot.is_none() && !(is_numbered && run.shard.absent.is_unused(self.now)) {
            return false;
        }
        if is_numbered
            && parameters.is_plain
            && let Some(words) = self.ask_small(&part, call.cost, status)
        {
            part.words = words;
        } else if let Some(slot) = slot {
            if !self.ask_beside(&mut part, slot, found, status) {
                return false;
            }
        } else if call.is_usual() {
            part.kind = Kind::Large;
            self.step(&mut part, Some(call.cost), &mut found.rests, status);
        } else {
            return false;
        }
        found.misses |= slot.is_none();
        found.asked.push(part);
        true
    }

    /// Asks a state beside the table. Returns `false` if that means to wait for a lock, or if its
    /// charge would move it.
    fn ask_beside<'b>(
        &'b self,
        part: &mut Asked<'b>,
        slot: &Slot,
        found: &mut Found<'b>,
        status: &mut Status,
    ) -> bool {
        if found.rests.is_empty() {
            found
                .rests
                .extend(self.shards.iter().map_while(|shard| shard.try_lock_rest()));
        }
        if found.rests.len() < self.shards.len() {
            return false;
        }
        let (state, call) = (self.beside(part, slot.content()), &self.calls[part.place]);
        let rest = &found.rests[self.shard(part.run)];
        let Some(kind) = state.kind(rest) else {
            return false;
        };
        (part.kind, part.words) = (kind, slot.content().words());
        status.tier = if call.own.is_some() {
            Policy::OWN
        } else {
            status.tier
        };
        if kind == Kind::Large {
            self.step(part, Some(call.cost), &mut found.rests, status);
        } else {
            state.ask(rest, call.cost, status);
        }
        true
    }

    fn beside<'b>(&'b self, part: &Asked<'b>, content: Content) -> Beside<'b> {
        let (call, policies) = (&self.calls[part.place], &self.store.shared.policies);
        let by = call.own.as_deref().unwrap_or(&part.parameters.algorithm);
        Beside {
            content,
            by,
            reserve: call.reserve(),
            now: self.now,
            policies,
        }
    }

    /// Asks a small state as if it was charged. Returns it after the charge; `None` if what other
    /// parameters wrote does not fit a slot.
    #[inline(always)]
    fn ask_small(&self, part: &Asked<'_>, cost: u64, status: &mut Status) -> Option<Words> {
        let (
            Parameters {
                algorithm, writer, ..
            },
            now,
        ) = (part.parameters, self.now);
        let own = part.slot.map_or_else(
            || Some(algorithm.fresh_words()),
            |slot| slot.words_of(*writer),
        );
        match own.filter(|_| self.calls[part.place].is_usual()) {
            Some(words) => Some(algorithm.accept(Step {
                words,
                cost,
                may_charge: true,
                now,
                status,
            })),
            None => self.ask_cell(part, cost, status),
        }
    }

    /// The same for a call with a reserve, or a state that other parameters wrote.
    #[inline(never)]
    fn ask_cell(&self, part: &Asked<'_>, cost: u64, status: &mut Status) -> Option<Words> {
        let (algorithm, reserve) = (&part.parameters.algorithm, self.calls[part.place].reserve());
        let (writer, words) = match part.slot.map(Slot::content) {
            Some(content) => {
                let writer = content
                    .algorithm(&self.store.shared.policies)
                    .filter(|writer| writer.is_small())?;
                (Some(Cow::Borrowed(writer)), content.words())
            }
            None => (None, algorithm.fresh_words()),
        };
        let mut cell = Cell::new(algorithm, writer, Repr::Words(words), self.now).leaving(reserve);
        status.ask(cell.wait(cost), cost);
        if status.taken.cost > 0 {
            (_, status.taken) = cell.take(cost);
        }
        status.standing = cell.standing();
        if let Repr::Words(words) = cell.into_repr() {
            Some(words)
        } else {
            None
        }
    }

    /// Charges every policy what the set has left to be charged.
    #[inline(always)]
    fn answer_all(&self, found: &mut Found<'_>, summary: &mut Summary, statuses: &mut [Status]) {
        for part in &mut found.asked {
            let status = &mut statuses[part.place];
            match part.slot {
                _ if part.kind != Kind::Small => {
                    let delay = match part.kind {
                        Kind::Beside => self.answer_beside(part, &mut found.rests, status),
                        Kind::Large => self.step(part, None, &mut found.rests, status),
                        Kind::Small | Kind::Looked => 0,
                    };
                    // An audited policy delays no request.
                    let is_audited = delay > 0 && self.set.set.policies()[part.place].is_audited();
                    summary.delay = summary.delay.max(if is_audited { 0 } else { delay });
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

    /// The same where keys get slots. Returns `false`, and charges nothing, if that takes more than
    /// to make a table grow: to wait for a lock, or to share a bucket.
    #[inline(never)]
    fn answer_new<'b>(
        &'b self,
        found: &mut Found<'b>,
        held: &mut SmallVec<[ChangingTable<'b>; 8]>,
        summary: &mut Summary,
        statuses: &mut [Status],
    ) -> bool {
        let (new, shared) = (
            found
                .asked
                .iter()
                .filter(|part| part.is_new(statuses))
                .count(),
            &self.store.shared,
        );
        let mut rests: SmallVec<[_; 8]> = SmallVec::new();
        if found.rests.is_empty() {
            rests.extend(self.shards.iter().map_while(|shard| shard.try_lock_rest()));
        }
        if found.rests.len() + rests.len() < held.len() || !shared.reserve(new) {
            return false;
        }
        self.answer_all(found, summary, statuses);
        rests.extend(found.rests.drain(..));
        // From here on slots move, so that none that was found is written any more.
        let locked = self.shards.iter().zip(held.drain(..)).zip(rests);
        let locked = locked.map(|((shard, table), rest)| LockedShard {
            table,
            rest,
            absent: &shard.absent,
        });
        let mut locked: SmallVec<[LockedShard<'_>; 4]> = locked.collect();
        for Asked {
            run,
            parameters,
            words,
            ..
        } in found.asked.iter().filter(|part| part.is_new(statuses))
        {
            let (shard, label) = (
                &mut locked[self.shard(run)],
                Label::new(run.hash, parameters.policy),
            );
            shard.sweep_if_nearly_full(self.now, &[], shared);
            shard.make_slot(self.now, &[], shared);
            shard
                .table
                .insert(Content::new(label, parameters.writer, *words));
        }
        true
    }

    /// Reports where a key stands that was asked as if it was charged, and was not.
    #[inline(never)]
    fn withdraw(&self, part: &Asked<'_>, status: &mut Status) {
        self.ask_small(part, 0, status);
    }

    /// Charges a state beside the table by a [`Cell`]. Returns the µs to wait before going on.
    #[inline(never)]
    fn answer_beside(&self, part: &Asked<'_>, rests: &mut Rests<'_>, status: &mut Status) -> u64 {
        let rest = &mut rests[self.shard(part.run)];
        part.slot.map_or(0, |slot| {
            self.beside(part, slot.content()).answer(rest, status)
        })
    }

    /// Asks or charges a large state.
    #[inline(never)]
    fn step(
        &self,
        part: &mut Asked<'_>,
        asked: Option<u64>,
        rests: &mut Rests<'_>,
        status: &mut Status,
    ) -> u64 {
        let own = self.calls[part.place].own.as_deref();
        let algorithm = own.unwrap_or(&part.parameters.algorithm);
        let is_new = part.slot.is_none() && asked.is_none() && status.taken.cost > 0;
        let large = rests.get_mut(self.shard(part.run)).and_then(|rest| {
            if is_new {
                part.words = rest.put_large(algorithm.fresh_repr(), None);
            }
            if is_new || part.slot.is_some() {
                rest.large_state(part.words)
            } else {
                None
            }
        });
        algorithm.accept(LargeStep {
            large,
            asked,
            now: self.now,
            status,
        })
    }
}

/// One policy's step on a state that fits its slot. Returns the state after its charge.
struct Step<'a> {
    words: Words,
    cost: u64,
    /// Whether the cost is charged if it is admitted.
    may_charge: bool,
    now: Timestamp,
    status: &'a mut Status,
}

impl Visitor for Step<'_> {
    type Output = Words;

    #[inline(always)]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Words {
        let Self {
            words,
            cost,
            may_charge,
            now,
            status,
        } = self;
        let Some(mut state) = A::State::from_words(words) else {
            return words;
        };
        let (outcome, standing) = if may_charge {
            algorithm.decide(&mut state, now, cost)
        } else {
            (
                Outcome::uncharged(ask(algorithm, &state, now, cost)),
                algorithm.standing(&state, now),
            )
        };
        status.report(outcome, standing);
        state.words().unwrap_or(words)
    }
}

/// One policy's step on a large state, or on an unused one: asks for some units, or takes those
/// that the status has been left to be charged and reports. Returns the µs to wait before going on.
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
        let Self {
            large,
            asked,
            now,
            status,
        } = self;
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
