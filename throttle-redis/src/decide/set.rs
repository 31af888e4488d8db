use std::fmt;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use throttle_core::backend::Call;
use throttle_core::{Policy, PolicySet, Timestamp};

use super::batch::Batcher;
use super::batchers::Batchers;
use super::shares::Shares;
use crate::keyspace::PolicyNames;
use crate::once_per_minute::OncePerMinute;
use crate::script::prepared_set::PreparedSet;
use crate::script::request::Ask;
use crate::shared_backend::SharedBackend;

/// A set of policies that a [`RedisBackend`](crate::RedisBackend) has prepared, with its scripts
/// and its batch of waiting decisions.
///
/// ```
/// use throttle_core::{Backend, Gcra, Policy, PolicySet, Rate};
/// use throttle_redis::RedisBackend;
///
/// let backend = RedisBackend::new("redis://127.0.0.1:1")?;
/// let per_user = Policy::new("per-user", Gcra::new(Rate::per_minute(100)))?;
/// let prepared = backend.prepare(PolicySet::new(per_user)?)?;
/// assert_eq!(RedisBackend::set(&prepared).policies()[0].name(), "per-user");
/// # Ok::<_, throttle_core::ConfigError>(())
/// ```
pub struct RedisSet {
    pub(crate) backend: u64,
    pub(crate) names: Vec<PolicyNames>,
    pub(crate) prepared: Arc<PreparedSet>,
    /// That an answer of the store is no decision.
    pub(crate) undecided: OncePerMinute,
    /// Batches requests in the first tiers.
    pub(crate) batcher: Batcher,
    /// Batches requests in other tiers, and all requests on a cluster.
    pub(crate) batchers: Batchers,
    /// For decisions that are not batched, or batched by slot.
    pub(crate) shares: Shares,
    /// Each policy as a set of its own, for keys that are in different slots.
    singles: OnceLock<Vec<Arc<RedisSet>>>,
}

impl RedisSet {
    pub(crate) fn new(shared: &SharedBackend, set: PolicySet) -> Self {
        Self {
            backend: shared.id,
            names: set
                .policies()
                .iter()
                .map(|policy| shared.keyspace.policy(policy.name()))
                .collect(),
            prepared: Arc::new(PreparedSet::new(set)),
            undecided: OncePerMinute::default(),
            batcher: Batcher::default(),
            batchers: Batchers::default(),
            shares: Shares::default(),
            singles: OnceLock::new(),
        }
    }

    pub(crate) fn set(&self) -> &PolicySet {
        &self.prepared.set
    }

    /// Each policy as a set of its own.
    pub(crate) fn singles(&self, shared: &SharedBackend) -> &[Arc<RedisSet>] {
        self.singles.get_or_init(|| {
            let set = |policy: &Policy| {
                PolicySet::new(policy.clone()).expect("a policy of a set is a set")
            };
            self.set()
                .policies()
                .iter()
                .map(|policy| Arc::new(Self::new(shared, set(policy))))
                .collect()
        })
    }

    /// The question of a request: its calls, with the names of their keys on the server.
    pub(crate) fn ask(&self, shared: &SharedBackend, calls: &[Call]) -> Arc<Ask> {
        self.ask_as_of(shared, calls, None)
    }

    /// The same, to be decided as of an instant that has passed.
    pub(crate) fn ask_as_of(
        &self,
        shared: &SharedBackend,
        calls: &[Call],
        as_of: Option<Timestamp>,
    ) -> Arc<Ask> {
        let count = self.names.len();
        let calls = calls
            .iter()
            .chain(std::iter::repeat(&Call::SKIP))
            .take(count)
            .cloned();
        let calls: SmallVec<[Call; 3]> = calls.collect();
        let applying = calls
            .iter()
            .zip(&self.names)
            .filter_map(|(call, policy)| Some((call.key()?, policy)));
        let names: SmallVec<[Vec<u8>; 3]> = applying
            .map(|(key, policy)| shared.keyspace.name(policy, key))
            .collect();
        let slot = names.first().map_or(0, |name| shared.slot(name));
        Arc::new(Ask {
            prepared: Arc::clone(&self.prepared),
            calls,
            names,
            slot,
            as_of,
        })
    }
}

impl fmt::Debug for RedisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSet")
            .field("set", self.set())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Backend, ConfigError, Gcra, Key, PolicyTree, Rate};

    use super::*;
    use crate::RedisBackend;
    use crate::link::in_flight_limit::InFlightLimit;

    fn backend() -> RedisBackend {
        RedisBackend::new("redis://127.0.0.1:1").expect("a URL")
    }

    fn limit(name: &str, count: u64) -> Policy {
        Policy::new(name, Gcra::new(Rate::per_minute(count))).expect("a policy")
    }

    fn prepare(backend: &RedisBackend, policy: Policy) -> Result<Arc<RedisSet>, ConfigError> {
        backend.prepare(PolicySet::new(policy)?).map(Arc::new)
    }

    #[test]
    fn a_name_may_stand_for_several_limits() {
        let backend = backend();
        let (_five, _hundred) = (
            prepare(&backend, limit("p", 5)),
            prepare(&backend, limit("p", 100)),
        );
        assert!(prepare(&backend, limit("p", 7)).is_ok());
    }

    /// Half of the work that the server may have, so that no set takes all of it.
    #[tokio::test]
    async fn a_set_has_as_many_places_as_the_queue_and_half_of_the_room() {
        let single = crate::Single::new("redis://127.0.0.1:1").expect("a URL");
        let backend = RedisBackend::builder(single)
            .queue(7)
            .build()
            .expect("valid options");
        let set = prepare(&backend, limit("p", 5)).expect("a set");
        let link = backend.shared.links.of(0);
        let share = set.shares.of(&link, backend.shared.options.queue);
        assert_eq!(share.waiting.available_permits(), 7);
        let permits = |room: &InFlightLimit| room.take_now(u32::MAX).map(|held| held.num_permits());
        assert_eq!(
            (permits(&link.room), permits(&share.room)),
            (Some(6_250), Some(3_125))
        );
    }

    #[test]
    fn a_request_has_one_call_for_each_policy() {
        let backend = backend();
        let policies = ["a", "b"].map(|name| limit(name, 5).into()).to_vec();
        let set = RedisSet::new(
            &backend.shared,
            PolicySet::new(PolicyTree::All(policies)).expect("a set"),
        );
        let call = || Call::from(Key::from("ada"));
        for (calls, asked) in [
            (vec![], vec![false, false]),
            (vec![call()], vec![true, false]),
            (vec![Call::SKIP, call()], vec![false, true]),
            (vec![call(); 3], vec![true, true]),
        ] {
            let ask = set.ask(&backend.shared, &calls);
            assert_eq!(
                ask.calls
                    .iter()
                    .map(|call| call.key().is_some())
                    .collect::<Vec<_>>(),
                asked
            );
            assert_eq!(
                ask.names.len(),
                asked.iter().filter(|asked| **asked).count()
            );
            assert!(ask.as_of.is_none());
        }
    }

    #[test]
    fn a_set_shows_its_policies() {
        let set = prepare(&backend(), limit("per-user", 5)).expect("a set");
        let shown = format!("{set:?}");
        assert!(
            shown.starts_with("RedisSet { set: PolicySet {") && shown.ends_with(", .. }"),
            "{shown}"
        );
        assert!(shown.contains("\"per-user\""), "{shown}");
    }
}
