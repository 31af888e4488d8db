use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::RwLock;

use crate::{Algorithm, ConfigError, Policy};

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
    /// parameters in turn would each forget what the other counted.
    current: AtomicU8,
}

/// A policy with one set of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registered {
    pub(super) policy: u16,
    pub(super) generation: u8,
}

impl Registry {
    /// Policies are numbered from one in ten bits of a slot.
    pub(super) const MAX_POLICIES: usize = (1 << 10) - 1;
    /// Generations are numbered in seven.
    const MAX_GENERATIONS: usize = 1 << 7;

    pub(super) fn new() -> Self {
        Self { entries: (0..Self::MAX_POLICIES).map(|_| OnceLock::new()).collect(), writing: Default::default() }
    }

    pub(super) fn register(&self, policy: &Policy) -> Result<Registered, ConfigError> {
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
        let generation = self.generation(number, policy)?;
        if let Some(entry) = self.entries[number].get() {
            entry.current.store(generation, Ordering::Relaxed);
        }
        Ok(Registered { policy: number as u16, generation })
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

    /// The parameters in force, and their number.
    pub(super) fn current(&self, policy: u16) -> Option<(Registered, Algorithm)> {
        let generation = self.entries.get(usize::from(policy))?.get()?.current.load(Ordering::Relaxed);
        let registered = Registered { policy, generation };
        Some((registered, self.algorithm(registered)?))
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
