//! The fast path of an `all` of which at most 16 policies apply, whose keys all have slots that the same parameters
//! wrote.
//!
//! The shards of the keys are held, so each small state is charged at once, and put back if a later policy refuses. Large
//! states cannot be put back: their shards are locked first, and they are charged when every policy has admitted.

use smallvec::SmallVec;

use super::key_hash::KeyHash;
use super::policies::Parameters;
use super::shard::Rest;
use super::slot::{Label, Slot};
use super::store::{MemorySet, Store};
use super::sync::MutexGuard;
use super::table::ChangingTable;
use crate::algorithm::{Stored, Transition, Visitor, Words, decide, take};
use crate::backend::Call;
use crate::decision::{Decision, Status};
use crate::time::Timestamp;

/// A key that has a slot.
#[derive(Clone, Copy)]
struct Known<'a> {
    parameters: &'a Parameters,
    slot: &'a Slot,
    /// The state before the request, or the place of a large one.
    words: Words,
}

impl Store {
    /// Decides an `all` of which some policies do not apply.
    #[inline(never)]
    pub(super) fn decide_applying(&self, set: &MemorySet, calls: &[Call], now: Timestamp) -> Decision {
        let mut places = [0; 16];
        let mut count = 0;
        for (place, _) in calls.iter().enumerate().take(set.policies.len()).filter(|(_, call)| call.key.is_some()) {
            let Some(free) = places.get_mut(count) else { return self.decide_located(set, calls, now) };
            (*free, count) = (place, count + 1);
        }
        match count {
            0 => Decision::not_limited(set.policies.len()),
            1 => self.decide_several::<1, false>(set, calls, now, &places),
            2 => self.decide_several::<2, false>(set, calls, now, &places),
            3 => self.decide_several::<3, false>(set, calls, now, &places),
            _ => self.decide_several::<16, false>(set, calls, now, &places[..count]),
        }
    }

    /// Decides an `all` of at most N policies: `ALL` of them apply, or those at some places in the set. Takes the [general
    /// way](Self::decide_located) if a key is not known.
    #[inline(never)]
    pub(super) fn decide_several<const N: usize, const ALL: bool>(
        &self,
        set: &MemorySet,
        calls: &[Call],
        now: Timestamp,
        places: &[usize],
    ) -> Decision {
        // Where the numbers are known when the code is compiled, nothing is counted.
        let count = match (N, ALL) {
            (1..=3, _) => N,
            (_, true) => set.policies.len(),
            (_, false) => places.len(),
        };
        let total = if ALL { count } else { set.policies.len() };
        let place = |n: usize| if ALL { n } else { places[n] };
        let mut hashes = [KeyHash::default(); N];
        if !self.key_hasher.hash_each(|n| calls.get(place(n)), &mut hashes[..count]) {
            return if ALL { self.decide_applying(set, calls, now) } else { self.decide_located(set, calls, now) };
        }
        let mut parameters: [Option<&Parameters>; N] = [None; N];
        let mut large = LargeStates::default();
        for n in 0..count {
            let current = set.policies[place(n)].parameters(calls[place(n)].tier);
            if !current.algorithm.is_small() {
                large.add(self.index(hashes[n]));
            }
            parameters[n] = Some(current);
        }
        large.lock(self);
        let tables = HeldTables::hold(self, &hashes, count);
        let mut known: [Option<Known<'_>>; N] = [None; N];
        for n in 0..count {
            let Some(parameters) = parameters[n] else { continue };
            let label = Label::new(hashes[n], parameters.policy);
            let Some((slot, words)) = tables.get(n).find_known(label, parameters.writer) else {
                drop((tables, large));
                return self.decide_located(set, calls, now);
            };
            known[n] = Some(Known { parameters, slot, words });
        }
        let mut decision = Decision::not_limited(total);
        let (statuses, delay) = decision.parts();
        let (mut pass, mut n) = (Pass::First, 0);
        while n < count {
            let Some(key) = &known[n] else { break };
            let at = place(n);
            let (cost, status, rest) = (calls[at].cost, &mut statuses[at], large.of(self, hashes[n]));
            status.tier = key.parameters.tier;
            let step = Step { words: key.words, rest, cost, now, pass, status, delay };
            if let Some(charged) = key.parameters.algorithm.accept(step) {
                key.slot.set_words(charged);
            }
            n += 1;
            if pass == Pass::First && statuses[at].wait > 0 {
                pass = Pass::Refused;
                // The policies before this one have charged, and reported it.
                known[..n - 1].iter().flatten().for_each(|key| key.slot.set_words(key.words));
                n = if n > 1 { 0 } else { n };
            }
        }
        if pass == Pass::First && !large.is_empty() {
            for (n, key) in known[..count].iter().flatten().enumerate() {
                let at = place(n);
                let (cost, rest, status) = (calls[at].cost, large.of(self, hashes[n]), &mut statuses[at]);
                if cost > 0 && !key.parameters.algorithm.is_small() {
                    let step = Step { words: key.words, rest, cost, now, pass: Pass::Admitted, status, delay };
                    key.parameters.algorithm.accept(step);
                }
            }
        }
        decision.summarize();
        decision
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Asks, and charges small states.
    First,
    /// Asks without charging, because a policy has refused.
    Refused,
    /// Charges large states, because every policy has admitted.
    Admitted,
}

/// One policy's step in the decision of several. Returns a small state after its charge.
struct Step<'a> {
    words: Words,
    /// The large states of the key's shard, if they are locked.
    rest: Option<&'a mut Rest>,
    cost: u64,
    now: Timestamp,
    pass: Pass,
    status: &'a mut Status,
    /// The longest delay so far.
    delay: &'a mut u64,
}

impl Visitor for Step<'_> {
    type Output = Option<Words>;

