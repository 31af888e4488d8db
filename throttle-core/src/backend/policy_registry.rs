//! The parameters in force on a store, which its sets share by their policies' names.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::algorithm::Algorithm;
use crate::error::ConfigError;
use crate::policy::{Policy, PolicyName};
use crate::set::PolicySet;

/// The policies of the sets that are in use on one store. For implementations of [`Backend`](crate::Backend).
///
/// A policy's name stands for one limit of a store. A set cannot be registered if a set in use has a policy of the same
/// name with other parameters, unless the new policy [replaces](Policy::replace_existing) the existing one. A set is in
/// use while its [`RegisteredSet`] exists. Clones share the registry, which knows the sets of this process. Policies
/// that stand [beside](Policy::beside_existing) others use no name, and conflict with none.
///
/// ```
/// use throttle_core::{Gcra, PolicySet, Policy, Rate};
/// use throttle_core::backend::PolicyRegistry;
///
/// let limit = |count| Policy::new("per-ip", Gcra::new(Rate::per_minute(count)));
/// let registry = PolicyRegistry::default();
/// let login = registry.register(PolicySet::new(limit(5)?)?)?;
///
/// let error = registry.register(PolicySet::new(limit(100)?)?).unwrap_err();
/// assert_eq!((error.policy(), error.value()), (Some("per-ip"), "gcra 100/minute with a capacity of 100"));
///
/// let replacing = registry.register(PolicySet::new(limit(100)?.replace_existing())?)?;
/// let in_force = login.replaced().expect("its limit was replaced");
/// assert_eq!(in_force.policies()[0].algorithm().capacity(), 100);
/// assert!(replacing.replaced().is_none());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PolicyRegistry(Arc<Registry>);

#[derive(Debug, Default)]
struct Registry {
    named: Mutex<HashMap<PolicyName, Named>>,
    /// Counts changes of the parameters in force.
    epoch: AtomicU64,
}

#[derive(Debug)]
struct Named {
    in_force: Policy,
    /// Sets in use that have a policy of this name.
    sets: usize,
}

impl PolicyRegistry {
    /// Puts the parameters of a set's policies in force, for every set that names them.
    ///
    /// # Errors
    ///
    /// If a set in use has a policy of the same name with other parameters, and the policy does not
    /// [replace](Policy::replace_existing) it. Nothing is changed then.
    pub fn register(&self, set: PolicySet) -> Result<RegisteredSet, ConfigError> {
        let mut named = self.0.named.lock();
        let counted = || set.policies().iter().filter(|policy| !policy.is_beside_existing());
        for policy in counted().filter(|policy| !policy.replaces_existing()) {
            match named.get(policy.policy_name()) {
                Some(held) if held.sets > 0 && !held.in_force.has_parameters_of(policy) => {
                    return Err(conflict(policy, &held.in_force));
                }
                _ => {}
            }
        }
        for policy in counted() {
            let name = policy.policy_name().clone();
            let held = named.entry(name).or_insert_with(|| Named { in_force: policy.clone(), sets: 0 });
            held.sets += 1;
            if !held.in_force.has_parameters_of(policy) {
                held.in_force = policy.clone();
                self.0.epoch.fetch_add(1, Ordering::Release);
            }
        }
        let same_at = AtomicU64::new(self.epoch());
        Ok(RegisteredSet { registry: self.clone(), set, same_at, replaced: Mutex::default() })
    }

    /// A count of changes. While it stays the same, so do the parameters in force.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.epoch.load(Ordering::Acquire)
    }

    /// The set with the parameters in force. Policies that [keep](Policy::keep_parameters) their own, and those whose
    /// names were never registered, have their own.
    ///
    /// Read the [epoch](Self::epoch) before the call, to know when to call again.
    #[must_use]
    pub fn in_force(&self, set: &PolicySet) -> PolicySet {
        let named = self.0.named.lock();
        let replaced = |policy: &&Policy| !policy.keeps_parameters();
        set.with_parameters(|policy| {
            Some(policy).filter(replaced).and_then(|policy| Some(named.get(policy.policy_name())?.in_force.clone()))
        })
    }
}

