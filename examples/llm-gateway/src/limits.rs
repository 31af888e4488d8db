//! What a key may use, and how a request's cost is estimated.

use axum::http::request::Parts;
use throttle_tower::throttle_core::{Limiter, Policy, PolicySet, PolicyTree};
use throttle_tower::{
    CalendarQuota, ClientIp, ConfigError, Gcra, Header, Key, KeyExtractor, MemoryBackend, Rate, ThrottleLayer,
    TokenBucket, all, limit,
};

pub const TOKENS: &str = "tokens";
pub const MONTH: &str = "month";

const TOKENS_PER_MINUTE: u64 = 600;
const TOKENS_PER_MONTH: u64 = 5_000;

/// Three limits, one decision: a request that one of them refuses is charged to none.
pub fn layer(memory: &MemoryBackend) -> Result<ThrottleLayer, ConfigError> {
    ThrottleLayer::new(all([
        // A request that the model failed to serve is none.
        limit("requests", Gcra::new(Rate::per_minute(10))).by(whose()).refund_server_errors(),
        limit(TOKENS, tokens()).by(whose()).unit("tokens").cost(estimate).settled_later().refund_server_errors(),
        limit(MONTH, month()).by(whose()).unit("tokens").cost(estimate).settled_later().refund_server_errors(),
    ]))?
    .backend(memory.clone())
}

fn tokens() -> TokenBucket {
    TokenBucket::new(Rate::per_minute(TOKENS_PER_MINUTE))
}

fn month() -> CalendarQuota {
    CalendarQuota::monthly(TOKENS_PER_MONTH)
}

/// Those with a key by it, the others by their address.
fn whose() -> impl KeyExtractor {
    Header::new("x-api-key").or(ClientIp::peer())
}

/// The words of the prompt, and half of what the model may answer at most.
pub fn estimate(parts: &Parts) -> u64 {
    prompt_tokens(parts) + max_tokens(parts) / 2
}

pub fn prompt_tokens(parts: &Parts) -> u64 {
    query(parts, "prompt").map_or(0, |prompt| prompt.split(['+', ' ']).count() as u64)
}

pub fn max_tokens(parts: &Parts) -> u64 {
    query(parts, "max_tokens").and_then(|most| most.parse().ok()).unwrap_or(100).min(1_000)
}

fn query<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    let pairs = parts.uri.query()?.split('&');
    pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Looks at the same budgets from outside, to print what is left of them.
#[derive(Clone)]
pub struct Left(Limiter);

impl Left {
    pub fn new(memory: &MemoryBackend) -> Result<Self, ConfigError> {
        // The same parameters as in the layer, units included: a name stands for one limit of a store.
        let tokens = Policy::new(TOKENS, tokens())?.with_unit("tokens")?;
        let month = Policy::new(MONTH, month())?.with_unit("tokens")?;
        let policies = vec![tokens.into(), month.into()];
        Ok(Self(Limiter::new(memory.clone(), PolicySet::new(PolicyTree::All(policies))?)?))
    }

    /// Tokens left of this minute and of this month.
    pub fn of(&self, key: &Key) -> [u64; 2] {
        let decision = self.0.peek(key.clone());
        [0, 1].map(|place| decision.statuses()[place].remaining())
    }
}

/// Whose budgets a request is charged to.
pub fn key(parts: &Parts) -> Option<Key> {
    whose().extract(parts)
}
