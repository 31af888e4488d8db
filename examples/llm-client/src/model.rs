//! A pretended model, which refuses calls that exceed its requests or its tokens, as OpenAI's API
//! does.

use std::net::{Ipv4Addr, SocketAddr};

use axum::http::request::Parts;
use axum::routing::post;
use axum::{Extension, Json, Router};
use serde_json::{Value, json};
use throttle_tower::headers::SdkHints;
use throttle_tower::{ConfigError, Constant, Gcra, ThrottleLayer, Usage, all, limit};
use tokio::net::TcpListener;

use crate::limits::{Settings, prompt_tokens};

/// The most that a call may use, as the client states it. A real model reads it from the body.
pub const RESERVED: &str = "x-reserved-tokens";

/// Starts the model on a free port; it ends with the process.
pub async fn start(settings: &Settings) -> anyhow::Result<SocketAddr> {
    let app = Router::new()
        .route("/v1/chat/completions", post(complete))
        .layer(throttle(settings)?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}

/// What a period allows may come at once.
fn throttle(settings: &Settings) -> Result<ThrottleLayer, ConfigError> {
    let tokens = limit("tokens", Gcra::new(settings.tokens()))
        .by(Constant)
        .unit("tokens")
        .cost(reserved);
    let limits = all([
        limit("requests", Gcra::new(settings.requests())).by(Constant),
        tokens.settled_later(),
    ]);
    ThrottleLayer::builder(limits)
        .sdk_hints(SdkHints::default())
        .response(|refusal| refusal.openai_response())
        .build()
}

/// What a call may use with its prompt.
const MOST_TOKENS: u64 = 1_000;

fn reserved(parts: &Parts) -> u64 {
    let stated = parts
        .headers
        .get(RESERVED)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    stated.unwrap_or(MOST_TOKENS).clamp(1, MOST_TOKENS)
}

/// Answers with fewer tokens than it may, and says how many were used.
async fn complete(usage: Extension<Usage>, Json(question): Json<Value>) -> Json<Value> {
    let prompt = question["prompt"].as_str().unwrap_or_default();
    let most = question["max_tokens"].as_u64().unwrap_or(100);
    let used = prompt_tokens(prompt) + most / 3;
    // Nothing else settles it.
    let _ = usage.settle("tokens", used);
    Json(json!({ "choices": [{ "text": "…" }], "usage": { "total_tokens": used } }))
}
