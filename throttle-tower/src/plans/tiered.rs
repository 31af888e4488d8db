use throttle_core::{Algorithm, Carry, ConfigError, Policy};

/// The names and algorithms of the tiers, in order. A wrong algorithm is reported when the layer is built.
pub(super) type Tiers = Vec<(String, Result<Algorithm, ConfigError>)>;

/// What a limit with tiers has instead of one algorithm.
#[derive(Clone, Debug)]
pub(super) struct Tiered {
    pub(super) tiers: Tiers,
    /// The name of the tier of unknown identities.
    pub(super) unknown: String,
    pub(super) carry: Carry,
}

impl Tiered {
    pub(super) fn policy(&self, name: &str) -> Result<Policy, ConfigError> {
        let mut tiers = Vec::new();
        for (tier, algorithm) in &self.tiers {
            tiers.push((tier, algorithm.clone().map_err(|error| error.in_policy(name))?));
        }
        let policy = Policy::tiered(name, tiers, self.carry)?;
        if policy.tier_named(&self.unknown).is_none() {
            let rule = "it must be the name of a tier";
            return Err(ConfigError::new("unknown", format_args!("{:?}", self.unknown), rule).in_policy(name));
        }
        Ok(policy)
    }
}
