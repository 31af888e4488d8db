//! The policies that a store has seen, and every set of parameters that each of them has had.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::algorithm::{Algorithm, Carry, Writer};
use crate::error::ConfigError;
use crate::policy::Policy;

/// All policies of a store.
///
/// Slots refer to policies and their parameters by number. So the sweep can read any slot, and a changed policy can
/// read the states that its former parameters wrote. Entries are never removed, and reading takes no lock.
#[derive(Debug)]
pub(super) struct Policies {
    entries: GrowOnly<Arc<PolicyVersions>, { Policies::MAX }>,
    adding: Mutex<()>,
}

/// A policy, by its number, with one set of its parameters, by theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) policy: u16,
    pub(super) generation: u8,
}

/// The parameters that a call is decided by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InForce {
    pub(super) version: Version,
    pub(super) algorithm: Algorithm,
    /// How units that other tiers counted are carried over; `None` for a policy without tiers.
    pub(super) carry: Option<Carry>,
    pub(super) tier: u8,
    /// The parameters, if the store has no number for them: see [`Policy::with_own`]. The version is then the policy's
    /// first, and its states are in the side table only.
    pub(super) own: Option<Arc<Algorithm>>,
}

impl InForce {
    /// Whether the parameters belong to no tier.
    pub(super) fn is_own(&self) -> bool {
        self.tier == Policy::OWN
    }

    /// The parameters, as those of a state.
    pub(super) fn writer(&self) -> Writer<'_> {
        match &self.own {
            None => Writer::Numbered(&self.algorithm, self.version.generation),
            Some(own) => Writer::Kept(Arc::clone(own)),
        }
    }
}

/// One policy and its sets of parameters.
#[derive(Debug)]
pub(super) struct PolicyVersions {
    name: String,
    first: InForce,
    later: GrowOnly<InForce, { PolicyVersions::MAX_LATER }>,
    /// The tiers that the policy has had.
    tier_tables: GrowOnly<Box<[InForce]>, { PolicyVersions::MAX_TABLES }>,
    /// The parameters that were prepared last: a generation, or with the bit [`TABLE`] the place of a tier table. They
    /// are in force for every set that names the policy, because two sets of parameters in turn would each forget what
    /// the other counted.
    current: AtomicU8,
    /// Whether some set has had parameters without a number.
    has_own: AtomicBool,
}

const TABLE: u8 = 1 << 7;

/// Parameters that have a number and are not in force yet.
pub(super) struct Added {
    policy: Arc<PolicyVersions>,
    decides_by: DecidesBy,
}

/// The parameters that a set decides by.
#[derive(Clone, Debug)]
enum DecidesBy {
    /// Those that were put in force last; when this is prepared, those of this number.
    InForce(u8),
    /// Those of a number, whatever is in force.
    Kept(u8),
    /// These for each tier, whatever is in force.
    Own(Arc<[InForce]>),
}

impl Added {
    pub(super) fn put_in_force(&self) {
        if let DecidesBy::InForce(number) | DecidesBy::Kept(number) = self.decides_by {
            // Publishes the entry that the number refers to.
            self.policy.current.store(number, Ordering::Release);
        }
    }

    pub(super) fn into_member(self) -> Member {
        Member { policy: self.policy, decides_by: self.decides_by }
    }
}

/// A policy of a set.
#[derive(Clone, Debug)]
pub(super) struct Member {
    policy: Arc<PolicyVersions>,
    decides_by: DecidesBy,
}

impl Member {
    /// The parameters that the set decides by for a tier. A number beyond the last tier stands for the first.
    #[inline]
    pub(super) fn in_force(&self, tier: u8) -> &InForce {
        match &self.decides_by {
            DecidesBy::InForce(_) => self.policy.in_force(tier),
            DecidesBy::Kept(kept) => self.policy.numbered(*kept, tier),
            DecidesBy::Own(tiers) => tiers.get(usize::from(tier)).unwrap_or(&tiers[0]),
        }
    }

    /// Whether it may have parameters without a number, which the fast paths do not know.
    pub(super) fn has_own(&self) -> bool {
        matches!(self.decides_by, DecidesBy::Own(_))
    }

    /// The policy's number in the store.
    pub(super) fn number(&self) -> u16 {
        self.policy.number()
    }
}

