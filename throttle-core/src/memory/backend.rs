//! The public face of the in-process store.

use std::future::{Ready, ready};
use std::sync::Arc;
use std::{fmt, io};

use super::snapshot::RestoreError;
use super::store::{MemorySet, Store};
use crate::backend::{
    Answer, Backend, BackendError, BackendErrorKind, Call, ExceptedKey, KeyStep, Receipt,
};
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::set::PolicySet;
use crate::time::{Clock, SystemClock, Timestamp};

/// An in-process backend. Decisions are synchronous and cannot fail.
///
/// * **Bounded.** It holds at most [`max_keys`](MemoryBuilder::max_keys) keys, of about 40 bytes
///   each; a key of two policies counts twice. Sliding windows and logs store their counters in
///   addition; a log takes up to 16 bytes for each unit of its limit. The backend starts no thread.
///   A request with a new key checks a few stored keys instead, and drops those that equal unused
///   ones. The state of a key that has [parameters of its own](crate::backend::Call::under) or an
///   exception takes some 150 bytes more, and its decisions take a lock.
/// * **Filling it resets nothing.** A refused key stays refused until its wait is over, whatever
///   other keys arrive. When the store is full of live keys, new keys share overflow buckets, which
///   may refuse early and never over-admit; see [`Status::is_overflow`]. Keys of the same
///   parameters share a bucket, so while the store is full, a key without a slot of its own has a
///   budget in the bucket of each tier that it changes to. Parameters of keys' own share 64 buckets
///   for each policy: keys that meet in one count as one key that changes its parameters.
/// * **Private.** Keys are stored permuted or digested under a secret of this process, never raw.
/// * **Atomic.** A decision of one policy on a known key takes no lock, if its
///   [state](crate::algorithm) takes 16 bytes. It reads, and writes nothing if it refuses or peeks.
///   A charge is written if no other thread has changed the key's shard meanwhile; otherwise the
///   request holds the shard and is decided again. Any other decision holds its keys' shards, in
///   one order, mostly for well under a microsecond; an insert that makes a shard grow holds it for
///   up to some 0.1 ms. A decision of one policy on a known key allocates nothing, as long as its
///   state takes 16 bytes.
///
/// Clones share the store. State is lost with the process, unless it is [saved](Self::save_every).
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
    /// A store of up to a million keys, on the system clock.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder with the default options.
    pub fn builder() -> MemoryBuilder {
        MemoryBuilder {
            max_keys: MemoryBuilder::DEFAULT_MAX_KEYS,
            clock: SystemClock::new(),
        }
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clone> Clone for MemoryBackend<C> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            clock: self.clock.clone(),
        }
    }
}

impl<C> fmt::Debug for MemoryBackend<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MemoryBackend");
        shown
            .field("keys", &self.store.keys())
            .field("max_keys", &self.store.max_keys())
            .finish_non_exhaustive()
    }
}

/// Options of a [`MemoryBackend`].
///
/// ```
/// use throttle_core::{ManualClock, MemoryBackend};
///
/// let backend = MemoryBackend::builder().max_keys(10_000).clock(ManualClock::default()).build();
/// assert_eq!(backend.keys(), 0);
/// ```
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
    /// Sets the maximum number of keys; a key of two policies counts twice, and 0 counts as 1.
    /// Defaults to 1,000,000.
    ///
    /// Memory grows with use, to about 40 bytes a key; an empty store takes about 200 kB, and each
    /// shard that is used at least 2 kB. When the store is full, it adds overflow buckets: in each
    /// shard at most one for each tier or former limit of a policy, and 64 for parameters of keys'
    /// own. The number of shards is a power of two: about one per 128 keys, at most 1,024.
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys.max(1);
        self
    }

    /// Sets the clock. Defaults to [`SystemClock`].
    pub fn clock<D: Clock>(self, clock: D) -> MemoryBuilder<D> {
        MemoryBuilder {
            max_keys: self.max_keys,
            clock,
        }
    }

    pub(super) fn of_snapshot(self, bytes: &[u8]) -> Result<MemoryBackend<C>, RestoreError> {
        let store = Arc::new(Store::read(bytes, self.max_keys, self.clock.now())?);
        Ok(MemoryBackend {
            store,
            clock: self.clock,
        })
    }

    /// Builds the backend.
    #[must_use]
    pub fn build(self) -> MemoryBackend<C> {
        MemoryBackend {
            store: Arc::new(Store::new(self.max_keys)),
            clock: self.clock,
        }
    }
}

impl<C: Clock> MemoryBackend<C> {
    /// Decides about one request without a future. [`Backend::decide`] returns the same decision.
    ///
    /// # Panics
    ///
    /// If another store prepared the set, or [a key is in two calls](PolicySet::check_keys) of one
    /// policy.
    #[inline(always)]
    #[must_use]
    pub fn decide_now(&self, prepared: &MemorySet, calls: &[Call]) -> Decision {
        self.store.check(prepared);
        self.store.decide(prepared, calls, self.clock.now())
    }

    /// Settles a receipt without a future. [`Backend::settle`] does the same.
    ///
    /// # Panics
    ///
    /// If another store prepared the set.
    pub fn settle_now(&self, prepared: &MemorySet, receipt: Receipt) {
        self.store.check(prepared);
        self.store.settle(prepared, receipt, self.clock.now());
    }

