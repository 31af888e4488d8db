//! The policies that a store has seen, and the parameters that may have written its slots.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::algorithm::Algorithm;
use crate::error::ConfigError;
use crate::policy::Policy;

/// All policies of a store.
///
/// Slots refer to policies and to the parameters that wrote them by number, so that the sweep can
/// read any slot, and other parameters can, too. Entries are never removed, and reading takes no
/// lock.
#[derive(Debug)]
pub(super) struct Policies {
    entries: GrowOnly<NumberedPolicy, { Policies::MAX }>,
    adding: Mutex<()>,
}

/// In place of a number: the parameters are with the state, because there are too many for
/// numbers, or they are one key's own.
pub(super) const UNNUMBERED: u8 = u8::MAX;

#[derive(Debug)]
struct NumberedPolicy {
    name: String,
    parameters: GrowOnly<Arc<Algorithm>, { UNNUMBERED as usize }>,
}

/// The parameters of a policy in one tier.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    /// The policy's number in the store.
    pub(super) policy: u16,
    /// The number of the parameters, which names them in slots.
    pub(super) writer: u8,
    pub(super) tier: u8,
    /// Whether a slot holds all there is of a state: the parameters have a number, and the state
    /// fits.
    pub(super) is_plain: bool,
    pub(super) algorithm: Arc<Algorithm>,
}

/// The parameters that decide a call: those of a tier, or the key's own.
#[derive(Clone, Copy)]
pub(super) struct CallParameters<'a> {
    pub(super) policy: u16,
    pub(super) writer: u8,
    pub(super) tier: u8,
    pub(super) algorithm: &'a Arc<Algorithm>,
}

impl Parameters {
    pub(super) fn of_call(&self) -> CallParameters<'_> {
        CallParameters {
            policy: self.policy,
            writer: self.writer,
            tier: self.tier,
            algorithm: &self.algorithm,
        }
    }
}

impl<'a> CallParameters<'a> {
    /// The parameters themselves, if they are [`UNNUMBERED`], to be kept with a state.
    pub(super) fn unnumbered(self) -> Option<&'a Arc<Algorithm>> {
        Some(self.algorithm).filter(|_| self.writer == UNNUMBERED)
    }
}

/// A policy of a set: its parameters in each tier.
#[derive(Clone, Debug)]
pub(super) struct Member {
    first: Parameters,
    others: Arc<[Parameters]>,
}

impl Member {
    /// The parameters of a tier. A number beyond the last tier stands for the first.
    #[inline]
    pub(super) fn parameters(&self, tier: u8) -> &Parameters {
        match tier {
            0 => &self.first,
            other => self
                .others
                .get(usize::from(other) - 1)
                .unwrap_or(&self.first),
        }
    }

    /// The parameters that decide: a key's own, or those of a tier.
    pub(super) fn of_call<'a>(
        &'a self,
        tier: u8,
        own: Option<&'a Arc<Algorithm>>,
    ) -> CallParameters<'a> {
        let of_tier = self.parameters(tier).of_call();
        match own {
            None => of_tier,
            Some(algorithm) => CallParameters {
                writer: UNNUMBERED,
                tier: Policy::OWN,
                algorithm,
                ..of_tier
            },
        }
    }

    /// The policy's number in the store.
    #[inline]
    pub(super) fn number(&self) -> u16 {
        self.first.policy
    }
}

impl Policies {
    /// Policies are numbered from one in ten bits of a slot, so that no slot of a key is all zeros.
    const MAX: usize = (1 << 10) - 1;

    pub(super) fn new() -> Self {
        Self {
            entries: GrowOnly::new(),
            adding: Mutex::default(),
        }
    }

    /// Gives a policy and its parameters numbers.
    pub(super) fn add(&self, policy: &Policy) -> Result<Member, ConfigError> {
        let _adding = self.adding.lock();
        let parameters =
            |(tier, of): (usize, &Policy)| self.number(policy.name(), *of.algorithm(), tier as u8);
        let others = policy
            .tiers()
            .map(|(_, tier)| tier)
            .enumerate()
            .skip(1)
            .map(parameters)
            .collect::<Result<_, _>>()?;
        Ok(Member {
            first: parameters((0, policy))?,
            others,
        })
    }

    /// The parameters that wrote some states of a snapshot. Those of keys' own get no number.
    pub(super) fn restore(
        &self,
        policy: &str,
        algorithm: Algorithm,
        own: bool,
    ) -> Result<Parameters, ConfigError> {
        let _adding = self.adding.lock();
        self.number(policy, algorithm, if own { Policy::OWN } else { 0 })
    }

    fn number(
        &self,
        name: &str,
        algorithm: Algorithm,
        tier: u8,
    ) -> Result<Parameters, ConfigError> {
        let make = || NumberedPolicy {
            name: name.into(),
            parameters: GrowOnly::new(),
        };
        let Some((number, entry)) = self.entries.find_or_push(|entry| entry.name == name, make)
        else {
            let rule = "a memory backend holds at most 1023 policies of different names";
            return Err(ConfigError::new("number of policies", Self::MAX + 1, rule).in_policy(name));
        };
        let make = || Arc::new(algorithm);
        let numbered = match tier {
            Policy::OWN => None,
            _ => entry
                .parameters
                .find_or_push(|known| known.is_alike(&algorithm), make),
        };
        let (writer, algorithm) = match numbered {
            Some((index, known)) => (index as u8, Arc::clone(known)),
            None => (UNNUMBERED, make()),
        };
        Ok(Parameters {
            policy: number as u16 + 1,
            writer,
            tier,
            is_plain: writer != UNNUMBERED && algorithm.is_small(),
            algorithm,
        })
    }

    pub(super) fn name(&self, policy: u16) -> &str {
        self.entry(policy).map_or("", |entry| &entry.name)
    }

    pub(super) fn has_prefix(&self, policy: u16, prefix: &str) -> bool {
        self.name(policy).starts_with(prefix)
    }

    /// The parameters of a policy that have this number; `None` for [`UNNUMBERED`].
    #[inline]
    pub(super) fn algorithm(&self, policy: u16, writer: u8) -> Option<&Arc<Algorithm>> {
        self.entry(policy)?.parameters.get(usize::from(writer))
    }

    #[inline]
    fn entry(&self, policy: u16) -> Option<&NumberedPolicy> {
        self.entries.get(usize::from(policy).checked_sub(1)?)
    }
}

/// A list of at most `MAX` values that only grows. Reading takes no lock; one thread at a time may
/// push.
#[derive(Debug)]
struct GrowOnly<T, const MAX: usize>(OnceLock<Box<[OnceLock<T>]>>);

impl<T, const MAX: usize> GrowOnly<T, MAX> {
    const fn new() -> Self {
        Self(OnceLock::new())
    }

    fn get(&self, index: usize) -> Option<&T> {
        self.0.get()?.get(index)?.get()
    }

    /// Returns the value that `is` finds, or adds one; with its index. `None` if the list is full.
    fn find_or_push(
        &self,
        is: impl Fn(&T) -> bool,
        make: impl FnOnce() -> T,
    ) -> Option<(usize, &T)> {
        let slots = self
            .0
            .get_or_init(|| (0..MAX).map(|_| OnceLock::new()).collect());
        let index = slots.iter().position(|slot| slot.get().is_none_or(&is))?;
        Some((index, slots[index].get_or_init(make)))
    }
}
