use crate::cost::Cost;
use crate::key::Key;

/// One policy's part of a request: a key, a cost and a tier.
///
/// ```
/// use throttle_core::Key;
/// use throttle_core::backend::Call;
///
/// let call = Call::from(Key::from("ada")).costing(3).in_tier(1);
/// assert_eq!((call.cost(), call.tier()), (3, 1));
/// assert_eq!(Call::peek(Key::from("ada")).cost(), 0);
/// assert!(Call::SKIP.key().is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub(crate) key: Option<Key>,
    pub(crate) cost: u64,
    pub(crate) tier: u8,
}

impl Call {
    /// A policy that does not apply to the request.
    pub const SKIP: Self = Self { key: None, cost: 0, tier: 0 };

    /// `cost` units for `key`.
    #[must_use]
    pub const fn new(key: Key, cost: Cost) -> Self {
        Self { key: Some(key), cost: cost.get(), tier: 0 }
    }

    /// A peek at `key`, which charges nothing.
    #[must_use]
    pub const fn peek(key: Key) -> Self {
        Self { key: Some(key), cost: 0, tier: 0 }
    }

    /// Sets the tier of the policy, by its [number](crate::Policy::tier_named). Defaults to 0, the first. An unknown
    /// number stands for the first tier.
    #[must_use]
    pub const fn in_tier(mut self, tier: u8) -> Self {
        self.tier = tier;
        self
    }

    /// Sets the units; 0 peeks.
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

    /// The units; 0 for a peek.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_costs_one_unit_in_the_first_tier_unless_it_says_otherwise() {
        let ada = || Key::from("ada");
        let three = Cost::new(3).expect("no peek");
        for (call, key, cost, tier) in [
            (Call::from(ada()), Some(ada()), 1, 0),
            (Call::new(ada(), three), Some(ada()), 3, 0),
            (Call::peek(ada()), Some(ada()), 0, 0),
            (Call::SKIP, None, 0, 0),
            (Call::from(ada()).costing(7), Some(ada()), 7, 0),
            (Call::from(ada()).costing(0), Some(ada()), 0, 0),
            (Call::from(ada()).in_tier(2), Some(ada()), 1, 2),
            (Call::new(ada(), three).in_tier(255).costing(u64::MAX), Some(ada()), u64::MAX, 255),
        ] {
            assert_eq!((call.key(), call.cost(), call.tier()), (key.as_ref(), cost, tier), "{call:?}");
        }
        let differ = [Call::from(Key::from("eve")), Call::from(ada()).costing(2), Call::from(ada()).in_tier(1)];
        assert!(differ.iter().all(|other| *other != Call::from(ada())), "each part counts");
    }
}
