use std::num::NonZeroU32;
use std::sync::Arc;

use throttle_core::backend::{Answer, Ban, Call, ExceptedKey};
use throttle_core::{
    BackendErrorKind, Clock, ConfigError, DecidedBy, Decision, Key, LocalShare, MemoryBackend,
    PolicySet,
};

use crate::limit::OnError;

/// What this process decides by where the store does not.
///
/// A store that is busy is not broken: then this process decides by limits that are open too, by
/// the whole of each limit. Both shares are kept in one store, so a limit that is in both has one
/// budget.
pub(crate) struct Shares {
    /// Limits that are local, at 1/n; the others are open.
    local: LocalShare,
    /// The same, and limits that are open at 1/1.
    busy: LocalShare,
    /// Whether a limit is local, so that its share is kept warm. Only its own decisions charge the
    /// share of an open limit.
    is_warm: bool,
}

/// The rule of the limit at each index.
type RuleOf<'a> = &'a dyn Fn(usize) -> Option<OnError>;

impl Shares {
    /// The shares of a set; `None` where no limit has a part in them.
    ///
    /// # Errors
    ///
    /// If the store for shares cannot hold them.
    pub(super) fn new(
        store: &LocalStore,
        set: &PolicySet,
        rule: RuleOf<'_>,
    ) -> Result<Option<Self>, ConfigError> {
        let local = |index: usize| rule(index)?.processes();
        let busy = |index: usize| match rule(index)? {
            OnError::Open => Some(NonZeroU32::MIN),
            rule => rule.processes(),
        };
        let indices = 0..set.policies().len();
        if indices.clone().all(|index| busy(index).is_none()) {
            return Ok(None);
        }
        let is_warm = indices.clone().any(|index| local(index).is_some());
        Ok(Some(Self {
            local: store.share(set, &local)?,
            busy: store.share(set, &busy)?,
            is_warm,
        }))
    }

    /// The set, each policy with the parameters of its share.
    pub(super) fn set(&self) -> &PolicySet {
        self.busy.set()
    }

    /// Decides about a request that the store did not decide about. `None` if all limits that apply
    /// are open and the store is broken, so that no share decides.
    pub(super) fn decide(&self, calls: &[Call], why: BackendErrorKind) -> Option<Decision> {
        let share = if why.is_busy() {
            &self.busy
        } else {
            &self.local
        };
        let decision = share.decide(calls, why);
        matches!(decision.decided_by(), DecidedBy::Local(_)).then_some(decision)
    }

    /// Counts a strike of a key about which a share has decided: both are in one store.
    pub(super) fn strike(&self, index: usize, key: Key, ban: Ban) -> Answer<Vec<ExceptedKey>> {
        self.busy.strike(index, key, ban)
    }

    /// Keeps the shares of local limits warm.
    #[inline]
    pub(super) fn note(&self, decision: &Decision, calls: &[Call]) {
        if self.is_warm {
            self.local.note(decision, calls);
        }
    }

    /// The share at which receipts are settled. The store's charges were noted for local limits
    /// only, and all that was charged here is in the same store.
    pub(super) const fn for_receipts(&self) -> &LocalShare {
        &self.local
    }
}

/// Keeps shares, whatever its clock: makes a share of a set, of so many processes for each policy.
#[derive(Clone)]
pub(crate) struct LocalStore(Arc<MakeShare>);

type Processes<'a> = &'a dyn Fn(usize) -> Option<NonZeroU32>;
type MakeShare = dyn Fn(&PolicySet, Processes<'_>) -> Result<LocalShare, ConfigError> + Send + Sync;

impl LocalStore {
    pub(super) fn new<C: Clock>(store: MemoryBackend<C>) -> Self {
        Self(Arc::new(move |set, processes| {
            LocalShare::of_each(&store, set, processes)
        }))
    }

    pub(super) fn share(
        &self,
        set: &PolicySet,
        processes: Processes<'_>,
    ) -> Result<LocalShare, ConfigError> {
        (self.0)(set, processes)
    }
}

impl Default for LocalStore {
    fn default() -> Self {
        Self::new(MemoryBackend::new())
    }
}
