//! A file as it is written. Every key that it may have is here; another one is an error.

use serde::Deserialize;
use serde_json::{Map, Value};
use serde_saphyr::{Error, Location, Spanned};

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
    pub metadata: Map<String, Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateLimit {
    pub unit: Option<Spanned<String>>,
    pub requests_per_unit: u32,
    pub unlimited: bool,
    pub name: String,
    pub replaces: Vec<Replacement>,
    /// The keys from here on are this server's own.
    pub algorithm: AlgorithmName,
    pub burst: Option<u64>,
    pub charge_refused: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    pub name: Spanned<String>,
}

/// What is wrong at a place.
pub fn wrong(location: Location, message: impl Into<String>) -> Error {
    Error::Message {
        msg: message.into(),
        location,
    }
}

/// An error in one line, which begins with the place.
pub fn in_file(name: &str, error: &Error) -> anyhow::Error {
    let error = error.without_snippet();
    let text = error.to_string();
    // The location is written at the end, too.
    let message = text
        .rsplit_once(" at line ")
        .map_or(&*text, |(message, _)| message);
    match error.location() {
        Some(at) => anyhow::anyhow!("{name}:{}:{}: {message}", at.line(), at.column()),
        None => anyhow::anyhow!("{name}: {message}"),
    }
}
