use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Algorithm;
use crate::backend::{
    Answer, Backend, BackendError, BackendErrorKind, Ban, Call, ExceptedKey, KeyStep, Receipt,
};
use crate::decided_by::DecidedBy;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::key::Key;
use crate::memory::{MemoryBackend, MemorySet};
use crate::set::PolicySet;
use crate::time::{Clock, Timestamp};

/// The local share of a limit: what this process may admit while the shared store cannot decide.
/// The share holds [1/N](crate::Algorithm::share) of every policy, in memory.
///
/// A backend that can fail uses its share at three points:
///
/// * After each decision of the store, it calls [`note`](Self::note), which charges the same units
///   to the share. So a key that has used up this process's part at the store has also used it up
///   in the share.
/// * When the store fails, it calls [`decide`](Self::decide).
/// * Before it settles a receipt at the store, it calls [`settle`](Self::settle). That call settles
///   the charges of the share, and returns those of the store.
///
/// If N processes all decide by their shares, they together admit no more than the limit. The
/// exception is units that a process had admitted beyond its share before the store failed, and
/// limits of fewer units than there are processes, because each share holds at least one. If N is
/// too small, the processes admit too much; if N is too large, too little. The library does not
/// count processes: set N to the number that you run.
///
/// A call with a [reserve](Call::reserving) leaves 1/N of it free, rounded up, whether the share
/// decides the call or notes its charge. A share whose capacity is no larger than that never admits
/// such a call.
///
/// ```
/// use std::num::NonZeroU32;
/// use throttle_core::backend::Call;
/// use throttle_core::{
///     BackendErrorKind, DecidedBy, Gcra, Key, LocalShare, MemoryBackend, Policy, PolicySet, Rate,
/// };
///
/// let set = PolicySet::new(Policy::new(
///     "per-user",
///     Gcra::new(Rate::per_minute(60)).burst(10),
/// )?)?;
/// let five = NonZeroU32::new(5).expect("five is not zero");
/// let share = LocalShare::new(&MemoryBackend::new(), &set, five)?;
///
/// let calls = [Call::from(Key::from("ada"))];
/// let decision = share.decide(&calls, BackendErrorKind::Timeout);
/// assert!(decision.is_admitted());
/// assert_eq!(decision.remaining(), 1); // two are a fifth of ten
/// assert_eq!(
///     decision.decided_by(),
///     DecidedBy::Local(BackendErrorKind::Timeout)
/// );
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct LocalShare {
    memory: MemoryBackend<AnyClock>,
    set: Arc<MemorySet>,
    /// Which policies have a share; the others are open.
    processes: Arc<[Option<NonZeroU32>]>,
}

impl LocalShare {
    /// The share of one of `processes` in every policy.
    ///
    /// Sets that name the same policies should keep their shares in clones of the same `store`: two
    /// stores would give the process two shares. Use the store for nothing else, because it holds
    /// each policy's share, and not the whole limit, under the policy's name. The share reads the
    /// store's clock.
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

    /// Like [`new`](Self::new), with a number of processes for the policy at each index in the set.
    /// A policy with `None` has no share and is open: [`decide`](Self::decide) skips it.
    ///
    /// # Errors
    ///
    /// If the store cannot hold such a set.
    pub fn of_each<C: Clock>(
        store: &MemoryBackend<C>,
        set: &PolicySet,
        processes: impl Fn(usize) -> Option<NonZeroU32>,
    ) -> Result<Self, ConfigError> {
        let (mut set, mut each) = (set.clone(), Vec::new());
        for (index, policy) in set.policies_mut().enumerate() {
            let processes = processes(index);
            if let Some(processes) = processes {
                policy.change_algorithms(|algorithm| algorithm.share(processes));
            }
            each.push(processes);
        }
        let memory = store.on_clock(AnyClock::new(store.clock().clone()));
        let set = Arc::new(memory.prepare(set)?);
        Ok(Self {
            memory,
            set,
            processes: each.into(),
        })
    }

    /// The set, where each policy that has a share has the share's parameters.
    #[must_use]
    pub fn set(&self) -> &PolicySet {
        MemoryBackend::<AnyClock>::set(&self.set)
    }

    /// Decides one request that the backend could not decide, and charges it here. `why` goes into
    /// the [`decided_by`](crate::Status::decided_by) of every policy that applies. Policies without
    /// a share are skipped.
    ///
    /// # Panics
    ///
    /// If [a key is in two calls](PolicySet::check_keys) of one policy, which no backend decides.
    #[must_use]
    pub fn decide(&self, calls: &[Call], why: BackendErrorKind) -> Decision {
        let asked: SmallVec<[Call; 3]> = (calls.iter().enumerate())
            .map(|(index, call)| self.call(index, call))
            .collect();
        let mut decision = self.memory.decide_now(&self.set, &asked);
        decision.set_decided_by(|index| match calls.get(index) {
            Some(Call { key: Some(_), .. }) if self.has_share(index) => DecidedBy::Local(why),
            Some(Call { key: Some(_), .. }) => DecidedBy::Open(why),
            _ => DecidedBy::Store,
        });
        decision
    }

    /// Charges the share with the units that the backend has charged, while units remain. Refusals,
    /// peeks and decisions that the backend did not make change nothing. A call takes little longer
    /// than a decision in memory.
    pub fn note(&self, decision: &Decision, calls: &[Call]) {
        for ((index, status), call) in decision.statuses().iter().enumerate().zip(calls) {
            let cost = status.taken.cost;
            if cost > 0 && status.decided_by == DecidedBy::Store {
                self.memory
                    .charge_at_most(&self.set, index, &self.call(index, call).costing(cost));
            }
        }
    }

