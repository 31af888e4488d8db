//! The store behind a [`MemoryBackend`](super::MemoryBackend): its shards, and the policies of the
//! sets in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::Entry;
use super::key_hash::{KeyHash, KeyHasher};
use super::policies::{Member, Policies};
use super::shard::{OwnCacheLine, Shard, SharedStore};
use super::slot::Label;
use super::sync::AtomicUsize;
use crate::backend::Receipt;
use crate::decided_by::DecidedBy;
use crate::error::ConfigError;
use crate::key::Key;
use crate::set::PolicySet;
use crate::time::Timestamp;

/// Keys that a shard is meant to hold in a store of few keys.
const FEW_KEYS: usize = 128;
/// Enough shards that threads seldom meet.
const ENOUGH_SHARDS: usize = 1024;
/// Keys that a shard is meant to hold in a store of many: so few that putting all of them in place
/// again takes less than 0.1 ms.
const MANY_KEYS: usize = 1024;
/// Few enough that a store without keys is small, however many it may hold.
const MOST_SHARDS: usize = 16 * 1024;

#[derive(Debug)]
pub(super) struct Store {
    /// Tells the stores of a process apart: a set that one has prepared cannot be used with
    /// another.
    id: u64,
    pub(super) shards: Box<[Shard]>,
    pub(super) key_hasher: KeyHasher,
    pub(super) shared: SharedStore,
    /// The shard that is swept for the next key that finds no room.
    pub(super) next_swept: OwnCacheLine<AtomicUsize>,
}

/// A set of limits as a [`MemoryBackend`](crate::MemoryBackend) runs it.
///
/// ```
/// use throttle_core::{Backend, Gcra, MemoryBackend, Policy, PolicySet, Rate, SystemClock};
///
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_day(9)))?)?;
/// let prepared = MemoryBackend::new().prepare(set.clone())?;
/// assert_eq!(MemoryBackend::<SystemClock>::set(&prepared), &set);
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemorySet {
    store: u64,
    pub(super) set: Arc<PolicySet>,
    pub(super) policies: Arc<[Member]>,
    /// The policy, if the set is one.
    pub(super) alone: Option<Member>,
}

impl Store {
    pub(super) fn new(max_keys: usize) -> Self {
        Self::with_hasher(max_keys, KeyHasher::random())
    }

    pub(super) fn with_hasher(max_keys: usize, key_hasher: KeyHasher) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let shards = max_keys
            .div_ceil(FEW_KEYS)
            .min(ENOUGH_SHARDS)
            .max(max_keys / MANY_KEYS);
        let shards = shards.clamp(1, MOST_SHARDS).next_power_of_two();
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            shards: (0..shards).map(|_| Shard::new(max_keys / shards)).collect(),
            key_hasher,
            shared: SharedStore {
                policies: Policies::new(),
                keys: OwnCacheLine::default(),
                max_keys,
            },
            next_swept: OwnCacheLine::default(),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.shared.keys.0.load(Ordering::Relaxed)
    }

    pub(super) fn max_keys(&self) -> usize {
        self.shared.max_keys
    }

    pub(super) fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        let policies: Arc<[Member]> = set
            .policies()
            .iter()
            .map(|policy| self.shared.policies.add(policy))
            .collect::<Result<_, _>>()?;
        let is_alone = policies.len() == 1 && set.is_plain();
        let alone = policies.first().filter(|_| is_alone).cloned();
        Ok(MemorySet {
            store: self.id,
            set: Arc::new(set),
            policies,
            alone,
        })
    }

    /// # Panics
    ///
    /// If another store prepared the set.
    #[inline]
    pub(super) fn check(&self, set: &MemorySet) {
        assert_eq!(
            set.store, self.id,
            "the set of limits was prepared by another MemoryBackend"
        );
    }

    pub(super) fn settle(&self, set: &MemorySet, receipt: Receipt, now: Timestamp) {
        // A charge that was made elsewhere has nothing to give back here.
        for item in receipt
            .items
            .into_iter()
            .filter(|item| item.decided_by == DecidedBy::Store)
        {
            let Some(policy) = set.policies.get(item.policy) else {
                continue;
            };
            let parameters = policy.of_call(item.tier, item.own.as_ref());
            let hash = self.key_hasher.hash(&item.key);
            let key = Label::new(hash, policy.number());
            let label = if item.overflow {
                Label::overflow(parameters)
            } else {
                key
            };
            Entry::settle(
                parameters,
                label,
                (&item, now),
                &mut self.shard(hash).lock(),
                &self.shared,
            );
        }
    }

    /// Forgets a key. A key that shares an overflow bucket has nothing of its own to forget.
    pub(super) fn reset(&self, set: &MemorySet, policy: usize, key: &Key) {
        let hash = self.key_hasher.hash(key);
        let label = Label::new(hash, set.policies[policy].number());
        self.shard(hash).lock().forget(label, &self.shared);
    }

    pub(super) fn reset_all(&self, prefix: &str) {
        let has_prefix = |policy| self.shared.policies.has_prefix(policy, prefix);
        for shard in &self.shards {
            shard.lock().clear(&self.shared, has_prefix);
        }
    }

    /// A key's shard: its top bits, scaled to the number of shards.
    #[inline]
    pub(super) fn index(&self, hash: KeyHash) -> usize {
        ((u128::from(hash.shard_bits()) * self.shards.len() as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn shard(&self, hash: KeyHash) -> &Shard {
        &self.shards[self.index(hash)]
    }
}
