//! The limits of a key, and how the cost of a request is estimated.

use axum::http::request::Parts;
use throttle_tower::headers::SdkHints;
use throttle_tower::throttle_core::{Limiter, Policy, PolicySet, PolicyTree};
use throttle_tower::{
    CalendarQuota, ClientIp, ConfigError, Dialect, Gcra, Header, Key, KeyExtractor, MemoryBackend,
    Rate, Route, ThrottleLayer, TokenBucket, all, limit,
};

pub const TOKENS: &str = "tokens";
pub const MONTH: &str = "month";

/// The keys that have been issued, in place of a table.
const API_KEYS: [&[u8]; 2] = [b"ada", b"bob"];

const TOKENS_PER_MINUTE: u64 = 600;
const TOKENS_PER_MONTH: u64 = 5_000;

/// Three limits in one decision: a request that one of them refuses is not charged by the others.
pub fn layer(memory: &MemoryBackend) -> Result<ThrottleLayer, ConfigError> {
    ThrottleLayer::builder(all([
        // A request that the model fails to serve is not counted.
        limit("requests", Gcra::new(Rate::per_minute(10)))
            .by(client())
            .refund_if(limit::server_error),
        limit(TOKENS, tokens())
            .by(client())
            .unit("tokens")
            .cost(estimate)
            .settled_later()
            .refund_if(limit::server_error)
            // A key's batches leave half of its tokens to its interactive requests.
            .priority(
                [("interactive", 0), ("batch", TOKENS_PER_MINUTE / 2)],
                class,
            ),
        limit(MONTH, month())
            .by(client())
            .unit("tokens")
            .cost(estimate)
            .settled_later()
            .refund_if(limit::server_error),
    ]))
    // What OpenAI's clients and proxies read.
    .headers(Dialect::OpenAi)
    // The clients' SDKs come back to the millisecond, and not at all when the month is used up.
    .sdk_hints(SdkHints::default())
    .backend(memory.clone())
    .build()
}

fn tokens() -> TokenBucket {
    TokenBucket::new(Rate::per_minute(TOKENS_PER_MINUTE))
}

fn month() -> CalendarQuota {
    CalendarQuota::monthly(TOKENS_PER_MONTH)
}

/// A client has classes by the route. They share its own budget, so it gains nothing by the wrong
/// one.
fn class(parts: &Parts) -> &'static str {
    if Route::template(parts) == Some("/v1/batch") {
        "batch"
    } else {
        "interactive"
    }
}

/// A client is known by its API key, if that has been issued, or else by its address.
fn client() -> impl KeyExtractor {
    Header::new("x-api-key")
        .accept(|key| API_KEYS.contains(&key))
        .or(ClientIp::peer())
}

/// The words of the prompt, and half of the most that the model may answer. At least one, whatever
/// the client writes: a cost of 0 would be admitted when nothing is left.
pub fn estimate(parts: &Parts) -> u64 {
    (prompt_tokens(parts) + max_tokens(parts) / 2).max(1)
}

pub fn prompt_tokens(parts: &Parts) -> u64 {
    query(parts, "prompt").map_or(0, |prompt| prompt.split(['+', ' ']).count() as u64)
}

pub fn max_tokens(parts: &Parts) -> u64 {
    query(parts, "max_tokens")
        .and_then(|most| most.parse().ok())
        .unwrap_or(100)
        .min(1_000)
}

fn query<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    let pairs = parts.uri.query()?.split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// Reads the same budgets without charging them, to print what is left.
#[derive(Clone)]
pub struct Left(Limiter);

impl Left {
    pub fn new(memory: &MemoryBackend) -> Result<Self, ConfigError> {
        // The parameters, units included, must equal those of the layer: a store knows a limit by
        // its name.
        let tokens = Policy::new(TOKENS, tokens())?.with_unit("tokens")?;
        let month = Policy::new(MONTH, month())?.with_unit("tokens")?;
        let policies = vec![tokens.into(), month.into()];
        Ok(Self(Limiter::new(
            memory.clone(),
            PolicySet::new(PolicyTree::All(policies))?,
        )?))
    }

    /// Returns the tokens left in this minute and in this month.
    pub fn of(&self, key: &Key) -> [u64; 2] {
        let decision = self.0.peek(key.clone());
        [0, 1].map(|place| decision.statuses()[place].remaining())
    }
}

/// Returns the key whose budgets a request is charged to.
pub fn key(parts: &Parts) -> Option<Key> {
    client().extract(parts)
}
