use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use throttle_core::backend::{Call, RegisteredSet};
use throttle_core::{ConfigError, Policy, PolicySet};
use tokio::sync::SemaphorePermit;

use super::batch::Batcher;
use super::by_slot::SlotBatchers;
use crate::keyspace::{Keyspace, PolicyNames};
use crate::link::call_error::CallError;
use crate::places::{Places, is_beside};
use crate::script::prepared::Prepared;
use crate::script::request::Ask;
use crate::seldom::Line;
use crate::shared::Shared;

/// A set of policies that a [`RedisBackend`](crate::RedisBackend) has prepared, with its scripts and its batch of
/// waiting decisions.
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
    pub(crate) set: PolicySet,
    /// Keeps the names in use; `None` for a part of another set, and for a set that is only inspected.
    registered: Option<RegisteredSet>,
    /// The tiers that this set's requests are in.
    tiers: Tiers,
    /// The sets for requests in other tiers, each made when its first request arrives.
    others: Mutex<HashMap<Tiers, Arc<RedisSet>>>,
    pub(crate) names: Vec<PolicyNames>,
    /// That an answer of the store is no decision.
    pub(crate) undecided: Line,
    prepared: ArcSwap<Prepared>,
    pub(crate) batcher: Batcher,
    /// Takes the place of the batcher on a cluster.
    pub(crate) slot_batchers: SlotBatchers,
    pub(crate) places: Arc<Places>,
    /// Whether the set stands beside others of its names. Such sets may be many, with a batcher for each.
    is_beside: bool,
    /// Each policy as a set of its own, for keys that are in different slots.
    singles: OnceLock<Vec<Arc<RedisSet>>>,
}

/// One number for each policy; empty for the first tier of each.
type Tiers = SmallVec<[u8; 8]>;

impl RedisSet {
    pub(crate) fn new(shared: &Shared, set: PolicySet) -> Self {
        let places = shared.places.of(&shared.link, shared.options.queue, &set);
        Self::in_tiers(shared, set, Tiers::new(), places)
    }

    /// Returns a set whose names are in use as long as it exists.
    pub(crate) fn registered(shared: &Shared, set: PolicySet) -> Result<Self, ConfigError> {
        let registered = shared.policies.register(set)?;
        let set = Self::new(shared, registered.set().clone());
        Ok(Self { registered: Some(registered), ..set })
    }

    /// The set in force, if another one has replaced the parameters of this one.
    #[inline]
    pub(crate) fn replaced(&self) -> Option<Arc<PolicySet>> {
        self.registered.as_ref()?.replaced()
    }

    fn in_tiers(shared: &Shared, set: PolicySet, tiers: Tiers, places: Arc<Places>) -> Self {
        let names = set.policies().iter().map(|policy| shared.keyspace.policy(policy.name())).collect();
        let prepared = ArcSwap::from_pointee(in_force(shared, &set, &tiers));
        let (batcher, slot_batchers) = (Batcher::default(), SlotBatchers::default());
        let (others, singles) = (Mutex::default(), OnceLock::new());
        let (backend, is_beside) = (shared.id, is_beside(&set));
        Self {
            backend,
            set,
            registered: None,
            tiers,
            others,
            names,
            undecided: Line::default(),
            prepared,
            batcher,
            slot_batchers,
            places,
            is_beside,
            singles,
        }
    }

