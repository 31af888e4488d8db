//! Decides a set on the keys of a request, in two tries.
//!
//! The first holds the tables of the keys. It decides if every state is in the slot of its key, and
//! the call's parameters wrote it, which is the usual case. Every policy is asked as if it was
//! charged alone, and what it would write is kept until the set has decided. A member of an `any`
//! that charges the first is only peeked after a policy that admits, for it is not charged in any
//! case: its key may be unused.
//!
//! The second locks the shards of the keys as a whole. It decides any other state in a [`Cell`]:
//! that of a new key, a large one, one of other parameters, one with an exception over it, and one
//! for a call with a reserve or parameters of its own.
//!
//! [`Cell`]: crate::algorithm::Cell

use smallvec::SmallVec;

use super::entry::Entry;
use super::policies::CallParameters;
use super::request::{Request, Run};
use super::shard::{LockedShard, Shard};
use super::slot::{Label, Slot};
use super::store::{MemorySet, Store};
use crate::algorithm::{
    Algorithm, Outcome, StateCharge, StateFormat, Transition, Visitor, Words, ask,
};
use crate::backend::Call;
use crate::decision::{Decision, Status};
use crate::set;
use crate::time::Timestamp;

/// One policy's part in the decision.
struct Part<'a> {
    /// The policy's index in the set.
    policy: usize,
    run: &'a Run<'a>,
    state: PartState<'a>,
}

enum PartState<'a> {
    /// In a slot; the number of its parameters, and what it is after the charge.
    Slot(&'a Slot, u8, Words),
    /// Not charged in any case.
    Peeked,
    /// In one of the cells.
    Cell(usize),
}

/// The locked shards of a request's keys, and the states that are decided in cells.
struct LockedStates<'a> {
    shards: SmallVec<[LockedShard<'a>; 4]>,
    /// The keys of the request must not be swept while it is decided.
    kept: SmallVec<[u128; 6]>,
    cells: SmallVec<[LockedState<'a>; 3]>,
}

/// A state that is decided in a cell.
struct LockedState<'a> {
    /// The index of the key's shard.
    shard: usize,
    entry: Entry<'a>,
    algorithm: &'a Algorithm,
    /// What the calls ask of it: several if keys of one policy share an overflow bucket.
    asked: u64,
    is_charged: bool,
}

impl LockedStates<'_> {
    /// The index of the overflow bucket that the request holds for a key without a slot.
    fn bucket(&self, shard: usize, label: Label, parameters: CallParameters<'_>) -> Option<usize> {
        let is_bucket = |state: &LockedState<'_>| {
            state.shard == shard
                && state.entry.is_overflow()
                && state.entry.label() == Label::overflow(parameters)
        };
        let index = self.cells.iter().position(is_bucket)?;
        self.shards[shard].find(label).is_none().then_some(index)
    }
}

impl LockedState<'_> {
    /// Leaves a reserve and what other calls have asked for. Few parameters of keys' own share a
    /// bucket: it decides by those of one in a request, and leaves nothing to others.
    fn leave(&mut self, parameters: CallParameters<'_>, reserve: u64, asked: u64) {
        let taken = if parameters.algorithm.is_alike(self.algorithm) {
            asked
        } else {
            u64::MAX
        };
        self.entry.cell.leave(reserve.saturating_add(taken));
    }
}

impl Store {
    /// Decides any set on any keys. `None` if the set [does not](PolicySet::check_keys) decide such
    /// calls.
    #[inline(never)]
    pub(super) fn decide_set(
        &self,
        set: &MemorySet,
        calls: &[Call],
        now: Timestamp,
    ) -> Option<Decision> {
        let mut decision = Decision::not_limited(set.policies.len());
        // Compiled twice: what only a tree needs would take registers from the loop over the
        // policies.
        if set.set.is_plain() {
            self.decide_shape::<true>(set, calls, now, &mut decision);
        } else {
            set.set.check_keys(calls).ok()?;
            self.decide_shape::<false>(set, calls, now, &mut decision);
        }
        decision.set_form();
        Some(decision)
    }

    /// Decides in place, because a decision is large to be moved.
    fn decide_shape<const IS_PLAIN: bool>(
        &self,
        set: &MemorySet,
        calls: &[Call],
        now: Timestamp,
        decision: &mut Decision,
    ) {
        let mut request = Request::new(self, set, calls, now);
        request.locate();
        if !(request.is_usual && request.decide_known::<IS_PLAIN>(decision)) {
            request.decide_locked(decision);
        }
    }
}