    pub(crate) fn run_now(
        &self,
        prepared: &MemorySet,
        index: usize,
        step: KeyStep,
    ) -> Result<Vec<ExceptedKey>, BackendError> {
        self.store.check(prepared);
        let policy = prepared.set.policy(index)?;
        let now = self.clock.now();
        let error = || BackendError::new(BackendErrorKind::Protocol).uncharged();
        let changed = match step {
            KeyStep::Reset(key) => {
                self.store.reset(prepared, index, &key);
                Ok(None)
            }
            KeyStep::Except(key, exception) => {
                if let Some(exception) = &exception {
                    let checked = exception.check(policy, Some(now));
                    checked.map_err(|wrong| error().with_source(wrong))?;
                }
                self.store
                    .except(prepared, index, &key, exception, now)
                    .map(|()| None)
            }
            KeyStep::Strike(key, ban) => self.store.strike(prepared, index, &key, &ban, now),
            KeyStep::Exceptions { most } => {
                return Ok(self.store.exceptions(prepared, index, most, now));
            }
        };
        let begun = changed.map_err(|why| error().with_source(why))?;
        Ok(begun.into_iter().collect())
    }

    /// Charges the key of a call about the policy at an index in the set, as far as units remain.
    pub(crate) fn charge_at_most(&self, prepared: &MemorySet, policy: usize, call: &Call) {
        self.store.check(prepared);
        self.store
            .charge_at_most(prepared, policy, call, self.clock.now());
    }

    /// Writes all live keys and their states, while the store is used: a shard is held for as long
    /// as it takes to copy its slots, or one state that does not fit a slot. So the snapshot is not
    /// of one instant. A key takes 41 bytes, a sliding window or log 8 or 16 for each counter or
    /// instant more. A million keys are written in some 0.2 s and restored in 0.4 s. Returns the
    /// number of keys, overflow buckets included.
    ///
    /// The snapshot has the secret under which keys are hashed, so protect it as you would protect
    /// the keys.
    ///
    /// # Errors
    ///
    /// If the writer fails.
    pub fn snapshot(&self, writer: &mut impl io::Write) -> io::Result<u64> {
        self.store.write(writer, self.clock.now())
    }

    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    /// The same store, read by another clock.
    pub(crate) fn on_clock<D>(&self, clock: D) -> MemoryBackend<D> {
        MemoryBackend {
            store: Arc::clone(&self.store),
            clock,
        }
    }

    /// The number of keys held now, not counting those that share overflow buckets. A key that
    /// equals an unused one is counted until the sweep reaches it.
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
    /// If this would be the backend's 1,024th policy.
    fn prepare(&self, set: PolicySet) -> Result<MemorySet, ConfigError> {
        self.store.prepare(set)
    }

    fn set(prepared: &MemorySet) -> &PolicySet {
        &prepared.set
    }

    // A decision is much code, so futures share one copy of it.
    fn decide(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Self::Decide {
        self.decide_as_of(prepared, calls, Timestamp::MAX)
    }

    #[inline]
    fn decide_at_once(&self, prepared: &Arc<MemorySet>, calls: &[Call]) -> Option<Decision> {
        self.store.check(prepared);
        self.store.try_decide(prepared, calls, self.clock.now())
    }

    fn now(&self, _: &Arc<MemorySet>, _: &[Call]) -> Option<Timestamp> {
        Some(self.clock.now())
    }

    fn decide_as_of(
        &self,
        prepared: &Arc<MemorySet>,
        calls: &[Call],
        at: Timestamp,
    ) -> Self::Decide {
        self.store.check(prepared);
        let at = at.min(self.clock.now());
        let decision = self.store.try_decide(prepared, calls, at);
        let wrong = || prepared.set.check_keys(calls).expect_err("not decided");
        ready(decision.ok_or_else(wrong))
    }

    fn settle(&self, prepared: &Arc<MemorySet>, receipt: Receipt) -> Self::Done {
        self.settle_now(prepared, receipt);
        ready(Ok(()))
    }

    /// A list names each key by 32 hexadecimal digits of its hash. To list, the step walks the whole
    /// store, one short lock at a time.
    ///
    /// # Errors
    ///
    /// If the set has no policy of that index, if an exception
    /// [cannot be](crate::backend::Exception::check), or if the key of an exception or a strike has
    /// no room: the store is full of live keys, or the clock was set back and the key may have been
    /// used before.
    fn run(
        &self,
        prepared: &Arc<MemorySet>,
        policy: usize,
        step: KeyStep,
    ) -> Answer<Vec<ExceptedKey>> {
        Box::pin(ready(self.run_now(prepared, policy, step)))
    }

    /// Walks the whole store, one short lock at a time: a few milliseconds for a million keys.
    fn reset_all(&self, prefix: &str) -> Self::Done {
        self.store.reset_all(prefix);
        ready(Ok(()))
    }

    fn has_exceptions(&self) -> bool {
        true
    }

    fn keys_held(&self) -> Option<usize> {
        Some(self.keys())
    }

    #[inline]
    fn can_fail(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Gcra;
    use crate::limiter::Limiter;
    use crate::policy::Policy;
    use crate::rate::Rate;
    use crate::time::ManualClock;

    #[test]
    fn a_store_holds_a_million_keys_unless_it_is_told_otherwise() {
        let million = "MemoryBackend { keys: 0, max_keys: 1000000, .. }";
        let policy = Policy::new("p", Gcra::new(Rate::per_day(9))).expect("a policy");
        let limiter = Limiter::in_memory(policy).expect("a set");
        for backend in [
            &MemoryBackend::new(),
            &MemoryBackend::default(),
            limiter.backend(),
        ] {
            assert_eq!(format!("{backend:?}"), million);
        }
        let of_ten = MemoryBackend::builder()
            .max_keys(10)
            .clock(ManualClock::default())
            .build();
        assert_eq!(
            format!("{of_ten:?}"),
            million.replace("1000000", "10"),
            "another clock changes no number"
        );
    }
}
