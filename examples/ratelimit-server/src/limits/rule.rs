//! What a descriptor of a file means.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use throttle_core::{ConfigError, Policy};

use super::counters::Counters;

/// A descriptor with a `rate_limit`.
pub struct Rule {
    /// The keys and values from the domain down, as envoyproxy/ratelimit joins them.
    pub full_key: String,
    /// What other rules replace it by; may be empty.
    pub name: String,
    pub replaces: Vec<String>,
    /// `None` for an unlimited one.
    pub limit: Option<Limit>,
    pub is_shadow: bool,
    pub is_quota: bool,
    pub metric: MetricName,
    pub charges_refused: bool,
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// What a rule admits.
pub struct Limit {
    /// Its number among the policies of a configuration.
    pub index: usize,
    pub policy: Policy,
    pub shown: RateLimit,
}

/// What metrics call the hits of a rule.
pub enum MetricName {
    /// The full key.
    FullKey(Arc<Counters>),
    /// With the values of the entries whose descriptors say so.
    SomeValues,
    /// With the values of all entries.
    AllValues,
}

/// The name of a policy, under which a store keeps its states: the key, with a digest where a name
/// cannot hold it.
pub fn policy_name(full_key: &str) -> String {
    if full_key.len() <= 64 && full_key.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return full_key.to_owned();
    }
    let start: String = full_key
        .chars()
        .take(40)
        .filter(|letter| (' '..='~').contains(letter))
        .collect();
    format!("{start}#{:016x}", digest(full_key.as_bytes()))
}

/// FNV-1a: the same in every version and process.
fn digest(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// A policy of the name that fits, audited if it only watches.
pub fn policy(
    full_key: &str,
    algorithm: throttle_core::Algorithm,
    is_shadow: bool,
) -> Result<Policy, ConfigError> {
    let policy = Policy::new(&policy_name(full_key), algorithm)?;
    Ok(if is_shadow { policy.audit() } else { policy })
}