/// A set in use. Dropping it frees its policies' names.
///
/// ```
/// use throttle_core::{Gcra, Policy, PolicySet, Rate};
/// use throttle_core::backend::PolicyRegistry;
///
/// let limit = |count| PolicySet::new(Policy::new("per-ip", Gcra::new(Rate::per_minute(count)))?);
/// let registry = PolicyRegistry::default();
/// let login = registry.register(limit(5)?)?;
/// assert!(registry.register(limit(6)?).is_err(), "the name is in use");
/// drop(login);
/// assert!(registry.register(limit(6)?).is_ok());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
pub struct RegisteredSet {
    registry: PolicyRegistry,
    set: PolicySet,
    /// The last epoch in which the set's own parameters were in force.
    same_at: AtomicU64,
    /// The set in force if it is another one, and its epoch.
    replaced: Mutex<Option<(u64, Arc<PolicySet>)>>,
}

impl RegisteredSet {
    /// The set, with its own parameters.
    #[must_use]
    pub const fn set(&self) -> &PolicySet {
        &self.set
    }

    /// Returns the set with the parameters in force, if another set has replaced some of this set's. Returns the same
    /// `Arc` until they change.
    #[inline]
    #[must_use]
    pub fn replaced(&self) -> Option<Arc<PolicySet>> {
        let epoch = self.registry.epoch();
        if epoch == self.same_at.load(Ordering::Relaxed) { None } else { self.replaced_at(epoch) }
    }

    #[cold]
    fn replaced_at(&self, epoch: u64) -> Option<Arc<PolicySet>> {
        let mut replaced = self.replaced.lock();
        if let Some((known, set)) = &*replaced
            && *known == epoch
        {
            return Some(Arc::clone(set));
        }
        let in_force = self.registry.in_force(&self.set);
        if in_force == self.set {
            *replaced = None;
            self.same_at.store(epoch, Ordering::Relaxed);
            return None;
        }
        let in_force = match replaced.take() {
            Some((_, known)) if *known == in_force => known,
            _ => Arc::new(in_force),
        };
        *replaced = Some((epoch, Arc::clone(&in_force)));
        Some(in_force)
    }
}

impl Drop for RegisteredSet {
    fn drop(&mut self) {
        let mut named = self.registry.0.named.lock();
        for policy in self.set.policies().iter().filter(|policy| !policy.is_beside_existing()) {
            if let Some(held) = named.get_mut(policy.policy_name()) {
                held.sets -= 1;
            }
        }
    }
}

impl fmt::Debug for RegisteredSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredSet").field("set", &self.set).finish_non_exhaustive()
    }
}

#[cold]
fn conflict(policy: &Policy, held: &Policy) -> ConfigError {
    let (mut own, mut existing) = (parameters(policy), parameters(held));
    if own == existing {
        // They differ in a parameter that the description leaves out, such as the number of sub-windows.
        (own, existing) = (format!("{:?}", policy.algorithm()), format!("{:?}", held.algorithm()));
    }
    let rule = format!(
        "another limit in use on this store has the same name with other parameters, {existing}, and a name stands for \
         one limit of a store; give this one a name of its own, or the same parameters. To change a limit that is in \
         use, add .replace_existing() to the new one, or drop the old one first"
    );
    ConfigError::new("parameters of the limit", own, rule).in_policy(policy.name())
}

/// A policy's parameters, for error messages.
fn parameters(policy: &Policy) -> String {
    let of = |algorithm: &Algorithm| {
        let (name, rate, capacity) = (algorithm.name(), algorithm.rate(), algorithm.capacity());
        format!("{name} {rate} with a capacity of {capacity}")
    };
    let tiers: Vec<_> = policy.tiers().map(|(name, tier)| format!("{name:?}: {}", of(tier.algorithm()))).collect();
    let mut text = match tiers.as_slice() {
        [] => of(policy.algorithm()),
        tiers => format!("tiers {} with Carry::{:?}", tiers.join(", "), policy.carry()),
    };
    if let Some(unit) = policy.unit() {
        let _ = write!(text, " in {unit:?}");
    }
    text
}
