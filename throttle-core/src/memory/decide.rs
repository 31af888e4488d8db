//! How the store decides a request: on the fast path, or with the entries of all its keys in their
//! locked shards.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::entry::Entry;
use super::fast_path::Asked;
use super::policies::Parameters;
use super::request::{Request, Run};
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
        if let (
            Some(policy),
            [
                call @ Call {
                    key: Some(key),
                    cost,
                    ..
                },
            ],
        ) = (&set.alone, calls)
            && call.is_usual()
        {
            return self.decide_alone(Asked {
                parameters: policy.parameters(call.tier()),
                key,
                cost: *cost,
                now,
            });
        }
        let mut decision = Decision::new();
        // Compiled twice: what only a tree needs would take registers from the loop over the
        // policies.
        if set.set.is_plain() {
            self.decide_set::<true>(set, calls, now, &mut decision);
        } else {
            self.decide_set::<false>(set, calls, now, &mut decision);
        }
        decision
    }

    /// Decides any request: locks the shards of its keys, locates every entry, decides, stores and
    /// unlocks.
    #[inline(never)]
    pub(super) fn decide_located(&self, request: &Request<'_>) -> Decision {
        let Request {
            set, calls, now, ..
        } = *request;
        // First the rests of all shards, then their tables: see `shard`.
        let rests: SmallVec<[_; 4]> = request
            .shards
            .iter()
            .map(|shard| shard.lock_rest())
            .collect();
        let mut shards: SmallVec<[LockedShard<'_>; 4]> = request
            .shards
            .iter()
            .zip(rests)
            .map(|(shard, rest)| shard.lock_with(rest))
            .collect();
        // The keys of this request must not be swept while it is decided.
        let label =
            |(place, run): (usize, &Run<'_>)| Label::new(run.hash, set.policies[place].number());
        let mut kept: SmallVec<[Label; 6]> = request.applying().map(label).collect();
        let deciding = |(place, _): (usize, _)| {
            set.policies[place].deciding(calls[place].tier(), calls[place].own.as_ref())
        };
        let deciding: SmallVec<[Cow<'_, Parameters>; 3]> =
            request.applying().map(deciding).collect();
        let mut entries: SmallVec<[(usize, Entry<'_>); 3]> = SmallVec::new();
        let mut cells: SmallVec<[PolicyCell<'_>; 3]> = SmallVec::new();
        for ((place, run), parameters) in request.applying().zip(&deciding) {
            let (label, cost, shard) = (label((place, run)), calls[place].cost, request.shard(run));
            let (entry, cell) = Entry::locate(
                parameters,
                label,
                (cost, now),
                &mut shards[shard],
                &kept,
                &self.shared,
            );
            let overflow = entry.is_overflow();
            if overflow {
                kept.push(entry.label());
            }
            entries.push((shard, entry));
            let cell = cell.leaving(calls[place].reserve());
            cells.push(PolicyCell {
                place,
                cell,
                cost,
                is_peek: calls[place].is_peek(),
                tier: parameters.tier,
                overflow,
            });
        }
        let decision = set::decide(&set.set, &mut cells);
        for ((shard, entry), PolicyCell { place, cell, .. }) in entries.into_iter().zip(cells) {
            entry.store(
                cell,
                decision.statuses()[place].charged() > 0,
                &mut shards[shard],
                &self.shared,
            );
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
            let (delay, taken) = if wait == 0 && cost > 0 {
                cell.take(cost)
            } else {
                Default::default()
            };
            let outcome = Outcome { wait, delay, taken };
            let decision =
                Decision::of_one(outcome, cell.standing(), asked.parameters.tier, overflow);
            (taken.cost, decision.excepted(cell.excepted()))
        })
    }

    /// Charges the key of a call about one policy, as far as units remain beyond the call's
    /// reserve.
    pub(super) fn charge_at_most(
        &self,
        set: &MemorySet,
        policy: usize,
        call: &Call,
        now: Timestamp,
    ) {
        let (
            Some(policy),
            Call {
                key: Some(key),
                cost,
                ..
            },
        ) = (set.policies.get(policy), call)
        else {
            return;
        };
        let parameters = policy.deciding(call.tier(), call.own.as_ref());
        self.on_entry(
            &Asked {
                parameters: &parameters,
                key,
                cost: *cost,
                now,
            },
            |cell, _| {
                let units = (*cost).min(cell.standing().remaining.saturating_sub(call.reserve()));
                if units > 0 {
                    cell.take(units);
                }
                (units, ())
            },
        );
    }

    /// Runs a step on the cell of one key, which may share an overflow bucket. The step returns the
    /// units that it charged.
    #[inline]
    fn on_entry<R>(
        &self,
        asked: &Asked<'_>,
        step: impl FnOnce(&mut Cell<'_>, bool) -> (u64, R),
    ) -> R {
        let Asked {
            parameters,
            key,
            cost,
            now,
        } = *asked;
        let hash = self.key_hasher.hash(key);
        let label = Label::new(hash, parameters.policy);
        let mut shard = self.shard(hash).lock();
        let (entry, mut cell) = Entry::locate(
            parameters,
            label,
            (cost, now),
            &mut shard,
            &[],
            &self.shared,
        );
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
