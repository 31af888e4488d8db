//! The fast path: one policy, or an `all` of at most 16, whose keys all have slots that the parameters in force wrote.
//! Nearly every request takes it.

use parking_lot::MutexGuard;

use super::key_hash::KeyHash;
use super::policies::InForce;
use super::shard::Shard;
use super::store::{MemorySet, Store};
use super::table::Label;
use crate::algorithm::{Stored, Transition, Visitor, Words, decide, take};
use crate::backend::Call;
use crate::decision::{Decision, Status};
use crate::key::Key;
use crate::time::Timestamp;

/// A key that has a slot.
#[derive(Clone, Copy)]
struct Known<'a> {
    in_force: &'a InForce,
    slot: usize,
    /// The state after the charge.
    charged: Option<Words>,
}

impl Store {
    /// Decides one policy.
    #[inline(always)]
    pub(super) fn decide_alone(&self, in_force: &InForce, key: &Key, cost: u64, now: Timestamp) -> Decision {
        let hash = self.key_hasher.hash(key);
        let label = Label::new(hash, in_force.version.policy);
        let mut shard = self.shard(hash).lock();
        let Some(slot) = shard.find_known(label, in_force.version.generation) else {
            drop(shard);
            return self.decide_one(in_force, key, cost, now);
        };
        in_force.algorithm.accept(Alone { shard, slot, tier: in_force.tier, cost, now })
    }

    /// Decides an `all` of at most N policies. Takes the [general way](Self::decide_located) if a key is not known.
    ///
    /// Each state is read and charged as a copy, and the copies are written when every policy has admitted. States
    /// larger than two words are not copied: they are charged in their places then.
    #[inline(never)]
    pub(super) fn decide_several<const N: usize>(&self, set: &MemorySet, calls: &[Call], now: Timestamp) -> Decision {
        let count = if N <= 3 { N } else { set.policies.len() };
        let mut hashes = [KeyHash::default(); N];
        if !self.key_hasher.hash_each(calls, &mut hashes[..count]) {
            return self.decide_located(set, calls, now);
        }
        let mut shards = LockedShards::lock(self, &hashes, count);
        let mut known: [Option<Known<'_>>; N] = [None; N];
        for n in 0..count {
            let in_force = set.policies[n].in_force(calls[n].tier);
            let label = Label::new(hashes[n], in_force.version.policy);
            let Some(slot) = shards.get(n).find_known(label, in_force.version.generation) else {
                drop(shards);
                return self.decide_located(set, calls, now);
            };
            known[n] = Some(Known { in_force, slot, charged: None });
        }
        let mut decision = Decision::not_limited(count);
        let (statuses, delay) = decision.parts();
        let (mut pass, mut n) = (Pass::First, 0);
        while n < count {
            let Some(key) = &mut known[n] else { break };
            let (shard, cost, status) = (shards.get(n), calls[n].cost, &mut statuses[n]);
            status.tier = key.in_force.tier;
            let step = Step { shard, slot: key.slot, cost, now, pass, status, delay };
            key.charged = key.in_force.algorithm.accept(step);
            n += 1;
            if pass == Pass::First && statuses[n - 1].wait > 0 {
                pass = Pass::Refused;
                // The policies before this one have reported a charge.
                n = if n > 1 { 0 } else { n };
            }
        }
        for (n, key) in known[..count].iter().flatten().enumerate().filter(|_| pass == Pass::First) {
            let (shard, cost, status) = (shards.get(n), calls[n].cost, &mut statuses[n]);
            if let Some(words) = key.charged {
                shard.table.at(key.slot).set_words(words);
            } else if cost > 0 {
                let step = Step { shard, slot: key.slot, cost, now, pass: Pass::Admitted, status, delay };
                key.in_force.algorithm.accept(step);
            }
        }
        decision.summarize();
        decision
    }
}

/// One policy's decision on a known key, in its locked shard.
struct Alone<'a> {
    shard: MutexGuard<'a, Shard>,
    slot: usize,
    tier: u8,
    cost: u64,
    now: Timestamp,
}

impl Visitor for Alone<'_> {
    type Output = Decision;

    #[inline]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Decision {
        let Self { mut shard, slot, tier, cost, now } = self;
        let words = shard.table.at(slot).words();
        if let Some(mut state) = A::State::from_words(words) {
            let outcome = decide(algorithm, &mut state, now, cost, true);
            if let Some(words) = state.words().filter(|_| outcome.taken.cost > 0) {
                shard.table.at(slot).set_words(words);
            }
            // The standing is computed from the copy, without the lock.
            drop(shard);
            return Decision::of_one(outcome, algorithm.standing(&state, now), tier, false);
        }
        let large = shard.large_state(words);
        let decided = large.and_then(|large| {
            A::State::change(large, |state| (decide(algorithm, state, now, cost, true), algorithm.standing(state, now)))
        });
        let (outcome, standing) = decided.expect("the slot refers to a state of the algorithm that wrote it");
        Decision::of_one(outcome, standing, tier, false)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Asks, and charges copies of small states.
    First,
    /// Asks without charging, because a policy has refused.
    Refused,
    /// Charges large states, because every policy has admitted.
    Admitted,
}

/// One policy's step in the decision of several. Returns the charged copy of a small state.
struct Step<'a> {
    shard: &'a mut Shard,
    slot: usize,
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
        let Self { shard, slot, cost, now, pass, status, delay } = self;
        let words = shard.table.at(slot).words();
        if let Some(mut state) = A::State::from_words(words) {
            let outcome = decide(algorithm, &mut state, now, cost, pass == Pass::First);
            status.report(outcome, algorithm.standing(&state, now));
            return state.words().filter(|_| outcome.taken.cost > 0);
        }
        A::State::change(shard.large_state(words)?, |state| {
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

/// The shards of at most N keys, each locked once, in ascending order, so that two requests cannot wait for each other.
enum LockedShards<'a, const N: usize> {
    /// All keys are in one shard.
    One(MutexGuard<'a, Shard>),
    /// The guards, and which of them holds the shard of each key.
    Several([Option<MutexGuard<'a, Shard>>; N], [usize; N]),
}

impl<'a, const N: usize> LockedShards<'a, N> {
    #[inline(always)]
    fn lock(store: &'a Store, hashes: &[KeyHash; N], count: usize) -> Self {
        let indices = hashes.map(|hash| store.index(hash));
        let used = &indices[..count];
        if used.iter().all(|index| *index == indices[0]) {
            return Self::One(store.shards[indices[0]].0.lock());
        }
        let (mut order, mut guards, mut at) = (indices, [const { None }; N], [0; N]);
        let order = &mut order[..count];
        order.sort_unstable();
        for n in 0..count {
            if n == 0 || order[n] != order[n - 1] {
                guards[n] = Some(store.shards[order[n]].0.lock());
            }
            at[n] = order.iter().position(|index| *index == used[n]).unwrap_or(0);
        }
        Self::Several(guards, at)
    }

    #[inline(always)]
    fn get(&mut self, n: usize) -> &mut Shard {
        match self {
            Self::One(guard) => guard,
            Self::Several(guards, at) => guards[at[n]].as_mut().expect("the first key of each shard has locked it"),
        }
    }
}
