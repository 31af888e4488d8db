//! What the kinds of limits are made into. Both types are public and cannot be named, so that they
//! seal [`LimitKind`](crate::limit::LimitKind).
#![expect(unnameable_types, reason = "they seal a trait")]

use throttle_core::{ConfigError, Policy, PolicyName};

use crate::throttle::PermitSteps;

/// What a limit counts.
#[derive(Clone, Debug)]
pub enum ResolvedKind {
    /// Units over time, by a policy that the backend decides about.
    Units(Policy),
    /// Permits of requests in flight, and the most of a key.
    Permits(PolicyName, u64, &'static PermitSteps),
}

/// Seals the kinds of limits.
pub trait SealedKind {
    /// # Errors
    ///
    /// If the name or a setting is wrong.
    fn resolve(self, name: &str) -> Result<ResolvedKind, ConfigError>;
}

impl ResolvedKind {
    pub(super) fn name(&self) -> &PolicyName {
        match self {
            Self::Units(policy) => policy.policy_name(),
            Self::Permits(name, ..) => name,
        }
    }

    /// What an unused key has: the least and the most of all tiers.
    pub(super) fn capacities(&self) -> (u64, u64) {
        let policy = match self {
            Self::Units(policy) => policy,
            Self::Permits(_, most, _) => return (*most, *most),
        };
        let tiers = policy.tiers().map(|(_, tier)| tier).chain([policy]);
        tiers.fold((u64::MAX, 0), |(least, most), tier| {
            let capacity = tier.algorithm().capacity();
            (least.min(capacity), most.max(capacity))
        })
    }
}