impl<'a> Request<'a> {
    /// Decides if every state is in its slot. Otherwise returns `false`, and has charged nothing.
    #[inline(always)]
    fn decide_known<const IS_PLAIN: bool>(&mut self, decision: &mut Decision) -> bool {
        for held in &mut self.shards {
            held.table = Some(held.shard.table.change());
        }
        let is_decided = self.decide_held::<IS_PLAIN>(decision, None);
        if !is_decided {
            decision.skip_all();
            self.shards.iter_mut().for_each(|held| held.table = None);
        }
        is_decided
    }

    /// Decides on any states, in the locked shards of their keys.
    fn decide_locked(&self, decision: &mut Decision) {
        // First the rests of all shards, then their tables: see `shard`.
        let shards = self.shards.iter().map(|held| held.shard);
        let rests: SmallVec<[_; 4]> = shards.clone().map(Shard::lock_rest).collect();
        let shards = shards.zip(rests);
        let mut locked = LockedStates {
            shards: shards.map(|(shard, rest)| shard.lock_with(rest)).collect(),
            kept: self.runs.iter().map(|run| run.hash.number).collect(),
            cells: SmallVec::new(),
        };
        self.decide_held::<false>(decision, Some(&mut locked));
        let mut has_overflow = false;
        for state in locked.cells.drain(..) {
            has_overflow |= state.entry.is_overflow();
            let shard = &mut locked.shards[state.shard];
            state
                .entry
                .store(state.is_charged, shard, &self.store.shared);
        }
        drop(locked);
        if has_overflow {
            self.store.sweep_elsewhere(self.now);
        }
    }