impl Policies {
    /// Policies are numbered from one in ten bits of a slot.
    const MAX: usize = (1 << 10) - 1;

    pub(super) fn new() -> Self {
        Self { entries: GrowOnly::new(), adding: Mutex::default() }
    }

    /// Gives a policy's parameters a number.
    pub(super) fn add(&self, policy: &Policy) -> Result<Added, ConfigError> {
        let _adding = self.adding.lock();
        let named = |entry: &Arc<PolicyVersions>| entry.name == policy.name();
        let entry = self.entries.find_or_push(named, |number| Arc::new(PolicyVersions::new(number as u16, policy)));
        let Some((_, entry)) = entry else {
            let rule = "a memory backend holds at most 1023 policies of different names";
            return Err(ConfigError::new("number of policies", Self::MAX + 1, rule).in_policy(policy.name()));
        };
        if policy.is_beside_existing() {
            return Ok(Added { policy: Arc::clone(entry), decides_by: DecidesBy::Own(entry.own(policy)) });
        }
        let current =
            if policy.is_tiered() { TABLE | entry.add_tiers(policy)? } else { entry.add_generation(policy)? };
        let decides_by = if policy.keeps_parameters() { DecidesBy::Kept } else { DecidesBy::InForce };
        Ok(Added { policy: Arc::clone(entry), decides_by: decides_by(current) })
    }

    pub(super) fn get(&self, policy: u16) -> Option<&PolicyVersions> {
        self.entries.get(usize::from(policy)).map(Arc::as_ref)
    }

    /// The parameters that wrote a slot.
    #[inline]
    pub(super) fn algorithm(&self, version: Version) -> Option<&Algorithm> {
        Some(&self.get(version.policy)?.generation(version.generation)?.algorithm)
    }
}

impl PolicyVersions {
    /// Generations are numbered from 0, the first, in seven bits of a slot.
    const MAX_LATER: usize = (1 << 7) - 1;
    const MAX_TABLES: usize = (1 << 7) - 1;

    fn new(number: u16, policy: &Policy) -> Self {
        let version = Version { policy: number, generation: 0 };
        Self {
            name: policy.name().into(),
            first: InForce { version, algorithm: *policy.algorithm(), carry: None, tier: 0, own: None },
            later: GrowOnly::new(),
            tier_tables: GrowOnly::new(),
            current: AtomicU8::new(0),
            has_own: AtomicBool::new(false),
        }
    }

    /// The parameters in force for a tier. A number beyond the last tier stands for the first.
    #[inline]
    fn in_force(&self, tier: u8) -> &InForce {
        self.numbered(self.current.load(Ordering::Acquire), tier)
    }

    /// The parameters of a generation, or for a tier of a table.
    #[inline]
    fn numbered(&self, number: u8, tier: u8) -> &InForce {
        match number {
            0 => &self.first,
            later => self.numbered_later(later, tier),
        }
    }

    #[inline(never)]
    fn numbered_later(&self, number: u8, tier: u8) -> &InForce {
        if number & TABLE == 0 {
            return self.generation(number).unwrap_or(&self.first);
        }
        let tiers = self.table(number);
        tiers.get(usize::from(tier)).or(tiers.first()).unwrap_or(&self.first)
    }

    /// The parameters in force for each tier; those of the policy, if it has no tiers.
    pub(super) fn tiers(&self) -> &[InForce] {
        let current = self.current.load(Ordering::Acquire);
        match self.table(current) {
            [] => std::slice::from_ref(self.numbered(current, 0)),
            tiers => tiers,
        }
    }

    /// Whether keys may have been decided by parameters without a number.
    pub(super) fn has_own(&self) -> bool {
        // Their states are written and read under a lock, which orders this.
        self.has_own.load(Ordering::Relaxed)
    }

    fn table(&self, number: u8) -> &[InForce] {
        let table = if number & TABLE == 0 { None } else { self.tier_tables.get(usize::from(number & !TABLE)) };
        table.map_or(&[], |tiers| tiers)
    }

    /// The policy's number in the store.
    fn number(&self) -> u16 {
        self.first.version.policy
    }

    pub(super) fn has_prefix(&self, prefix: &str) -> bool {
        self.name.starts_with(prefix)
    }

