//! Budgets of money. A request is charged what it may cost by the price table, and settled with
//! what it has cost.

mod prices;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

use anyhow::Context;
use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::post;
use throttle_tower::{
    CalendarQuota, ConfigError, Header, LeakyMeter, OnMissing, Rate, ThrottleLayer, Usage, all,
    limit,
};
use tokio::net::TcpListener;

use crate::prices::{dearest, price_of};

/// The keys that have been issued, in place of a table.
const API_KEYS: [&[u8]; 2] = [b"ada", b"bob"];

const DOLLAR: u64 = 1_000_000; // micro-dollars
const MOST_OUTPUT: u64 = 1_000; // tokens of an answer

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = std::env::var("PORT").unwrap_or_else(|_| "3008".to_owned());
    let port: u16 = port
        .parse()
        .with_context(|| format!("PORT is {port:?}: set a port number from 0 to 65535"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another, as in PORT=3009 cargo run")
        })?;
    println!(
        "listening on http://{}; stop with Ctrl-C",
        listener.local_addr()?
    );
    axum::serve(listener, app()?).await?;
    Ok(())
}

fn app() -> Result<Router, ConfigError> {
    // A key without an owner is refused: an invented one must not come with 20 dollars.
    let key = || Header::new("x-api-key").accept(|key| API_KEYS.contains(&key));
    let anonymous = OnMissing::Reject(StatusCode::UNAUTHORIZED);
    let hour = limit("hour", LeakyMeter::new(Rate::per_hour(DOLLAR)))
        .by(key())
        .on_missing(anonymous);
    let month = limit("month", CalendarQuota::monthly(20 * DOLLAR))
        .by(key())
        .on_missing(anonymous);
    let throttle = ThrottleLayer::new(all([
        hour.unit("micro-dollars")
            .cost(estimate)
            .settled_later()
            .refund_if(limit::server_error),
        month
            .unit("micro-dollars")
            .cost(estimate)
            .settled_later()
            .refund_if(limit::server_error),
    ]))?;
    Ok(Router::new()
        .route("/v1/{model}", post(complete))
        .layer(throttle.clone())
        .route("/budget", throttle.status()))
}

/// The most that a request can cost: a token has a byte at least, and an answer is as long as it
/// may be. The head has to say how long the prompt is. The path is not decoded here as it is for
/// the handler, so a model that it does not name counts as the dearest.
fn estimate(parts: &Parts) -> u64 {
    let model = parts.uri.path().rsplit('/').next().unwrap_or_default();
    let length = parts
        .headers
        .get("content-length")
        .and_then(|length| length.to_str().ok()?.parse().ok());
    price_of(model)
        .unwrap_or_else(dearest)
        .of(length.unwrap_or(u64::MAX), MOST_OUTPUT)
}

/// Pretends to call a model, which says how many tokens it has read and written.
async fn complete(
    Path(model): Path<String>,
    usage: Usage,
    prompt: String,
) -> Result<String, StatusCode> {
    let (input, output) = (prompt.split_whitespace().count() as u64, 100);
    let cost = price_of(&model).map(|price| price.of(input, output));
    // Fails only if it was settled before. An unknown model costs nothing.
    usage
        .settle_all(cost.unwrap_or(0))
        .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let cost = cost.ok_or(StatusCode::NOT_FOUND)?;
    Ok(format!(
        "{model} read {input} tokens and wrote {output}, for {cost} micro-dollars\n"
    ))
}
