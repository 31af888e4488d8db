use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::Receipt;
use crate::backend::{Backend, BackendErrorKind, Call};
use crate::decided_by::DecidedBy;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::key::Key;
use crate::memory::{MemoryBackend, MemorySet};
use crate::set::PolicySet;
use crate::time::{Clock, Timestamp};

/// What this process may admit by itself while the store that it shares with others cannot decide: every policy at
/// [1/N](crate::Algorithm::share), kept in memory.
///
/// Beside a backend that can fail it is used in three places. [`note`](Self::note) what the backend decided, so that the
/// share is warm: whoever has used up this process's part at the store has used it up here. When the backend fails,
/// [`decide`](Self::decide) here. And [`settle`](Self::settle) here first: what was taken here is settled here, and what
/// was taken at the store is handed back for the store.
///
/// N processes that all decide so admit together no more than the limit does, but for what a process that was already
/// running had let through more than its share: N too small admits too much, N too large too little. Nobody counts the
/// processes; give the number you run.
///
/// ```
/// use std::num::NonZeroU32;
/// use throttle_core::{BackendErrorKind, Gcra, Key, PolicySet, LocalShare, MemoryBackend, Policy, Rate, DecidedBy};
/// use throttle_core::backend::Call;
///
/// let set = PolicySet::new(Policy::new("per-user", Gcra::new(Rate::per_minute(60)).burst(10))?)?;
/// let five = NonZeroU32::new(5).expect("five is not zero");
/// let share = LocalShare::new(&MemoryBackend::new(), &set, five)?;
///
/// let calls = [Call::from(Key::from("ada"))];
/// let decision = share.decide(&calls, BackendErrorKind::Timeout);
/// assert!(decision.is_admitted());
/// assert_eq!(decision.remaining(), 1); // two are a fifth of ten
/// assert_eq!(decision.decided_by(), DecidedBy::Local(BackendErrorKind::Timeout));
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct LocalShare {
    memory: MemoryBackend<AnyClock>,
    set: Arc<MemorySet>,
    /// Which policies have a share; the others are open.
    shared: Arc<[bool]>,
}

impl LocalShare {
    /// The share of one of `processes`, of every policy.
    ///
    /// Sets that name the same policies should have their shares in clones of the same `store`, as they would at the
    /// backend: two stores would give the process two shares. Let nothing else use it: there a policy's name stands for a
    /// part of its limit. Its clock is the share's.
    ///
    /// # Errors
    ///
    /// If the store cannot hold such a set.
    pub fn new<C: Clock>(
        store: &MemoryBackend<C>,
        set: &PolicySet,
        processes: NonZeroU32,
    ) -> Result<Self, ConfigError> {
        Self::of_each(store, set, |_| Some(processes))
    }

    /// The same, with a number of processes for the policy at each place in the set. Those with `None` are open: they
    /// have no share, and [`decide`](Self::decide) skips them.
    ///
    /// # Errors
    ///
    /// If the store cannot hold such a set.
    pub fn of_each<C: Clock>(
        store: &MemoryBackend<C>,
        set: &PolicySet,
        processes: impl Fn(usize) -> Option<NonZeroU32>,
    ) -> Result<Self, ConfigError> {
        let (mut set, mut shared) = (set.clone(), Vec::new());
        for (place, policy) in set.policies_mut().enumerate() {
            let processes = processes(place);
            if let Some(processes) = processes {
                policy.change_algorithms(|algorithm| algorithm.share(processes));
            }
            shared.push(processes.is_some());
        }
        let memory = store.on_clock(AnyClock::new(store.clock().clone()));
        let set = Arc::new(memory.prepare(set)?);
        Ok(Self { memory, set, shared: shared.into() })
    }

    /// The set, each policy that has a share with its share's numbers.
    #[must_use]
    pub fn set(&self) -> &PolicySet {
        MemoryBackend::<AnyClock>::set(&self.set)
    }

    /// Decides about one request that the backend could not decide about, and charges it here. `why` goes into the
    /// [decided_by](crate::Status::decided_by) of every policy that applies. Policies without a share are skipped, as if they did not
    /// apply.
    #[must_use]
    pub fn decide(&self, calls: &[Call], why: BackendErrorKind) -> Decision {
        let asked: SmallVec<[Call; 3]> = (calls.iter().enumerate())
            .map(|(place, call)| if self.has_share(place) { call.clone() } else { Call::SKIP })
            .collect();
        let mut decision = self.memory.decide_now(&self.set, &asked);
        decision.set_decided_by(|place| match calls.get(place) {
            Some(Call { key: Some(_), .. }) if self.has_share(place) => DecidedBy::Local(why),
            Some(Call { key: Some(_), .. }) => DecidedBy::Open(why),
            _ => DecidedBy::Store,
        });
        decision
    }

    /// Charges here too what the backend has charged, as far as there is something left. Refusals, peeks and decisions
    /// that were not made by the backend change nothing. It takes about as long as a decision in memory.
    pub fn note(&self, decision: &Decision, calls: &[Call]) {
        for ((place, status), call) in decision.statuses().iter().enumerate().zip(calls) {
            let (Some(key), cost @ 1..) = (&call.key, status.taken.cost) else { continue };
            if status.decided_by == DecidedBy::Store && self.has_share(place) {
                self.memory.charge_at_most(&self.set, place, key, cost, status.tier);
            }
        }
    }

    /// Settles what was taken here. A receipt of what the backend took is returned, for the backend to settle.
    ///
    /// That one is settled here as well, as far as its charge was noted here and its window is the same. It is an
    /// estimate: how much of a charge found room in the share is not remembered. A share that was full already may get
    /// back more than it was charged, and never holds more than a share.
    #[must_use = "what the backend took is for the backend to settle"]
    pub fn settle(&self, mut receipt: Receipt) -> Option<Receipt> {
        let local = receipt.take_local();
        if !local.items().is_empty() {
            self.memory.settle_now(&self.set, local);
        }
        if receipt.items().is_empty() {
            return None;
        }
        let policies = self.set().policies();
        let noted = receipt.noted(|item| {
            let policy = policies.get(item.policy).filter(|_| self.has_share(item.policy))?;
            Some(policy.tier(item.tier).algorithm().capacity())
        });
        self.memory.settle_now(&self.set, noted);
        Some(receipt)
    }

    /// Forgets one key of the policy at a place in the set.
    pub fn reset(&self, policy: usize, key: &Key) {
        drop(self.memory.reset(&self.set, policy, key));
    }

    /// Forgets every key of every policy whose name starts with `prefix`.
    pub fn reset_all(&self, prefix: &str) {
        drop(self.memory.reset_all(prefix));
    }

    fn has_share(&self, place: usize) -> bool {
        self.shared.get(place).is_some_and(|shared| *shared)
    }
}

impl fmt::Debug for LocalShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalShare").field("set", self.set()).field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// Any clock, so that a share's type does not depend on it: whoever holds one has a type parameter for the backend
/// already.
#[derive(Clone)]
struct AnyClock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl AnyClock {
    fn new(clock: impl Clock) -> Self {
        Self(Arc::new(move || clock.now()))
    }
}

impl Clock for AnyClock {
    fn now(&self) -> Timestamp {
        (self.0)()
    }
}
