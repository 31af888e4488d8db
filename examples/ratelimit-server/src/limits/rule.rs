//! What a descriptor of a file means.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
use serde_json::{Map, Value};
use throttle_core::{Algorithm, Key};

use super::counters::Counters;

/// A descriptor with a `rate_limit`, or all limits of a unit that descriptors bring themselves.
#[derive(Default)]
pub struct Rule {
    /// The keys and values from the domain down, as envoyproxy/ratelimit joins them.
    pub full_key: String,
    /// What answers show. Other rules replace it by its name, which may be empty.
    pub shown: RateLimit,
    /// The index of its policy; `None` for an unlimited one.
    pub policy: Option<usize>,
    pub replaces: Vec<String>,
    pub is_shadow: bool,
    pub is_quota: bool,
    /// Whether hits that do not fit take what is left.
    pub charges_refused: bool,
    /// `None` if its name in metrics has values of a request.
    pub counters: Option<Arc<Counters>>,
    /// Whether it has the values of all entries.
    pub detailed_metric: bool,
    pub metadata: Map<String, Value>,
}

/// What a descriptor of a request has found.
pub struct Match {
    pub rule: Arc<Rule>,
    pub key: Key,
    /// The descriptor's own limit, which decides in place of the policy's.
    pub own: Option<Arc<Algorithm>>,
    pub shown: RateLimit,
    pub counters: Arc<Counters>,
}

impl Match {
    pub fn denies(&self) -> bool {
        self.shown.requests_per_unit == 0
    }
}
