use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::RwLock;

use crate::algorithm::{Algorithm, Carry};
use crate::error::ConfigError;
use crate::policy::Policy;

/// The policies a store has seen, and every set of parameters each of them has had.
///
/// Slots refer to them by number, so the sweep can tell when a slot is stale whoever wrote it, and a changed policy can
/// read what the old one left. Entries are never removed; reading the first parameters of a policy takes no lock.
#[derive(Debug)]
pub(super) struct Registry {
    entries: Box<[OnceLock<Box<Entry>>]>,
    writing: parking_lot::Mutex<usize>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    first: Algorithm,
    later: RwLock<Vec<Algorithm>>,
    /// The parameters that were prepared last. They are in force for every set that names the policy: two sets of
    /// parameters in turn would each forget what the other counted. With the top bit set it is the place of a table:
    /// the policy has tiers.
    current: AtomicU8,
    /// The tables of tiers it has had. Reading one takes no lock.
    tables: OnceLock<Box<[OnceLock<Table>]>>,
}

/// The tiers of a policy, all in force side by side.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    each: Box<[(u8, Algorithm)]>,
    carry: Carry,
}

/// What a call is decided by.
#[derive(Clone, Copy, Debug)]
pub(super) struct InForce {
    pub(super) registered: Registered,
    pub(super) algorithm: Algorithm,
    /// How what other parameters wrote is carried over, where the policy has tiers.
    pub(super) carry: Option<Carry>,
    pub(super) tier: u8,
}

/// In what is current: a table's place follows.
const TABLE: u8 = 1 << 7;
/// The generation that a set with tiers is registered by. It is never current, so that such sets are told from others by
/// what is asked of all of them anyway.
const TIERED: u8 = u8::MAX;

/// A policy with one set of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    pub(super) policy: u16,
    pub(super) generation: u8,
}

/// A policy's parameters, ready to be put in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) registered: Registered,
    current: u8,
}

impl Registry {
    /// Policies are numbered from one in ten bits of a slot.
    pub(super) const MAX_POLICIES: usize = (1 << 10) - 1;
    /// Generations are numbered in seven.
    const MAX_GENERATIONS: usize = 1 << 7;
    /// Tables of one policy.
    const MAX_TABLES: usize = (1 << 7) - 1;

    pub(super) fn new() -> Self {
        Self { entries: (0..Self::MAX_POLICIES).map(|_| OnceLock::new()).collect(), writing: Default::default() }
    }

    /// Gives a policy's parameters a number. They are not in force yet.
    pub(super) fn add(&self, policy: &Policy) -> Result<Version, ConfigError> {
        let mut count = self.writing.lock();
        let known =
            self.entries[..*count].iter().position(|entry| entry.get().is_some_and(|e| e.name == policy.name()));
        let number = match known {
            Some(number) => number,
            None if *count < Self::MAX_POLICIES => {
                let entry = Entry {
                    name: policy.name().into(),
                    first: *policy.algorithm(),
                    later: RwLock::default(),
                    current: AtomicU8::new(0),
                    tables: OnceLock::new(),
                };
                // The slot is free: only this function fills slots, and it holds the lock.
                let _ = self.entries[*count].set(Box::new(entry));
                *count += 1;
                *count - 1
            }
            None => {
                let rule = "a memory backend holds at most 1023 policies of different names";
                return Err(ConfigError::new("number of policies", *count + 1, rule).in_policy(policy.name()));
            }
        };
        let (current, generation) = if policy.is_tiered() {
            (TABLE | self.table(number, policy)?, TIERED)
        } else {
            let generation = self.generation(number, policy)?;
            (generation, generation)
        };
        Ok(Version { registered: Registered { policy: number as u16, generation }, current })
    }

    pub(super) fn put_in_force(&self, version: Version) {
        if let Some(entry) = self.entries[usize::from(version.registered.policy)].get() {
            // What it points at was written before.
            entry.current.store(version.current, Ordering::Release);
        }
    }

