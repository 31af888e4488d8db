use std::fmt;
use std::num::NonZeroU64;

use crate::error::ConfigError;

/// Units that a request uses: a whole number from 1. Defaults to 1. A request that uses nothing is
/// a `peek`.
///
/// ```
/// use throttle_core::Cost;
///
/// assert_eq!(Cost::default(), Cost::ONE);
/// assert_eq!(Cost::new(5)?.get(), 5);
/// assert!(Cost::new(0).is_err());
/// # Ok::<(), throttle_core::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// One unit.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// A cost of `units` units, at least 1. A cost above a policy's capacity is never admitted.
    ///
    /// # Errors
    ///
    /// If `units` is 0.
    pub fn new(units: u64) -> Result<Self, ConfigError> {
        let rule = "it must be at least 1; to read a key without using anything, peek";
        NonZeroU64::new(units)
            .map(Self)
            .ok_or_else(|| ConfigError::new("cost", units, rule))
    }

    /// The units, or 1 for 0.
    #[must_use]
    pub const fn at_least_one(units: u64) -> Self {
        match NonZeroU64::new(units) {
            Some(units) => Self(units),
            None => Self::ONE,
        }
    }

    /// The number of units.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<NonZeroU64> for Cost {
    fn from(units: NonZeroU64) -> Self {
        Self(units)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_a_number_of_units_from_one() {
        assert_eq!(
            [0, 1, 2, u64::MAX].map(|units| Cost::at_least_one(units).get()),
            [1, 1, 2, u64::MAX]
        );
        for units in [1, 2, u64::MAX] {
            let cost = Cost::new(units).expect("no peek");
            assert_eq!((cost.get(), cost.to_string()), (units, units.to_string()));
            assert_eq!(Some(cost), NonZeroU64::new(units).map(Cost::from));
        }
        assert_eq!((Cost::ONE.get(), Cost::default()), (1, Cost::ONE));
        assert_eq!(
            format!("{:>4}", Cost::ONE),
            "   1",
            "as wide as it is asked for"
        );
        let rule = "it must be at least 1; to read a key without using anything, peek";
        assert_eq!(
            Cost::new(0).expect_err("a peek").to_string(),
            format!("cost is 0: {rule}")
        );
    }
}
