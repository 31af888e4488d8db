//! A file as it is written. Every key that it may have is here; another one is an error.

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::algorithm::AlgorithmName;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub domain: Spanned<String>,
    pub descriptors: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    pub key: Spanned<String>,
    pub value: Option<String>,
    pub rate_limit: Option<Spanned<RateLimit>>,
    pub descriptors: Option<Vec<Descriptor>>,
    #[serde(default)]
    pub shadow_mode: bool,
    #[serde(default)]
    pub quota_mode: bool,
    #[serde(default)]
    pub detailed_metric: bool,
    #[serde(default)]
    pub value_to_metric: bool,
    #[serde(default)]
    pub share_threshold: bool,
    #[serde(default)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    pub unit: Option<Spanned<String>>,
    #[serde(default)]
    pub requests_per_unit: u32,
    #[serde(default)]
    pub unlimited: bool,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub replaces: Vec<Replacement>,
    /// The keys from here on are this server's own.
    #[serde(default)]
    pub algorithm: AlgorithmName,
    pub burst: Option<u64>,
    #[serde(default)]
    pub charge_refused: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    pub name: Spanned<String>,
}
