//! The in-process backend: sharded, bounded, swept as it goes.

mod known;
#[cfg(test)]
mod law_12;
mod left;
mod member;
mod registry;
mod seal;
mod shard;
mod store;
mod table;

use std::fmt;
use std::future::{Ready, ready};
use std::sync::Arc;

use crate::backend::{Backend, BackendError, Call, Receipt, RegisteredSet};
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::key::Key;
use crate::set::PolicySet;
use crate::time::{Clock, SystemClock, Timestamp};
use registry::Registered;
use store::Store;

/// Keeps state in this process. It answers at once, and never fails.
///
/// * **Bounded.** At most [`max_keys`](MemoryBuilder::max_keys) keys (a key of two policies counts twice), about 40 bytes
///   each. Sliding windows and logs keep their counters beside that: a log up to 16 bytes a unit of its limit. No thread and no runtime: every new key sweeps a few
///   slots for keys that have become as good as unused.
/// * **No amnesty.** A key that is denied stays denied whatever else arrives. When the store is full of live keys, new
///   ones share overflow buckets, which may refuse early and never over-admit; [`Status::is_overflow`] tells. Of a policy
///   with tiers each tier has such a bucket, and what one of these keys uses counts in all of them, whatever the
///   [`Carry`](crate::Carry) rule.
/// * **Private.** Keys are stored under a secret of this process, permuted or digested, never raw.
/// * **Atomic.** A decision holds the locks of the keys it concerns, in one order, and is done in well under a
///   microsecond. It allocates nothing for a known key of up to three policies with two-word states.
///
/// Clones share the store. State is lost with the process.
///
/// ```
/// use std::sync::Arc;
/// use throttle_core::{Backend, Gcra, Key, PolicySet, MemoryBackend, Policy, Rate};
/// use throttle_core::backend::Call;
///
/// let backend = MemoryBackend::new();
/// let policy = Policy::new("per-user", Gcra::new(Rate::per_minute(100)).burst(1))?;
/// let set = backend.prepare(PolicySet::new(policy)?)?;
///
/// let calls = [Call::from(Key::from("ada"))];
/// assert!(backend.decide_now(&set, &calls).is_admitted());
/// assert!(!backend.decide_now(&set, &calls).is_admitted());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
///
/// [`Status::is_overflow`]: crate::Status::is_overflow
pub struct MemoryBackend<C = SystemClock> {
    store: Arc<Store>,
    clock: C,
}

impl MemoryBackend {
    /// Up to a million keys, on the system clock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Options of a backend.
    pub fn builder() -> MemoryBuilder {
        MemoryBuilder { max_keys: MemoryBuilder::DEFAULT_MAX_KEYS, clock: SystemClock::new() }
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clone> Clone for MemoryBackend<C> {
    fn clone(&self) -> Self {
        Self { store: Arc::clone(&self.store), clock: self.clock.clone() }
    }
}

impl<C> fmt::Debug for MemoryBackend<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MemoryBackend");
        shown.field("keys", &self.store.keys()).field("max_keys", &self.store.max_keys()).finish_non_exhaustive()
    }
}

/// Options of a [`MemoryBackend`].
#[derive(Clone, Debug)]
#[must_use]
pub struct MemoryBuilder<C = SystemClock> {
    max_keys: usize,
    clock: C,
}

impl MemoryBuilder {
    /// One million.
    pub const DEFAULT_MAX_KEYS: usize = 1_000_000;
}

impl<C: Clock> MemoryBuilder<C> {
    /// Most keys to hold, counting each policy's apart; at least 1. Memory grows with use, to about 40 bytes a key.
    /// Beyond it there are at most as many overflow buckets as policies (each tier counts as one) times shards (a power of
    /// two, about one per 128 keys, at most 1,024). An empty store takes about 100 kB. Defaults to 1,000,000.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys.max(1);
        self
    }

    /// Where to read the time. Defaults to [`SystemClock`].
    pub fn clock<D: Clock>(self, clock: D) -> MemoryBuilder<D> {
        MemoryBuilder { max_keys: self.max_keys, clock }
    }

    /// The backend.
    #[must_use]
    pub fn build(self) -> MemoryBackend<C> {
        MemoryBackend { store: Arc::new(Store::new(self.max_keys)), clock: self.clock }
    }
}

