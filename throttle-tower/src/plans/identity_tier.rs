use throttle_core::Key;

/// What is known of an identity's tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdentityTier {
    /// Its tier, by number.
    Known(u8),
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
            IdentityTier::NeverLookedUp if self.as_missing => {
                (Some(Key::builder().missing().missing().finish()), self.tier)
            }
            IdentityTier::Unknown | IdentityTier::NeverLookedUp => (Some(identity), self.tier),
        }
    }
}
