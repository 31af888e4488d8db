use std::sync::Arc;

use throttle_core::{Algorithm, Key};

use crate::limit::FoundTier;

/// What is known of an identity's tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IdentityTier {
    /// Its tier, by number.
    Known(u8),
    /// Parameters of its own instead.
    Own(Arc<Algorithm>),
    /// The lookup returned no tier.
    Unknown,
    /// No lookup of the identity has succeeded so far.
    NeverLookedUp,
}

/// How an identity without a tier is limited.
#[derive(Clone, Copy)]
pub(super) struct UnknownIdentities {
    /// The number of their tier.
    pub(super) tier: u8,
    /// Whether they share budgets.
    pub(super) as_missing: bool,
}

impl UnknownIdentities {
    /// The key to charge, if there is one, and what it is limited by.
    pub(super) fn budget(self, identity: Key, tier: IdentityTier) -> (Option<Key>, FoundTier) {
        let unknown = FoundTier::Numbered(self.tier);
        match tier {
            IdentityTier::Known(tier) => (Some(identity), FoundTier::Numbered(tier)),
            IdentityTier::Own(own) => (Some(identity), FoundTier::Own(own)),
            IdentityTier::Unknown if self.as_missing => (None, unknown),
            // Not the budget of a missing key: a customer whose first lookup fails is neither
            // rejected nor skipped.
            IdentityTier::NeverLookedUp if self.as_missing => {
                (Some(Key::builder().missing().missing().finish()), unknown)
            }
            IdentityTier::Unknown | IdentityTier::NeverLookedUp => (Some(identity), unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_without_a_tier_is_limited_by_the_stated_one() {
        let budget = |as_missing, tier| {
            let (key, tier) = UnknownIdentities {
                tier: 2,
                as_missing,
            }
            .budget(Key::from("ada"), tier);
            (key, tier.number())
        };
        let (own, shared) = (
            Some(Key::from("ada")),
            Some(Key::builder().missing().missing().finish()),
        );
        for as_missing in [false, true] {
            assert_eq!(budget(as_missing, IdentityTier::Known(1)), (own.clone(), 1));
        }
        assert_eq!(budget(false, IdentityTier::Unknown), (own.clone(), 2));
        assert_eq!(budget(false, IdentityTier::NeverLookedUp), (own, 2));
        assert_eq!(budget(true, IdentityTier::Unknown), (None, 2));
        assert_eq!(budget(true, IdentityTier::NeverLookedUp), (shared, 2));
    }
}