    /// The place of a policy's table of tiers. Only who holds the lock comes here.
    fn table(&self, number: usize, policy: &Policy) -> Result<u8, ConfigError> {
        let each = policy.tiers().map(|(_, tier)| Ok((self.generation(number, tier)?, *tier.algorithm())));
        let table = Table { each: each.collect::<Result<_, ConfigError>>()?, carry: policy.carry() };
        let tables = self.entries[number]
            .get()
            .map(|entry| entry.tables.get_or_init(|| (0..Self::MAX_TABLES).map(|_| OnceLock::new()).collect()));
        let mut tables = tables.into_iter().flatten();
        let place = tables.position(|held| held.get().is_none_or(|held| *held == table));
        let Some(place) = place else {
            let rule = "a memory backend remembers at most 127 versions of a policy's tiers";
            return Err(ConfigError::new("versions of the tiers", Self::MAX_TABLES + 1, rule).in_policy(policy.name()));
        };
        if let Some(tables) = self.entries[number].get().and_then(|entry| entry.tables.get()) {
            // It is this one already, or free.
            let _ = tables[place].set(table);
        }
        Ok(place as u8)
    }

    fn generation(&self, number: usize, policy: &Policy) -> Result<u8, ConfigError> {
        let Some(entry) = self.entries[number].get().filter(|entry| entry.first != *policy.algorithm()) else {
            return Ok(0);
        };
        let mut later = entry.later.write();
        let known = later.iter().position(|algorithm| algorithm == policy.algorithm());
        let index = known.unwrap_or(later.len());
        if index + 1 >= Self::MAX_GENERATIONS {
            let rule = "a memory backend remembers at most 128 versions of a policy; use a policy per tier instead of \
                        changing one";
            return Err(ConfigError::new("versions of the policy", index + 1, rule).in_policy(policy.name()));
        }
        if known.is_none() {
            later.push(*policy.algorithm());
        }
        Ok(index as u8 + 1)
    }

    /// Whether a policy's parameters are the ones in force.
    #[inline]
    pub(super) fn is_current(&self, registered: Registered) -> bool {
        let entry = self.entries.get(usize::from(registered.policy)).and_then(OnceLock::get);
        entry.is_some_and(|entry| entry.current.load(Ordering::Relaxed) == registered.generation)
    }

    /// The parameters in force for a tier, or of a policy without.
    pub(super) fn in_force(&self, policy: u16, tier: u8) -> Option<InForce> {
        let entry = self.entries.get(usize::from(policy))?.get()?;
        let current = entry.current.load(Ordering::Acquire);
        if current & TABLE == 0 {
            let registered = Registered { policy, generation: current };
            return Some(InForce { registered, algorithm: self.algorithm(registered)?, carry: None, tier: 0 });
        }
        let table = entry.tables.get()?.get(usize::from(current & !TABLE))?.get()?;
        let (tier, (generation, algorithm)) = match table.each.get(usize::from(tier)) {
            Some(own) => (tier, own),
            None => (0, table.each.first()?),
        };
        let registered = Registered { policy, generation: *generation };
        Some(InForce { registered, algorithm: *algorithm, carry: Some(table.carry), tier })
    }

    /// The parameters in force for each tier of a policy, or of a policy without.
    pub(super) fn tiers(&self, policy: u16) -> impl Iterator<Item = InForce> + '_ {
        let each = (0..Policy::MAX_TIERS).map_while(move |tier| Some((tier, self.in_force(policy, tier as u8)?)));
        // A number beyond the last tier stands for the first.
        each.take_while(|(tier, in_force)| usize::from(in_force.tier) == *tier).map(|(_, in_force)| in_force)
    }

    /// The parameters a slot was written with.
    #[inline]
    pub(super) fn algorithm(&self, registered: Registered) -> Option<Algorithm> {
        let entry = self.entries.get(usize::from(registered.policy))?.get()?;
        match usize::from(registered.generation).checked_sub(1) {
            None => Some(entry.first),
            Some(later) => entry.later.read().get(later).copied(),
        }
    }

    pub(super) fn has_prefix(&self, policy: u16, prefix: &str) -> bool {
        let entry = self.entries.get(usize::from(policy)).and_then(OnceLock::get);
        entry.is_some_and(|entry| entry.name.starts_with(prefix))
    }
}
