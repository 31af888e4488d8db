//! How the store decides a request: on the fast path, or with the entries of all its keys in their locked shards.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::entry::Entry;
use super::fast_path::Asked;
use super::key_hash::KeyHash;
use super::policies::Parameters;
use super::shard::LockedShard;
use super::slot::Label;
use super::store::{MemorySet, Store};
use crate::algorithm::{Cell, Outcome};
use crate::backend::Call;
use crate::decision::Decision;
use crate::set::{self, PolicyCell};
use crate::time::Timestamp;

impl Store {
    #[inline(always)]
    pub(super) fn decide(&self, set: &MemorySet, calls: &[Call], now: Timestamp) -> Decision {
        if let (Some(policy), [Call { key: Some(key), cost, tier, own: None }]) = (&set.alone, calls) {
            return self.decide_alone(&Asked { parameters: policy.parameters(*tier), key, cost: *cost, now });
        }
        self.decide_set(set, calls, now)
    }

    #[inline(never)]
    fn decide_set(&self, set: &MemorySet, calls: &[Call], now: Timestamp) -> Decision {
        if !set.is_all {
            return self.decide_located(set, calls, now);
        }
        match set.policies.len() {
            2 => self.decide_several::<2, true>(set, calls, now, &[]),
            3 => self.decide_several::<3, true>(set, calls, now, &[]),
            4..=16 => self.decide_several::<16, true>(set, calls, now, &[]),
            _ => self.decide_applying(set, calls, now),
        }
    }

    /// Decides any set on any keys: locks their shards in ascending order, so that two requests cannot wait for each
    /// other, locates every entry, decides, stores and unlocks.
    #[inline(never)]
    pub(super) fn decide_located(&self, set: &MemorySet, calls: &[Call], now: Timestamp) -> Decision {
        let hash = |policy: usize| Some(self.key_hasher.hash(calls.get(policy)?.key.as_ref()?));
        let hashes: SmallVec<[Option<KeyHash>; 3]> = (0..set.policies.len()).map(hash).collect();
        let mut indices: SmallVec<[usize; 4]> = hashes.iter().flatten().map(|hash| self.index(*hash)).collect();
        indices.sort_unstable();
        indices.dedup();
        // First the rests of all shards, then their tables: see `shard`.
        let rests: SmallVec<[_; 4]> = indices.iter().map(|index| self.shards[*index].lock_rest()).collect();
        let mut shards: SmallVec<[LockedShard<'_>; 4]> =
            indices.iter().zip(rests).map(|(index, rest)| self.shards[*index].lock_with(rest)).collect();
        // The keys of this request must not be swept while it is decided.
        let mut kept: SmallVec<[Label; 6]> = SmallVec::new();
        for (policy, hash) in set.policies.iter().zip(&hashes) {
            kept.extend(hash.map(|hash| Label::new(hash, policy.number())));
        }
        let deciding =
            set.policies.iter().zip(calls).map(|(policy, call)| policy.deciding(call.tier, call.own.as_ref()));
        let deciding: SmallVec<[Cow<'_, Parameters>; 3]> = deciding.collect();
        let mut entries: SmallVec<[Option<(usize, Entry<'_>)>; 3]> = SmallVec::new();
        let mut cells: SmallVec<[Option<PolicyCell<'_>>; 3]> = SmallVec::new();
        for (place, (policy, hash)) in set.policies.iter().zip(&hashes).enumerate() {
            let Some(hash) = hash else {
                entries.push(None);
                cells.push(None);
                continue;
            };
            let (cost, parameters) = (calls[place].cost, &*deciding[place]);
            let shard = indices.partition_point(|index| *index < self.index(*hash));
            let label = Label::new(*hash, policy.number());
            let (entry, cell) = Entry::locate(parameters, label, (cost, now), &mut shards[shard], &kept, &self.shared);
            let overflow = entry.is_overflow();
            if overflow {
                kept.push(entry.label());
            }
            entries.push(Some((shard, entry)));
            cells.push(Some(PolicyCell { cell, cost, tier: parameters.tier, overflow }));
        }
        let decision = set::decide(&set.set, &mut cells);
        for ((entry, policy), status) in entries.into_iter().zip(cells).zip(decision.statuses()) {
            if let (Some((shard, entry)), Some(PolicyCell { cell, .. })) = (entry, policy) {
                entry.store(cell, status.charged() > 0, &mut shards[shard], &self.shared);
            }
        }
        drop(shards);
        if decision.statuses().iter().any(|status| status.overflow) {
            self.sweep_elsewhere(now);
        }
        decision
    }

    /// Decides one policy on any key.
    #[cold]
    pub(super) fn decide_one(&self, asked: &Asked<'_>) -> Decision {
        let cost = asked.cost;
        self.on_entry(asked, |cell, overflow| {
            let wait = cell.wait(cost);
            let (delay, taken) = if wait == 0 && cost > 0 { cell.take(cost) } else { Default::default() };
            let outcome = Outcome { wait, delay, taken };
            (taken.cost, Decision::of_one(outcome, cell.standing(), asked.parameters.tier, overflow))
        })
    }

    /// Charges the key of a call about one policy, as far as units remain.
    pub(super) fn charge_at_most(&self, set: &MemorySet, policy: usize, call: &Call, now: Timestamp) {
        let (Some(policy), Call { key: Some(key), cost, .. }) = (set.policies.get(policy), call) else { return };
        let parameters = policy.deciding(call.tier, call.own.as_ref());
        self.on_entry(&Asked { parameters: &parameters, key, cost: *cost, now }, |cell, _| {
            let units = (*cost).min(cell.standing().remaining);
            if units > 0 {
                cell.take(units);
            }
            (units, ())
        });
    }

    /// Runs a step on the cell of one key, which may share an overflow bucket. The step returns the units that it
    /// charged.
    #[inline]
    fn on_entry<R>(&self, asked: &Asked<'_>, step: impl FnOnce(&mut Cell<'_>, bool) -> (u64, R)) -> R {
        let Asked { parameters, key, cost, now } = *asked;
        let hash = self.key_hasher.hash(key);
        let label = Label::new(hash, parameters.policy);
        let mut shard = self.shard(hash).lock();
        let (entry, mut cell) = Entry::locate(parameters, label, (cost, now), &mut shard, &[], &self.shared);
        let overflow = entry.is_overflow();
        let (charged, result) = step(&mut cell, overflow);
        entry.store(cell, charged > 0, &mut shard, &self.shared);
        drop(shard);
        if overflow {
            self.sweep_elsewhere(now);
        }
        result
    }
}