    #[inline]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Option<Words> {
        let Self { words, rest, cost, now, pass, status, delay } = self;
        if let Some(mut state) = A::State::from_words(words) {
            let outcome = decide(algorithm, &mut state, now, cost, pass == Pass::First);
            status.report(outcome, algorithm.standing(&state, now));
            return state.words().filter(|_| outcome.taken.cost > 0);
        }
        A::State::change(rest?.large_state(words)?, |state| {
            let outcome = if pass == Pass::Admitted {
                take(algorithm, state, now, cost)
            } else {
                decide(algorithm, state, now, cost, false)
            };
            *delay = outcome.delay.max(*delay);
            // A state that is about to be charged reports afterwards.
            if pass != Pass::First || outcome.wait > 0 || cost == 0 {
                status.report(outcome, algorithm.standing(state, now));
            }
        });
        None
    }
}

/// The tables of at most N keys, each held once, in ascending order, so that two requests cannot wait for each other.
enum HeldTables<'a, const N: usize> {
    /// All keys are in one shard.
    One(ChangingTable<'a>),
    /// The tables, and which of them holds each key.
    Several([Option<ChangingTable<'a>>; N], [usize; N]),
}

impl<'a, const N: usize> HeldTables<'a, N> {
    #[inline(always)]
    fn hold(store: &'a Store, hashes: &[KeyHash; N], count: usize) -> Self {
        let indices = hashes.map(|hash| store.index(hash));
        let used = &indices[..count];
        if used.iter().all(|index| *index == indices[0]) {
            return Self::One(store.shards[indices[0]].table.change());
        }
        let (mut order, mut tables, mut at) = (indices, [const { None }; N], [0; N]);
        let order = &mut order[..count];
        order.sort_unstable();
        for n in 0..count {
            if n == 0 || order[n] != order[n - 1] {
                tables[n] = Some(store.shards[order[n]].table.change());
            }
            at[n] = order.iter().position(|index| *index == used[n]).unwrap_or(0);
        }
        Self::Several(tables, at)
    }

    #[inline(always)]
    fn get(&self, n: usize) -> &ChangingTable<'a> {
        match self {
            Self::One(table) => table,
            Self::Several(tables, at) => tables[at[n]].as_ref().expect("the first key of each shard holds its table"),
        }
    }
}

/// The large states of some shards, each locked once, in ascending order too.
#[derive(Default)]
struct LargeStates<'a> {
    shards: SmallVec<[usize; 4]>,
    locked: SmallVec<[MutexGuard<'a, Rest>; 1]>,
}

impl<'a> LargeStates<'a> {
    #[cold]
    fn add(&mut self, shard: usize) {
        self.shards.push(shard);
    }

    fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    #[inline(always)]
    fn lock(&mut self, store: &'a Store) {
        if !self.is_empty() {
            self.shards.sort_unstable();
            self.shards.dedup();
            self.locked = self.shards.iter().map(|shard| store.shards[*shard].lock_rest()).collect();
        }
    }

    #[inline(always)]
    fn of(&mut self, store: &Store, hash: KeyHash) -> Option<&mut Rest> {
        if self.is_empty() {
            return None;
        }
        let shard = store.index(hash);
        let place = self.shards.iter().position(|locked| *locked == shard)?;
        self.locked.get_mut(place).map(|rest| &mut **rest)
    }
}
