use crate::cost::Cost;
use crate::key::Key;

/// What a request asks of one policy of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub(crate) key: Option<Key>,
    pub(crate) cost: u64,
    pub(crate) tier: u8,
}

impl Call {
    /// The policy does not apply to this request.
    pub const SKIP: Self = Self { key: None, cost: 0, tier: 0 };

    /// `cost` units for `key`.
    #[must_use]
    pub const fn new(key: Key, cost: Cost) -> Self {
        Self { key: Some(key), cost: cost.get(), tier: 0 }
    }

    /// Looks at `key` without using anything.
    #[must_use]
    pub const fn peek(key: Key) -> Self {
        Self { key: Some(key), cost: 0, tier: 0 }
    }

    /// The same in a tier of the policy, by its [number](crate::Policy::tier_named); 0, the first, unless said otherwise.
    /// A number that the policy has no tier of stands for the first.
    #[must_use]
    pub const fn in_tier(mut self, tier: u8) -> Self {
        self.tier = tier;
        self
    }

    /// The same for so many units; 0 only looks.
    #[must_use]
    pub const fn costing(mut self, units: u64) -> Self {
        self.cost = units;
        self
    }

    /// The number of the tier.
    #[must_use]
    pub const fn tier(&self) -> u8 {
        self.tier
    }

    /// The key, unless the policy is skipped.
    #[must_use]
    pub const fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The units asked for; 0 only looks.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

impl From<Key> for Call {
    /// One unit for `key`.
    fn from(key: Key) -> Self {
        Self::new(key, Cost::ONE)
    }
}
