//! A request as the store sees it: which of its calls have the same key, and the shards of its
//! keys.

use std::ops::Range;

use smallvec::SmallVec;

use super::key_hash::KeyHash;
use super::shard::Shard;
use super::store::{MemorySet, Store};
use super::table::ChangingTable;
use crate::backend::Call;
use crate::time::Timestamp;

/// One request, to be decided by a set.
pub(super) struct Request<'a> {
    pub(super) store: &'a Store,
    pub(super) set: &'a MemorySet,
    /// One for each policy, or fewer.
    pub(super) calls: &'a [Call],
    pub(super) now: Timestamp,
    /// Whether every call is [usual](Call::is_usual).
    pub(super) is_usual: bool,
    pub(super) runs: SmallVec<[Run<'a>; 8]>,
    /// Each shard once, in the order in which every request holds them, so that no two requests
    /// wait for each other.
    pub(super) shards: SmallVec<[HeldShard<'a>; 8]>,
}

/// A shard of the request's keys, and its table while the request keeps others from changing it.
/// One list for both costs fewer instructions than two.
pub(super) struct HeldShard<'a> {
    pub(super) shard: &'a Shard,
    pub(super) table: Option<ChangingTable<'a>>,
}

impl HeldShard<'_> {
    fn order(&self) -> *const Shard {
        self.shard.order()
    }
}

/// Calls that follow each other with the same key.
pub(super) struct Run<'a> {
    pub(super) policies: Range<usize>,
    pub(super) hash: KeyHash,
    pub(super) shard: &'a Shard,
}

impl<'a> Request<'a> {
    #[inline(always)]
    pub(super) fn new(
        store: &'a Store,
        set: &'a MemorySet,
        calls: &'a [Call],
        now: Timestamp,
    ) -> Self {
        let calls = &calls[..calls.len().min(set.policies.len())];
        Self {
            store,
            set,
            calls,
            now,
            is_usual: true,
            runs: SmallVec::new(),
            shards: SmallVec::new(),
        }
    }

    /// Finds the runs and the shards, in place: a request is large to be moved.
    #[inline(always)]
    pub(super) fn locate(&mut self) {
        let mut last = None;
        let mut is_run = false;
        for (policy, call) in self.calls.iter().enumerate() {
            let Some(key) = &call.key else {
                if is_run {
                    self.end_run(policy);
                    is_run = false;
                }
                continue;
            };
            self.is_usual &= call.is_usual();
            // Most calls of a request have the same key, which is hashed once if it is short.
            let number = key.as_number();
            let is_same = number.is_some() && last == number;
            if is_same && is_run {
                continue;
            }
            let (hash, shard) = match self.runs.last() {
                Some(run) if is_same => (run.hash, run.shard),
                _ => {
                    let hash = self.store.key_hasher.hash(key);
                    let shard = self.store.shard(hash);
                    self.shards.push(HeldShard { shard, table: None });
                    (hash, shard)
                }
            };
            if is_run {
                self.end_run(policy);
            }
            self.runs.push(Run {
                policies: policy..self.calls.len(),
                hash,
                shard,
            });
            last = number;
            is_run = true;
        }
        if self.shards.len() > 1 {
            self.shards.sort_unstable_by_key(HeldShard::order);
            self.shards.dedup_by_key(|held| held.order());
        }
    }

    fn end_run(&mut self, policy: usize) {
        if let Some(run) = self.runs.last_mut() {
            run.policies.end = policy;
        }
    }

    /// The index of a run's shard among those of the request.
    pub(super) fn shard(&self, run: &Run<'_>) -> usize {
        self.shards
            .partition_point(|held| held.order() < run.shard.order())
    }
}
