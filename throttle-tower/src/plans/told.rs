//! What a lookup told of an identity, and the budget that follows from it.

use throttle_core::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Its tier, by number.
    Tier(u8),
    /// The table does not have it.
    Unknown,
    /// No lookup of it has succeeded so far.
    Nothing,
}

/// What becomes of an identity without a tier.
#[derive(Clone, Copy)]
pub(super) struct Unknowns {
    /// The number of their tier.
    pub(super) tier: u8,
    /// Whether they share budgets.
    pub(super) as_missing: bool,
}

impl Unknowns {
    /// The key that is charged, if there is one, and the number of its tier.
    pub(super) fn charge(self, identity: Key, told: Told) -> (Option<Key>, u8) {
        match told {
            Told::Tier(tier) => (Some(identity), tier),
            Told::Unknown if self.as_missing => (None, self.tier),
            // Not the budget of a missing key: a customer whose first lookup fails is neither rejected nor skipped.
            Told::Nothing if self.as_missing => (Some(Key::builder().missing().missing().finish()), self.tier),
            Told::Unknown | Told::Nothing => (Some(identity), self.tier),
        }
    }
}