    /// Counts a [strike](KeyStep::Strike) of a key about which the share has decided. The backend
    /// does not learn of it.
    #[must_use = "it does nothing unless polled"]
    pub fn strike(&self, policy: usize, key: Key, ban: Ban) -> Answer<Vec<ExceptedKey>> {
        self.memory
            .run(&self.set, policy, KeyStep::Strike(key, ban))
    }

    /// Settles the charges of the share. Returns a receipt of the backend's charges, for the
    /// backend to settle.
    ///
    /// A charge of the backend that was noted in the share is settled in the share as well, if its
    /// window has not ended. This is an estimate, because the share does not store how much of a
    /// noted charge it took. A share that was nearly used up may get back more than it was charged,
    /// but never holds more than its capacity.
    #[must_use = "what the backend took is for the backend to settle"]
    pub fn settle(&self, mut receipt: Receipt) -> Option<Receipt> {
        let local = receipt.take_local();
        if !local.items().is_empty() {
            self.memory.settle_now(&self.set, self.shared(local));
        }
        if receipt.items().is_empty() {
            return None;
        }
        let policies = self.set().policies();
        let noted = receipt.noted(|item| {
            let (policy, processes) = (policies.get(item.policy)?, self.processes(item.policy)?);
            let own = item.own.as_ref().map(|own| own.share(processes).capacity());
            Some(own.unwrap_or_else(|| policy.tier(item.tier).algorithm().capacity()))
        });
        self.memory.settle_now(&self.set, self.shared(noted));
        Some(receipt)
    }

    /// Forgets one key of the policy at an index in the set.
    ///
    /// # Errors
    ///
    /// If the set has [no policy](PolicySet::policy) of that index.
    pub fn reset(&self, policy: usize, key: &Key) -> Result<(), BackendError> {
        let reset = KeyStep::Reset(key.clone());
        self.memory.run_now(&self.set, policy, reset).map(drop)
    }

    /// Forgets every key of every policy whose name starts with `prefix`.
    pub fn reset_all(&self, prefix: &str) {
        drop(self.memory.reset_all(prefix));
    }

    /// The same call for the share.
    fn call(&self, index: usize, call: &Call) -> Call {
        let Some(processes) = self.processes(index) else {
            return Call::SKIP;
        };
        shared_call(call, processes)
    }

    /// The same receipt for the share.
    fn shared(&self, mut receipt: Receipt) -> Receipt {
        for item in &mut receipt.items {
            if let Some(processes) = self.processes(item.policy) {
                share_own(&mut item.own, processes);
            }
        }
        receipt
    }

    fn has_share(&self, index: usize) -> bool {
        self.processes(index).is_some()
    }

    fn processes(&self, index: usize) -> Option<NonZeroU32> {
        self.processes.get(index).copied().flatten()
    }
}

/// A call for the share of one of so many processes.
pub(crate) fn shared_call(call: &Call, processes: NonZeroU32) -> Call {
    let mut call = call.clone();
    share_own(&mut call.own, processes);
    let reserve = call.reserve().div_ceil(processes.get().into());
    call.reserving(reserve)
}

/// Makes parameters of a key's own those of one of so many processes.
pub(crate) fn share_own(own: &mut Option<Arc<Algorithm>>, processes: NonZeroU32) {
    if let Some(own) = own {
        *own = Arc::new(own.share(processes));
    }
}

impl fmt::Debug for LocalShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalShare")
            .field("set", self.set())
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

/// Any clock, so that the share's type does not depend on the store's clock.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Gcra;
    use crate::policy::Policy;
    use crate::rate::Rate;

    #[test]
    fn a_share_shows_its_set_and_its_memory() {
        let policy = Policy::new("per-user", Gcra::new(Rate::per_minute(60))).expect("a policy");
        let set = PolicySet::new(policy).expect("a set");
        let share = LocalShare::new(&MemoryBackend::new(), &set, NonZeroU32::MIN).expect("a share");
        let shown = format!("{share:?}");
        assert!(
            shown.starts_with("LocalShare { set: PolicySet {") && shown.contains("\"per-user\""),
            "{shown}"
        );
        assert!(
            shown.contains(", memory: MemoryBackend { keys: 0, ") && shown.ends_with(", .. }"),
            "{shown}"
        );
    }

    #[test]
    fn reset_of_an_index_without_a_policy_is_an_error() {
        let policy = Policy::new("per-user", Gcra::new(Rate::per_minute(60))).expect("a policy");
        let set = PolicySet::new(policy).expect("a set");
        let share = LocalShare::new(&MemoryBackend::new(), &set, NonZeroU32::MIN).expect("a share");
        let ada = Key::from("ada");
        assert!(share.reset(0, &ada).is_ok());
        let error = share.reset(1, &ada).expect_err("there is one policy");
        assert_eq!(error.kind(), BackendErrorKind::Protocol);
    }

    /// An index after the last policy has no share, whatever the others have.
    #[test]
    fn each_policy_has_a_share_or_is_open() {
        let policy = |name| {
            Policy::new(name, Gcra::new(Rate::per_minute(60)))
                .expect("a policy")
                .into()
        };
        let set = crate::set::PolicyTree::All(["a", "b", "c"].map(policy).to_vec());
        let set = PolicySet::new(set).expect("a set");
        let of = |index: usize| [NonZeroU32::new(2), None, NonZeroU32::new(3)][index];
        let share = LocalShare::of_each(&MemoryBackend::new(), &set, of).expect("a share");
        assert_eq!(
            [0, 1, 2, 3].map(|index| share.has_share(index)),
            [true, false, true, false]
        );
        let capacities = share
            .set()
            .policies()
            .iter()
            .map(|policy| policy.algorithm().capacity());
        assert_eq!(capacities.collect::<Vec<_>>(), [30, 60, 20]);
    }
}