/// A set of limits as a [`MemoryBackend`] runs it.
#[derive(Clone, Debug)]
pub struct MemorySet {
    store: u64,
    /// The names are given free with the last clone.
    set: Arc<RegisteredSet>,
    registered: Vec<Registered>,
}

impl<C: Clock> MemoryBackend<C> {
    /// Decides about one request without any async: [`Backend::decide`] answers the same.
    ///
    /// # Panics
    ///
    /// If another store prepared the set.
    #[inline]
    #[must_use]
    pub fn decide_now(&self, prepared: &MemorySet, calls: &[Call]) -> Decision {
        self.check(prepared);
        self.store.decide(prepared.set.set(), &prepared.registered, calls, self.clock.now())
    }

    /// Settles a receipt without any async: [`Backend::settle`] does the same.
    ///
    /// # Panics
    ///
    /// If another store prepared the set.
    pub fn settle_now(&self, prepared: &MemorySet, receipt: Receipt) {
        self.check(prepared);
        self.store.settle(&prepared.registered, receipt, self.clock.now());
    }

    /// Charges a key of the policy at a place in the set, as far as there is something left.
    ///
    /// # Panics
    ///
    /// If another store prepared the set.
    #[inline]
    pub(crate) fn charge_what_is_left(&self, prepared: &MemorySet, policy: usize, key: &Key, cost: u64, tier: u8) {
        self.check(prepared);
        if let Some(registered) = prepared.registered.get(policy) {
            self.store.charge_what_is_left(*registered, key, cost, tier, self.clock.now());
        }
    }

    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    /// The same store, read by another clock.
    pub(crate) fn on_clock<D>(&self, clock: D) -> MemoryBackend<D> {
        MemoryBackend { store: Arc::clone(&self.store), clock }
    }

    #[inline]
    fn check(&self, prepared: &MemorySet) {
        assert_eq!(prepared.store, self.store.id, "the set of limits was prepared by another MemoryBackend");
    }

    /// Keys held now, those not counted that share overflow buckets. Keys that have become as good as unused are counted
    /// until the sweep meets them.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.store.keys()
    }
}

impl<C: Clock> Backend for MemoryBackend<C> {
    type Prepared = MemorySet;
    type Decide = Ready<Result<Decision, BackendError>>;
    type Done = Ready<Result<(), BackendError>>;

    /// # Errors
    ///
    /// If a policy's name is in use with other parameters, which it does not [replace](crate::Policy::replace_existing); or
    /// if this would be the backend's 1,024th policy, or a policy's 129th set of parameters.
    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        let (set, registered) = self.store.prepare(set)?;
        Ok(MemorySet { store: self.store.id, set: Arc::new(set), registered })
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        prepared.set.set()
    }

    #[inline]
    fn in_force(&self, prepared: &Arc<MemorySet>) -> Option<Arc<PolicySet>> {
        prepared.set.replaced()
    }

    #[inline]
    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        ready(Ok(self.decide_now(prepared, calls)))
    }

    #[inline]
    fn decide_at_once(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Option<Decision> {
        Some(self.decide_now(prepared, calls))
    }

    fn now(&self, _: &Arc<MemorySet>, _: &[Call]) -> Option<Timestamp> {
        Some(self.clock.now())
    }

    fn decide_as_of(&self, prepared: &Arc<MemorySet>, calls: &[Call], at: Timestamp) -> Self::Decide {
        self.check(prepared);
        let at = at.min(self.clock.now());
        ready(Ok(self.store.decide(prepared.set.set(), &prepared.registered, calls, at)))
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Self::Done {
        self.settle_now(prepared, receipt);
        ready(Ok(()))
    }

    fn reset(&self, prepared: &Arc<MemorySet>, policy: usize, key: &Key) -> Self::Done {
        self.check(prepared);
        if let Some(registered) = prepared.registered.get(policy) {
            self.store.reset(*registered, key);
        }
        ready(Ok(()))
    }

    /// Goes through the whole store, one short lock at a time: a few milliseconds for a million keys.
    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.store.reset_all(prefix);
        ready(Ok(()))
    }

    fn can_fail(&self) -> bool {
        false
    }
}
