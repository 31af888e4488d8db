use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use throttle_core::{Call, LimitSet, Policy};

use crate::ask::Ask;
use crate::keyspace::PolicyNames;
use crate::lane::Lane;
use crate::linked::Linked;
use crate::shared::Shared;

/// A set of limits as a [`RedisBackend`](crate::RedisBackend) runs it.
pub struct RedisSet {
    pub(crate) backend: u64,
    pub(crate) set: LimitSet,
    pub(crate) names: Vec<PolicyNames>,
    linked: ArcSwap<Linked>,
    pub(crate) lane: Lane,
    /// Each policy as a set of its own, for keys that are in different slots.
    singles: OnceLock<Vec<Arc<RedisSet>>>,
}

impl RedisSet {
    pub(crate) fn new(shared: &Shared, set: LimitSet) -> Self {
        let names = set.policies().iter().map(|policy| shared.keyspace.policy(policy.name())).collect();
        let linked = ArcSwap::from_pointee(shared.policies.link(&set));
        Self { backend: shared.id, set, names, linked, lane: Lane::default(), singles: OnceLock::new() }
    }

    /// The set with the parameters that are in force now.
    #[inline]
    pub(crate) fn linked(&self, shared: &Shared) -> Arc<Linked> {
        let linked = self.linked.load_full();
        if linked.epoch == shared.policies.epoch() { linked } else { self.link_again(shared) }
    }

    /// Each policy as a set of its own.
    pub(crate) fn singles(&self, shared: &Shared) -> &[Arc<RedisSet>] {
        self.singles.get_or_init(|| {
            let single = |policy: &Policy| LimitSet::new(policy.clone()).map(|set| Arc::new(Self::new(shared, set)));
            let singles = self.set.policies().iter().map(single).collect::<Result<_, _>>();
            singles.expect("a policy of a set is a set")
        })
    }

    #[cold]
    fn link_again(&self, shared: &Shared) -> Arc<Linked> {
        let linked = Arc::new(shared.policies.link(&self.set));
        self.linked.store(Arc::clone(&linked));
        linked
    }

    /// What a request asks, written down.
    pub(crate) fn ask(&self, shared: &Shared, calls: &[Call]) -> Ask {
        let count = self.names.len();
        let calls = calls.iter().chain(std::iter::repeat(&Call::SKIP)).take(count).cloned();
        let calls: SmallVec<[Call; 3]> = calls.collect();
        let named = calls.iter().zip(&self.names).filter_map(|(call, policy)| Some((call.key()?, policy)));
        let names: SmallVec<[Vec<u8>; 3]> = named.map(|(key, policy)| shared.keyspace.name(policy, key)).collect();
        let slot = names.first().map_or(0, |name| shared.slot(name));
        Ask { linked: self.linked(shared), calls, names, slot }
    }
}

impl fmt::Debug for RedisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSet").field("set", &self.set).finish_non_exhaustive()
    }
}