    /// The set for requests in the tiers that `tier_of` returns for each policy's place: itself, unless it has tiers.
    #[inline]
    pub(crate) fn for_tiers<'a>(
        self: &'a Arc<Self>,
        shared: &Shared,
        tier_of: impl Fn(usize) -> u8,
    ) -> Cow<'a, Arc<Self>> {
        if self.set.is_tiered() { self.for_these(shared, tier_of) } else { Cow::Borrowed(self) }
    }

    /// A place for a batched decision, where the queue of the set's batcher is not bound enough.
    ///
    /// # Errors
    ///
    /// If all places of the sets beside each other are taken.
    #[inline]
    pub(crate) fn place_beside(&self) -> Result<Option<SemaphorePermit<'_>>, CallError> {
        if self.is_beside { self.places.take().map(Some) } else { Ok(None) }
    }

    fn for_these<'a>(self: &'a Arc<Self>, shared: &Shared, tier_of: impl Fn(usize) -> u8) -> Cow<'a, Arc<Self>> {
        let tier = |(place, policy): (usize, &Policy)| {
            let tier = tier_of(place);
            // An unknown number stands for the first tier, and so does that of own numbers, which are in a set's only
            // one.
            if usize::from(tier) < policy.tiers().count() { tier } else { 0 }
        };
        let tiers: Tiers = self.set.policies().iter().enumerate().map(tier).collect();
        if tiers.iter().all(|tier| *tier == 0) {
            return Cow::Borrowed(self);
        }
        let mut others = self.others.lock();
        if let Some(other) = others.get(&tiers) {
            return Cow::Owned(Arc::clone(other));
        }
        let places = Arc::clone(&self.places);
        let other = Arc::new(Self::in_tiers(shared, self.set.clone(), tiers.clone(), places));
        others.insert(tiers, Arc::clone(&other));
        Cow::Owned(other)
    }

    /// The set with the parameters that are in force now.
    #[inline]
    pub(crate) fn prepared(&self, shared: &Shared) -> Arc<Prepared> {
        let prepared = self.prepared.load_full();
        if prepared.epoch == shared.policies.epoch() { prepared } else { self.prepare_again(shared) }
    }

    /// Each policy as a set of its own.
    pub(crate) fn singles(&self, shared: &Shared) -> &[Arc<RedisSet>] {
        self.singles.get_or_init(|| {
            let tiers = self.tiers.iter().copied().chain(std::iter::repeat(0));
            let single = |(policy, tier): (&Policy, u8)| {
                let set = PolicySet::new(policy.clone())?;
                let places = shared.places.of(&shared.link, shared.options.queue, &set);
                Ok::<_, ConfigError>(Arc::new(Self::in_tiers(shared, set, Tiers::from_slice(&[tier]), places)))
            };
            let singles = self.set.policies().iter().zip(tiers).map(single).collect::<Result<_, _>>();
            singles.expect("a policy of a set is a set")
        })
    }

    #[cold]
    fn prepare_again(&self, shared: &Shared) -> Arc<Prepared> {
        let prepared = Arc::new(in_force(shared, &self.set, &self.tiers));
        self.prepared.store(Arc::clone(&prepared));
        prepared
    }

    /// The question of a request: its calls, with the names of their keys on the server.
    pub(crate) fn ask(&self, shared: &Shared, calls: &[Call]) -> Ask {
        let count = self.names.len();
        let calls = calls.iter().chain(std::iter::repeat(&Call::SKIP)).take(count).cloned();
        let calls: SmallVec<[Call; 3]> = calls.collect();
        let names = self.names_of(shared, &calls);
        let slot = names.first().map_or(0, |name| shared.slot(name));
        Ask { prepared: self.prepared(shared), calls, names, slot, as_of: None }
    }

    fn names_of(&self, shared: &Shared, calls: &[Call]) -> SmallVec<[Vec<u8>; 3]> {
        let mut names: SmallVec<[Vec<u8>; 3]> = SmallVec::new();
        let mut last = None;
        for (call, policy) in calls.iter().zip(&self.names) {
            let Some(key) = call.key() else { continue };
            let name = match (last, names.last()) {
                // Often several policies limit the same key.
                (Some((same, other)), Some(name)) if same == key => Keyspace::same_key(policy, other, name),
                _ => shared.keyspace.name(policy, key),
            };
            names.push(name);
            last = Some((key, policy));
        }
        names
    }
}

/// The set with the parameters in force, prepared for requests in these tiers.
fn in_force(shared: &Shared, set: &PolicySet, tiers: &[u8]) -> Prepared {
    // Read first: a set that is newer than its epoch is only prepared again.
    let epoch = shared.policies.epoch();
    Prepared::new(epoch, shared.policies.in_force(set), tiers)
}

