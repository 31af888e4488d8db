use throttle_core::Key;

use super::own_numbers::OwnPlace;

/// What is known of an identity's tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdentityTier {
    /// Its tier, by number.
    Known(u8),
    /// Numbers of its own, and where they are.
    Own(OwnPlace),
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
    /// The key to charge, if there is one, and the number of its tier.
    pub(super) fn budget(self, identity: Key, tier: IdentityTier) -> (Option<Key>, u8) {
        match tier {
            IdentityTier::Known(tier) => (Some(identity), tier),
            IdentityTier::Unknown if self.as_missing => (None, self.tier),
            // Not the budget of a missing key: a customer whose first lookup fails is neither rejected nor skipped.
            IdentityTier::NeverLookedUp | IdentityTier::Own(_) if self.as_missing => {
                (Some(Key::builder().missing().missing().finish()), self.tier)
            }
            // Numbers that are not there any more say as little as no lookup.
            IdentityTier::Unknown | IdentityTier::NeverLookedUp | IdentityTier::Own(_) => (Some(identity), self.tier),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_without_a_tier_is_limited_by_the_stated_one() {
        let budget = |as_missing, tier| UnknownIdentities { tier: 2, as_missing }.budget(Key::from("ada"), tier);
        let (own, shared) = (Some(Key::from("ada")), Some(Key::builder().missing().missing().finish()));
        for as_missing in [false, true] {
            assert_eq!(budget(as_missing, IdentityTier::Known(1)), (own.clone(), 1));
        }
        assert_eq!(budget(false, IdentityTier::Unknown), (own.clone(), 2));
        assert_eq!(budget(false, IdentityTier::NeverLookedUp), (own, 2));
        assert_eq!(budget(true, IdentityTier::Unknown), (None, 2));
        assert_eq!(budget(true, IdentityTier::NeverLookedUp), (shared, 2));
    }
}
