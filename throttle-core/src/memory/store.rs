use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::member::{Member, Role};
use super::registry::{InForce, Registered, Registry, Version};
use super::seal::{Seal, Sealed};
use super::shard::{Apart, Shard, Shared};
use super::table::Label;
use crate::algorithm::{Standing, Stored, Taken, Transition, Verdict, Visitor, ask_and_take};
use crate::backend::{Call, PolicyRegistry, Receipt, RegisteredSet};
use crate::decided_by::DecidedBy;
use crate::decision::Decision;
use crate::error::ConfigError;
use crate::key::Key;
use crate::set::{self, Members, PolicySet};
use crate::time::Timestamp;

/// Keys a shard is meant to hold. Small, so that growing one takes microseconds.
const KEYS_PER_SHARD: usize = 128;
/// Enough that threads seldom meet, few enough that an empty store is small.
const MAX_SHARDS: usize = 1024;
/// Slots of another shard that are looked at for each key that found no room.
pub(super) const SWEEP_ELSEWHERE: usize = 64;

#[derive(Debug)]
pub(super) struct Store {
    /// Tells stores of a process apart: sets that one has prepared mean nothing to another.
    pub(super) id: u64,
    pub(super) shards: Box<[Lane]>,
    /// How far the bits that choose a shard stand from the lowest.
    shift: u32,
    pub(super) seal: Seal,
    shared: Shared,
    /// The sets in use.
    policies: Mutex<PolicyRegistry>,
    /// The shard that those who find no room sweep next.
    victim: Apart<AtomicUsize>,
}

/// A shard on cache lines of its own, so that threads on different shards do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Lane(pub(super) Mutex<Shard>);