    fn generation(&self, generation: u8) -> Option<&InForce> {
        match usize::from(generation).checked_sub(1) {
            None => Some(&self.first),
            Some(later) => self.later.get(later),
        }
    }

    fn add_generation(&self, policy: &Policy) -> Result<u8, ConfigError> {
        let algorithm = *policy.algorithm();
        if self.first.algorithm == algorithm {
            return Ok(0);
        }
        let number = self.first.version.policy;
        let make = |place: usize| InForce {
            version: Version { policy: number, generation: place as u8 + 1 },
            algorithm,
            carry: None,
            tier: 0,
            own: None,
        };
        match self.later.find_or_push(|later| later.algorithm == algorithm, make) {
            Some((_, later)) => Ok(later.version.generation),
            None => {
                let rule = "a memory backend remembers at most 128 versions of a policy; use a policy per tier instead \
                            of changing one";
                Err(ConfigError::new("versions of the policy", Self::MAX_LATER + 1, rule).in_policy(policy.name()))
            }
        }
    }

    /// The parameters of a policy that stands beside others. They get no number, because numbers are few and never
    /// become free; those that have one keep it.
    fn own(&self, whole: &Policy) -> Arc<[InForce]> {
        self.has_own.store(true, Ordering::Relaxed);
        let carry = whole.is_tiered().then(|| whole.carry());
        let one = |(tier, policy): (usize, &Policy)| {
            let algorithm = *policy.algorithm();
            let generation = self.generation_of(&algorithm);
            let own = if generation.is_none() { Some(Arc::new(algorithm)) } else { None };
            let version = Version { generation: generation.unwrap_or(0), ..self.first.version };
            InForce { version, algorithm, carry, tier: whole.effective_tier(tier as u8), own }
        };
        match whole.is_tiered() {
            true => whole.tiers().map(|(_, tier)| tier).enumerate().map(one).collect(),
            false => [one((0, whole))].into(),
        }
    }

    /// The number of these parameters, if they have one.
    fn generation_of(&self, algorithm: &Algorithm) -> Option<u8> {
        let mut all = (0..=Self::MAX_LATER as u8).map_while(|generation| self.generation(generation));
        Some(all.find(|known| known.algorithm == *algorithm)?.version.generation)
    }

    /// The parameters that stand in the slots of keys whose states are all in the side table.
    pub(super) fn placeholder(&self) -> &InForce {
        &self.first
    }

    fn add_tiers(&self, policy: &Policy) -> Result<u8, ConfigError> {
        let carry = Some(policy.carry());
        let tiers = policy.tiers().enumerate().map(|(tier, (_, policy))| {
            let version = Version { generation: self.add_generation(policy)?, ..self.first.version };
            Ok(InForce { version, algorithm: *policy.algorithm(), carry, tier: tier as u8, own: None })
        });
        let tiers: Box<[InForce]> = tiers.collect::<Result<_, ConfigError>>()?;
        match self.tier_tables.find_or_push(|held| *held == tiers, |_| tiers.clone()) {
            Some((place, _)) => Ok(place as u8),
            None => {
                let rule = "a memory backend remembers at most 127 versions of a policy's tiers";
                let value = Self::MAX_TABLES + 1;
                Err(ConfigError::new("versions of the tiers", value, rule).in_policy(policy.name()))
            }
        }
    }
}

/// A list of at most `MAX` values that only grows. Reading takes no lock; one thread at a time may push.
#[derive(Debug)]
struct GrowOnly<T, const MAX: usize>(OnceLock<Box<[OnceLock<T>]>>);

impl<T, const MAX: usize> GrowOnly<T, MAX> {
    const fn new() -> Self {
        Self(OnceLock::new())
    }

    fn get(&self, place: usize) -> Option<&T> {
        self.0.get()?.get(place)?.get()
    }

    /// Returns the value that `is` finds, or adds one; with its place. `None` if the list is full.
    fn find_or_push(&self, is: impl Fn(&T) -> bool, make: impl FnOnce(usize) -> T) -> Option<(usize, &T)> {
        let slots = self.0.get_or_init(|| (0..MAX).map(|_| OnceLock::new()).collect());
        let place = slots.iter().position(|slot| slot.get().is_none_or(&is))?;
        Some((place, slots[place].get_or_init(|| make(place))))
    }
}
