//! The limits, one of each kind.

use std::time::Duration;

use axum::http::request::Parts;
use throttle_tower::{
    Candidate, ClientIp, Constant, Gcra, Header, InFlight, KeyExtractor, OnError, Rate, Route,
    ThrottleBuilder, ThrottleLayer, TokenBucket, TrustedProxies, all, limit, plans,
};

/// Processes that share the limits. While Redis is away, each admits this part of a limit.
const PROCESSES: u32 = 1;

/// The keys that have been issued, with their plan in the middle, in place of a table.
const API_KEYS: [&str; 12] = [
    "key_pro_1",
    "key_free_2",
    "key_pro_3",
    "key_free_4",
    "key_pro_5",
    "key_pro_bursty",
    "key_pro_greedy",
    "key_pro_holding",
    "key_pro_rep",
    "key_pro_exp",
    "key_pro_pay",
    "key_pro_me",
];

const PLANS: [(&str, u64); 2] = [("free", 5), ("pro", 50)];

/// Asked about the same requests as the limits in force, and only counted.
pub fn candidate() -> anyhow::Result<Candidate> {
    let half = limit("per-ip", Gcra::new(Rate::per_second(20)).burst(40)).by(address()?);
    Ok(Candidate::in_memory("half-per-ip", half)?)
}

/// The load sends from this machine, in the name of several addresses, as a proxy would.
fn address() -> anyhow::Result<ClientIp> {
    let proxies = TrustedProxies::new(["127.0.0.0/8"])?;
    Ok(ClientIp::x_forwarded_for(proxies))
}

pub fn builder() -> anyhow::Result<ThrottleBuilder> {
    let limits = all((
        limit("per-ip", Gcra::new(Rate::per_second(40)).burst(80)).by(address()?),
        limit("per-key", TokenBucket::new(Rate::per_second(20)).burst(40))
            .by(api_key())
            .refund_if(limit::server_error),
        plans(
            "per-plan",
            PLANS.map(|(plan, count)| (plan, Gcra::new(Rate::per_second(count)).burst(2 * count))),
        )
        .by(api_key())
        .lookup(plan_of)
        .cache(10_000, Duration::from_secs(10))
        .unknown_as_missing()
        .unknown("free"),
        // Held for a moment instead of refused.
        limit("reports", Gcra::new(Rate::per_second(5)))
            .by(api_key())
            .when(|parts| Route::template(parts) == Some("/report"))
            .wait_up_to(Duration::from_millis(500)),
        // Charged by an estimate, and settled with what was used.
        limit("rows", TokenBucket::new(Rate::per_second(200)).burst(1_000))
            .by(api_key())
            .when(|parts| Route::template(parts) == Some("/export"))
            .unit("rows")
            .cost(estimate)
            .settled_later(),
        limit("in-flight", InFlight::new(64)).by(Constant),
        limit("in-flight-per-key", InFlight::new(4)).by(api_key()),
    ));
    Ok(ThrottleLayer::builder(limits).on_error(OnError::local(PROCESSES)))
}

/// A key that has been issued. Requests with another one share a budget.
fn api_key() -> impl KeyExtractor {
    Header::new("x-api-key").accept(|key| API_KEYS.iter().any(|known| known.as_bytes() == key))
}

/// Stands in for a database that is asked for the plan of a customer.
async fn plan_of(key: String) -> Result<Option<&'static str>, std::io::Error> {
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(PLANS
        .map(|(plan, _)| plan)
        .into_iter()
        .find(|plan| key.starts_with(&format!("key_{plan}_"))))
}

/// The rows that an export is expected to have: those that it asks for, or 50.
pub fn estimate(parts: &Parts) -> u64 {
    let rows = parts
        .uri
        .query()
        .and_then(|query| query.strip_prefix("rows="))
        .and_then(|rows| rows.parse().ok());
    rows.unwrap_or(50).clamp(1, 500)
}