impl Store {
    pub(super) fn new(max_keys: usize) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let shards = max_keys.div_ceil(KEYS_PER_SHARD).clamp(1, MAX_SHARDS).next_power_of_two();
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            shards: (0..shards).map(|_| Lane::default()).collect(),
            shift: u64::BITS - shards.trailing_zeros().max(1),
            seal: Seal::random(),
            shared: Shared { registry: Registry::new(), keys: Apart::default(), max_keys },
            policies: Mutex::default(),
            victim: Apart::default(),
        }
    }

    pub(super) fn keys(&self) -> usize {
        self.shared.keys.0.load(Ordering::Relaxed)
    }

    pub(super) fn max_keys(&self) -> usize {
        self.shared.max_keys
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// A policy as it is in force now, for a tier.
    #[inline]
    pub(super) fn in_force(&self, registered: Registered, tier: u8) -> Option<InForce> {
        self.shared.registry.in_force(registered.policy, tier)
    }

    pub(super) fn prepare(&self, set: PolicySet) -> Result<(RegisteredSet, Vec<Registered>), ConfigError> {
        // One at a time, so that both registries hold the same to be in force.
        let policies = self.policies.lock();
        let versions = set.policies().iter().map(|policy| self.shared.registry.add(policy));
        let versions: Vec<Version> = versions.collect::<Result<_, _>>()?;
        let set = policies.register(set)?;
        versions.iter().for_each(|version| self.shared.registry.put_in_force(*version));
        Ok((set, versions.iter().map(|version| version.registered).collect()))
    }

    #[inline]
    pub(super) fn decide(
        &self,
        set: &PolicySet,
        registered: &[Registered],
        calls: &[Call],
        now: Timestamp,
    ) -> Decision {
        if !registered.iter().all(|registered| self.shared.registry.is_current(*registered)) {
            return self.decide_in_force(set, registered, calls, now);
        }
        match (set.only(), registered, calls) {
            (Some(policy), [registered], [Call { key: Some(key), cost, .. }]) => {
                self.decide_one(Role::plain(*registered, policy.algorithm()), key, *cost, now)
            }
            _ if set.is_plain_all() => self.decide_plain(set, registered, calls, now),
            _ => self.decide_all(set, registered, calls, now),
        }
    }

    /// For a set with tiers, or one of which a policy has been prepared with other parameters since: those are in force.
    #[inline(never)]
    fn decide_in_force(&self, set: &PolicySet, registered: &[Registered], calls: &[Call], now: Timestamp) -> Decision {
        let tiers = calls.iter().map(|call| call.tier).chain(std::iter::repeat(0));
        let in_force = registered.iter().zip(tiers).map(|(registered, tier)| {
            let in_force = self.in_force(*registered, tier);
            in_force.expect("what was registered stays so")
        });
        if let (Some(_), [Call { key: Some(key), cost, .. }]) = (set.only(), calls)
            && let Some(only) = in_force.clone().next()
        {
            let mut decision = self.decide_one(Role::of(&only), key, *cost, now);
            decision.set_tier(only.tier);
            return decision;
        }
        let in_force: SmallVec<[InForce; 3]> = in_force.collect();
        let roles: SmallVec<[Role<'_>; 3]> = in_force.iter().map(Role::of).collect();
        self.decide_roles(set, &roles, calls, now)
    }

    /// What [`decide_all`](Self::decide_all) does, for a set of one.
    #[inline]
    fn decide_one(&self, role: Role<'_>, key: &Key, cost: u64, now: Timestamp) -> Decision {
        let sealed = self.seal.seal(key);
        let label = Label::new(sealed, role.registered.policy);
        role.algorithm.accept(One { store: self, shard: self.shard(sealed), label, role, cost, now })
    }

    /// One policy, and a key that is new or was written by other parameters.
    #[cold]
    fn decide_unknown(&self, mut shard: MutexGuard<'_, Shard>, mut member: Member<'_>) -> Decision {
        let wait = member.ask(&mut shard, &[member.label()], &self.shared);
        let (delay, taken) = match member.cost() {
            cost if wait == 0 && cost > 0 => member.take(&mut shard, &self.shared),
            _ => (0, Taken::default()),
        };
        let standing = member.standing(&shard);
        member.finish(&self.shared);
        drop(shard);
        let overflow = member.is_overflow();
        if overflow {
            self.sweep_elsewhere(member.now());
        }
        Decision::of_one(Verdict { standing, wait, delay }, taken, overflow)
    }

    /// Locks the shards of all keys in ascending order, decides, charges, unlocks.
    #[inline(never)]
    pub(super) fn decide_all(
        &self,
        set: &PolicySet,
        registered: &[Registered],
        calls: &[Call],
        now: Timestamp,
    ) -> Decision {
        let own = registered.iter().zip(set.policies());
        let roles: SmallVec<[Role<'_>; 3]> =
            own.map(|(registered, policy)| Role::plain(*registered, policy.algorithm())).collect();
        self.decide_roles(set, &roles, calls, now)
    }

    #[inline]
    fn decide_roles(&self, set: &PolicySet, roles: &[Role<'_>], calls: &[Call], now: Timestamp) -> Decision {
        let sealed: SmallVec<[Option<(Sealed, usize)>; 4]> = calls
            .iter()
            .take(roles.len())
            .map(|call| {
                let sealed = self.seal.seal(call.key.as_ref()?);
                Some((sealed, self.index(sealed)))
            })
            .collect();
        let mut indices: SmallVec<[usize; 4]> = sealed.iter().flatten().map(|(_, index)| *index).collect();
        indices.sort_unstable();
        indices.dedup();
        let shards: SmallVec<[MutexGuard<'_, Shard>; 4]> = indices.iter().map(|&i| self.shards[i].0.lock()).collect();
        let members = roles.iter().enumerate().map(|(policy, role)| {
            let (sealed, index) = (*sealed.get(policy)?)?;
            let label = Label::new(sealed, role.registered.policy);
            let shard = indices.binary_search(&index).ok()?;
            Some((shard, Member::new(*role, label, calls[policy].cost, now)))
        });
        let members: SmallVec<[_; 3]> = members.collect();
        let labels = members.iter().flatten().map(|(_, member)| member.label()).collect();
        let mut held = Held { shards, members, labels, shared: &self.shared };
        let decision = set::decide(set, &mut held);
        held.members.iter().flatten().for_each(|(_, member)| member.finish(&self.shared));
        drop(held);
        if decision.statuses().iter().any(|status| status.overflow) {
            self.sweep_elsewhere(now);
        }
        decision
    }

    pub(super) fn settle(&self, registered: &[Registered], receipt: Receipt, now: Timestamp) {
        // What was not charged here has nothing to give back here.
        for item in receipt.items.into_iter().filter(|item| item.decided_by == DecidedBy::Store) {
            let in_force = registered.get(item.policy).and_then(|registered| self.in_force(*registered, item.tier));
            let Some(in_force) = in_force else { continue };
            let registered = in_force.registered;
            let sealed = self.seal.seal(&item.key);
            let own = Label::new(sealed, registered.policy);
            let label = if item.overflow { Label::overflow(registered.policy, in_force.tier) } else { own };
            let mut shard = self.shard(sealed).lock();
            Member::new(Role::of(&in_force), label, 0, now).settle(&mut shard, &self.shared, &item);
        }
    }

    /// Forgets a key. One that shares an overflow bucket has nothing of its own to forget.
    pub(super) fn reset(&self, registered: Registered, key: &Key) {
        let sealed = self.seal.seal(key);
        let mut shard = self.shard(sealed).lock();
        shard.forget(Label::new(sealed, registered.policy), &self.shared);
    }

    pub(super) fn reset_all(&self, prefix: &str) {
        for lane in &self.shards {
            lane.0.lock().clear(&self.shared, |policy| self.shared.registry.has_prefix(policy, prefix));
        }
    }

    /// Makes room somewhere, for whoever comes next. It takes no lock that another thread holds.
    #[cold]
    pub(super) fn sweep_elsewhere(&self, now: Timestamp) {
        let victim = self.victim.0.fetch_add(1, Ordering::Relaxed) % self.shards.len();
        if let Some(mut shard) = self.shards[victim].0.try_lock() {
            shard.sweep(now, SWEEP_ELSEWHERE, &[], &self.shared);
        }
    }

    #[inline]
    pub(super) fn index(&self, sealed: Sealed) -> usize {
        // The number of shards is a power of two; the top bits choose one. Where there is one only, the shift leaves a bit.
        ((sealed.lane >> self.shift) as usize) & (self.shards.len() - 1)
    }

    #[inline]
    pub(super) fn shard(&self, sealed: Sealed) -> &Mutex<Shard> {
        &self.shards[self.index(sealed)].0
    }
}

/// One policy's decision about one key, on whatever algorithm.
struct One<'a> {
    store: &'a Store,
    shard: &'a Mutex<Shard>,
    label: Label,
    role: Role<'a>,
    cost: u64,
    now: Timestamp,
}

impl Visitor for One<'_> {
    type Output = Decision;

    #[inline]
    fn visit<A: Transition<State: Stored>>(self, algorithm: &A) -> Decision {
        let Self { store, label, role, cost, now, .. } = self;
        let mut shard = self.shard.lock();
        let known = shard.change_known(label, role.registered.generation, |state: &mut A::State| {
            let outcome = ask_and_take(algorithm, state, now, cost);
            // Where a state of two words stands is worked out from a copy, after the lock is given back.
            let copy = state.words().and_then(A::State::from_words).ok_or_else(|| algorithm.standing(state, now));
            (outcome, copy)
        });
        match known {
            Some((outcome, copy)) => {
                drop(shard);
                let standing = match copy {
                    Ok(state) => algorithm.standing(&state, now),
                    Err(standing) => standing,
                };
                Decision::of_one(outcome.verdict(standing), outcome.taken, false)
            }
            None => store.decide_unknown(shard, Member::new(role, label, cost, now)),
        }
    }
}

/// The locked shards of one request.
struct Held<'a> {
    shards: SmallVec<[MutexGuard<'a, Shard>; 4]>,
    members: SmallVec<[Option<(usize, Member<'a>)>; 3]>,
    /// What this request is about, and must not be swept out while it is decided.
    labels: SmallVec<[Label; 4]>,
    shared: &'a Shared,
}

impl Members for Held<'_> {
    fn ask(&mut self, policy: usize) -> Option<set::Member> {
        let (shard, member) = self.members[policy].as_mut()?;
        let wait = member.ask(&mut self.shards[*shard], &self.labels, self.shared);
        Some(set::Member { cost: member.cost(), wait, tier: member.tier() })
    }

    fn take(&mut self, policy: usize) -> (u64, Taken) {
        match &mut self.members[policy] {
            Some((shard, member)) => member.take(&mut self.shards[*shard], self.shared),
            None => (0, Taken::default()),
        }
    }

    fn standing(&mut self, policy: usize) -> (Standing, bool) {
        match &self.members[policy] {
            Some((shard, member)) => (member.standing(&self.shards[*shard]), member.is_overflow()),
            None => (Standing { remaining: 0, reset: 0, next: 0 }, false),
        }
    }
}