impl fmt::Debug for RedisSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSet").field("set", &self.set).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use throttle_core::{Backend, Carry, Gcra, Key, PolicyTree, Rate};

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
    fn a_name_stands_for_one_limit_of_a_backend_for_as_long_as_a_set_has_it() {
        let backend = backend();
        let five = prepare(&backend, limit("p", 5)).expect("the first");
        assert_eq!(prepare(&backend, limit("p", 100)).expect_err("another limit").policy(), Some("p"));
        assert!(backend.in_force(&five).is_none());
        let hundred = prepare(&backend, limit("p", 100).replace_existing()).expect("it replaces the first");
        let in_force = backend.in_force(&five).expect("its parameters were replaced");
        assert_eq!(in_force.policies()[0].algorithm().capacity(), 100);
        assert!(backend.in_force(&hundred).is_none());
        drop((five, hundred));
        assert!(prepare(&backend, limit("p", 7)).is_ok());
    }

    #[test]
    fn a_set_is_prepared_once_for_each_change_of_parameters() {
        let backend = backend();
        let five = prepare(&backend, limit("p", 5)).expect("a set");
        let before = five.prepared(&backend.shared);
        let _other = prepare(&backend, limit("other", 9)).expect("a set");
        assert!(Arc::ptr_eq(&before, &five.prepared(&backend.shared)), "nothing has changed");
        let _hundred = prepare(&backend, limit("p", 100).replace_existing()).expect("a set");
        let after = five.prepared(&backend.shared);
        assert_eq!(after.set.policies()[0].algorithm().capacity(), 100);
        assert!(Arc::ptr_eq(&after, &five.prepared(&backend.shared)));
    }

    #[test]
    fn policies_that_limit_the_same_key_name_it_as_they_would_alone() {
        let single = || crate::Single::new("redis://127.0.0.1:1").expect("a URL");
        for builder in [
            RedisBackend::builder(single()),
            RedisBackend::builder(single()).per_key_slot(),
            RedisBackend::builder(single()).readable_keys().per_key_slot(),
        ] {
            let backend = builder.build().expect("valid options");
            let policies = ["p", "longer", "q", "r"].map(|name| limit(name, 5).into()).to_vec();
            let set = RedisSet::new(&backend.shared, PolicySet::new(PolicyTree::All(policies)).expect("a set"));
            let keys = ["ada", "ada", "bob", "ada"].map(Key::from);
            let names = set.ask(&backend.shared, &keys.each_ref().map(|key| Call::from(key.clone()))).names;
            let alone = keys.iter().zip(&set.names).map(|(key, policy)| backend.shared.keyspace.name(policy, key));
            assert_eq!(names.to_vec(), alone.collect::<Vec<_>>());
        }
    }

    #[test]
    fn requests_in_one_tier_share_a_set() {
        let backend = backend();
        let tiers = [("low", Gcra::new(Rate::per_minute(5))), ("high", Gcra::new(Rate::per_minute(50)))];
        let set = prepare(&backend, Policy::tiered("p", tiers, Carry::Keep).expect("tiers")).expect("a set");
        let in_tier = |tier| set.for_tiers(&backend.shared, |_| tier).into_owned();
        assert!(Arc::ptr_eq(&in_tier(1), &in_tier(1)));
        assert!(!Arc::ptr_eq(&in_tier(1), &set));
        for first in [0, 9] {
            assert!(Arc::ptr_eq(&in_tier(first), &set), "{first} stands for the first tier");
        }
        let changed = [("low", Gcra::new(Rate::per_minute(6))), ("high", Gcra::new(Rate::per_minute(60)))];
        let changed = Policy::tiered("p", changed, Carry::Keep).expect("tiers").replace_existing();
        let _changed = prepare(&backend, changed.clone()).expect("a set");
        let header = |tier: u8| [changed.tier(tier).algorithm().tag(), vec![b'0']].concat();
        for tier in [0, 1] {
            assert_eq!(in_tier(tier).prepared(&backend.shared).headers, [header(tier)], "tier {tier}");
        }
    }

    /// One set for each customer with numbers of its own must not have a queue for each.
    #[test]
    fn sets_of_own_numbers_share_the_places_of_the_set_beside_which_they_stand() {
        let backend = backend();
        let plan = Policy::tiered("p", [("low", Gcra::new(Rate::per_minute(5)))], Carry::Keep).expect("a tier");
        let own = |count| prepare(&backend, plan.with_own(Gcra::new(Rate::per_minute(count))).expect("a rate"));
        let base = prepare(&backend, plan.clone()).expect("a set");
        let [seven, eight] = [7, 8].map(|count| own(count).expect("a set"));
        let (other, layer) = (prepare(&backend, limit("q", 5)).expect("a set"), prepare(&backend, plan.clone()));
        let layer = layer.expect("the same limit in another layer");
        let shares = |one: &RedisSet, with: &RedisSet| Arc::ptr_eq(&one.places, &with.places);
        assert!(shares(&seven, &eight) && shares(&seven, &base));
        assert!(!shares(&other, &base) && !shares(&layer, &base));
        assert!(shares(&seven.singles(&backend.shared)[0], &eight.singles(&backend.shared)[0]));
        assert_eq!(backend.shared.places.len(), 2);
        drop((base, layer, seven, eight, other));
        let _next = own(9).expect("a set");
        assert_eq!(backend.shared.places.len(), 1, "those of sets that are gone are forgotten");
    }

    /// A receipt names the tier of own numbers, and a call may name any.
    #[test]
    fn a_set_of_own_numbers_has_no_other_sets() {
        let backend = backend();
        let tiers = [("low", Gcra::new(Rate::per_minute(5))), ("high", Gcra::new(Rate::per_minute(50)))];
        let plan = Policy::tiered("p", tiers, Carry::Keep).expect("tiers");
        let own = plan.with_own(Gcra::new(Rate::per_minute(7))).expect("a rate");
        let own = prepare(&backend, own).expect("a set");
        for tier in [0, 1, Policy::OWN] {
            assert!(Arc::ptr_eq(&own.for_tiers(&backend.shared, |_| tier), &own), "{tier}");
        }
        assert!(own.others.lock().is_empty());
    }

    /// Half of the work that the server may have, so that no set takes all of it.
    #[tokio::test]
    async fn a_set_has_as_many_places_as_the_queue_and_half_of_the_room() {
        let single = crate::Single::new("redis://127.0.0.1:1").expect("a URL");
        let backend = RedisBackend::builder(single).queue(7).build().expect("valid options");
        let set = prepare(&backend, limit("p", 5)).expect("a set");
        assert_eq!(set.places.waiting.available_permits(), 7);
        let permits = |room: &InFlightLimit| room.take_now(0, u32::MAX).map(|held| held.num_permits());
        assert_eq!((permits(&backend.shared.link.room), permits(&set.places.room)), (Some(6_250), Some(3_125)));
    }

    #[test]
    fn a_request_has_one_call_for_each_policy() {
        let backend = backend();
        let policies = ["a", "b"].map(|name| limit(name, 5).into()).to_vec();
        let set = RedisSet::new(&backend.shared, PolicySet::new(PolicyTree::All(policies)).expect("a set"));
        let call = || Call::from(Key::from("ada"));
        for (calls, asked) in [
            (vec![], vec![false, false]),
            (vec![call()], vec![true, false]),
            (vec![Call::SKIP, call()], vec![false, true]),
            (vec![call(); 3], vec![true, true]),
        ] {
            let ask = set.ask(&backend.shared, &calls);
            assert_eq!(ask.calls.iter().map(|call| call.key().is_some()).collect::<Vec<_>>(), asked);
            assert_eq!(ask.names.len(), asked.iter().filter(|asked| **asked).count());
            assert!(ask.as_of.is_none());
        }
    }

    #[test]
    fn a_set_shows_its_policies() {
        let set = prepare(&backend(), limit("per-user", 5)).expect("a set");
        let shown = format!("{set:?}");
        assert!(shown.starts_with("RedisSet { set: PolicySet {") && shown.ends_with(", .. }"), "{shown}");
        assert!(shown.contains("\"per-user\""), "{shown}");
    }
}