    /// Decides on states that no other thread changes. Without `locked`, it returns `false` if a
    /// state is not in its slot, and has charged nothing.
    #[inline(always)]
    fn decide_held<'b, const IS_PLAIN: bool>(
        &'b self,
        decision: &mut Decision,
        mut locked: Option<&mut LockedStates<'b>>,
    ) -> bool {
        let mut parts: SmallVec<[Part<'_>; 8]> = SmallVec::new();
        // Room is made once, so that many policies are no dearer each than a few.
        if self.calls.len() > parts.inline_size() {
            let applied = self.runs.iter().map(|run| run.policies.len()).sum();
            if applied > parts.inline_size() {
                parts = SmallVec::from_vec(Vec::with_capacity(applied));
            }
        }
        let (summary, statuses) = decision.parts_mut();
        let mut spared = 0;
        for run in &self.runs {
            for policy in run.policies.clone() {
                let status = &mut statuses[policy];
                let may_charge = IS_PLAIN || policy >= spared;
                let state = match self.ask(policy, run, may_charge, locked.is_some(), status) {
                    Some(state) => state,
                    None => match &mut locked {
                        Some(locked) => self.ask_cell(policy, run, locked, status),
                        None => return false,
                    },
                };
                parts.push(Part { policy, run, state });
                summary.ask(policy, status);
                if !IS_PLAIN && status.wait == 0 {
                    spared = spared.max(self.set.set.spared_by(policy));
                }
            }
        }
        set::conclude(&self.set.set, summary, statuses);
        for part in &parts {
            let status = &mut statuses[part.policy];
            match part.state {
                PartState::Slot(slot, writer, words) => {
                    // Room that was made for a new key may have moved it.
                    let slot = if locked.is_some() {
                        self.slot(part.policy, part.run)
                    } else {
                        Some(slot)
                    };
                    match slot {
                        Some(slot) if status.taken.cost > 0 => slot.set(writer, words),
                        Some(slot) if status.wait == 0 => self.withdraw(part.policy, slot, status),
                        _ => {}
                    }
                }
                PartState::Peeked => {}
                PartState::Cell(index) => {
                    if let Some(locked) = &mut locked {
                        let state = &mut locked.cells[index];
                        let is_peek = self.calls[part.policy].is_peek();
                        let delay = state.entry.cell.charge(is_peek, status);
                        state.is_charged |= !is_peek && status.taken.cost > 0;
                        // An audited policy delays no request.
                        if !self.set.set.policies()[part.policy].is_audited() {
                            summary.delay = summary.delay.max(delay);
                        }
                    }
                }
            }
            summary.answer(part.policy, status);
        }
        if let Some(locked) = &mut locked
            && self.set.set.repeats
        {
            self.report_buckets(&parts, locked, statuses);
        }
        set::sum_up(&self.set.set, summary, statuses);
        if locked.is_some() {
            // Only here: until now the charge says which member of an `any` is chosen.
            for part in parts
                .iter()
                .filter(|part| self.calls[part.policy].is_peek())
            {
                statuses[part.policy].taken = StateCharge::default();
            }
        }
        true
    }

    /// Of a bucket, nothing is left that another key of the request has charged; also for a key that
    /// is not charged, and so gets no slot.
    #[inline(never)]
    fn report_buckets(
        &self,
        parts: &[Part<'_>],
        locked: &mut LockedStates<'_>,
        statuses: &mut [Status],
    ) {
        for part in parts {
            let own = match part.state {
                PartState::Slot(..) => continue,
                PartState::Peeked => None,
                PartState::Cell(index) => Some(index),
            };
            let (call, parameters) = self.call(part.policy);
            let label = Label::new(part.run.hash, parameters.policy);
            let bucket = locked.bucket(self.shard(part.run), label, parameters);
            let is_charged = own.is_some_and(|own| locked.cells[own].is_charged);
            if let Some(index) = bucket.filter(|_| !is_charged).or(own) {
                let state = &mut locked.cells[index];
                state.leave(parameters, call.reserve(), 0);
                statuses[part.policy].standing = state.entry.cell.standing();
            }
        }
    }

    /// Asks one policy as if it was charged alone. `None` if its state is not in its slot.
    #[inline(always)]
    fn ask<'b>(
        &'b self,
        policy: usize,
        run: &'b Run<'a>,
        may_charge: bool,
        is_locked: bool,
        status: &mut Status,
    ) -> Option<PartState<'b>> {
        let (call, now) = (&self.calls[policy], self.now);
        let parameters = self.set.policies[policy].parameters(call.tier());
        let slot = self.slot(policy, run);
        // The first try is of usual calls only.
        if !parameters.is_plain || (is_locked && !call.is_usual()) {
            return None;
        }
        let words = match slot {
            Some(slot) => slot.words_of(parameters.writer)?,
            None if may_charge && call.cost > 0 => return None,
            None if !run.shard.absent.is_unused(now) => return None,
            None => parameters.algorithm.fresh_words(),
        };
        status.tier = parameters.tier;
        let words = parameters.algorithm.accept(Step {
            words,
            cost: call.cost,
            may_charge,
            now,
            status,
        });
        Some(match slot {
            Some(slot) if may_charge => PartState::Slot(slot, parameters.writer, words),
            _ => PartState::Peeked,
        })
    }

    /// The same on any state. Makes room for a new key.
    fn ask_cell<'b>(
        &'b self,
        policy: usize,
        run: &Run<'_>,
        locked: &mut LockedStates<'b>,
        status: &mut Status,
    ) -> PartState<'b> {
        let (call, parameters) = self.call(policy);
        let shard = self.shard(run);
        let label = Label::new(run.hash, parameters.policy);
        // Another key of the policy may hold the bucket that this one shares.
        let known = locked.bucket(shard, label, parameters);
        let index = known.unwrap_or_else(|| {
            let entry = Entry::locate(
                parameters,
                label,
                (call.cost, self.now),
                &mut locked.shards[shard],
                &locked.kept,
                &self.store.shared,
            );
            if entry.is_overflow() {
                locked.kept.push(entry.label().number());
            }
            locked.cells.push(LockedState {
                shard,
                entry,
                algorithm: parameters.algorithm,
                asked: 0,
                is_charged: false,
            });
            locked.cells.len() - 1
        });
        let state = &mut locked.cells[index];
        state.leave(parameters, call.reserve(), state.asked);
        let LockedState { entry, asked, .. } = state;
        entry.cell.ask(call.cost, status);
        if !call.is_peek() {
            *asked = asked.saturating_add(call.cost);
        }
        (status.tier, status.overflow) = (parameters.tier, entry.is_overflow());
        PartState::Cell(index)
    }

    /// The call of a policy, and the parameters that it names.
    fn call(&self, policy: usize) -> (&'a Call, CallParameters<'a>) {
        let call = &self.calls[policy];
        let parameters = self.set.policies[policy].of_call(call.tier(), call.own.as_ref());
        (call, parameters)
    }

    /// The slot of a policy's key, in a table that no other thread changes.
    #[inline(always)]
    fn slot<'b>(&self, policy: usize, run: &Run<'b>) -> Option<&'b Slot> {
        let label = Label::new(run.hash, self.set.policies[policy].number());
        run.shard.table.find_held(label)
    }

    /// Reports the standing of a key that was asked as if it was charged, and was not.
    fn withdraw(&self, policy: usize, slot: &Slot, status: &mut Status) {
        let call = &self.calls[policy];
        let parameters = self.set.policies[policy].parameters(call.tier());
        if call.cost > 0
            && let Some(words) = slot.words_of(parameters.writer)
        {
            parameters.algorithm.accept(Step {
                words,
                cost: 0,
                may_charge: false,
                now: self.now,
                status,
            });
        }
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
    fn visit<A: Transition<State: StateFormat>>(self, algorithm: &A) -> Words {
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
