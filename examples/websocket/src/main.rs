//! Limits the messages inside WebSockets. A layer limits the connections, and a limiter the
//! messages of a user across all of its connections.

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::any;
use throttle_tower::throttle_core::{Limiter, Policy};
use throttle_tower::{
    ClientIp, Concurrency, ConfigError, Gcra, Header, InFlight, Key, KeyExtractor, Rate,
    ThrottleLayer, all, limit,
};
use tokio::net::TcpListener;

/// A connection is closed after so many refused messages in a row: its client does not listen.
const MOST_REFUSED: u32 = 10;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = std::env::var("PORT").unwrap_or_else(|_| "3009".to_owned());
    let port: u16 = port
        .parse()
        .with_context(|| format!("PORT is {port:?}: set a port number from 0 to 65535"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another, as in PORT=3010 cargo run")
        })?;
    println!(
        "listening on ws://{}/socket; stop with Ctrl-C",
        listener.local_addr()?
    );
    axum::serve(
        listener,
        app()?.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

fn app() -> Result<Router, ConfigError> {
    let throttle = ThrottleLayer::new(all((
        limit("connects", Gcra::new(Rate::per_second(1)).burst(10)).by(ClientIp::peer()),
        Concurrency::new(10_000),
        Concurrency::new(20)
            .name("in-flight-per-ip")
            .by(ClientIp::peer()),
    )))?;
    let messages = Limiter::in_memory(Policy::new(
        "messages",
        Gcra::new(Rate::per_second(5)).burst(20),
    )?)?;
    Ok(Router::new()
        .route("/socket", any(upgrade))
        .layer(throttle)
        .with_state(messages))
}

/// A user is known by a header here. In production, take the user that your authentication has
/// found.
fn user(parts: &Parts) -> Key {
    Header::new("x-user")
        .or(ClientIp::peer())
        .extract(parts)
        .unwrap_or(Key::CONSTANT)
}

async fn upgrade(
    State(messages): State<Limiter>,
    in_flight: InFlight,
    parts: Parts,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.on_upgrade(async move |socket| serve(socket, &messages, user(&parts), in_flight).await)
}

/// Echoes what the limiter admits. `_in_flight` is dropped with the connection, or the permit would
/// be free at once.
async fn serve(mut socket: WebSocket, messages: &Limiter, user: Key, _in_flight: InFlight) {
    let mut refused = 0;
    while let Some(Ok(message)) = socket.recv().await {
        // Pings count, too: they are answered.
        let decision = messages.check(user.clone(), 1);
        refused = if decision.is_admitted() {
            0
        } else {
            refused + 1
        };
        let answer = match message {
            Message::Close(_) => return,
            Message::Text(text) if refused == 0 => Message::Text(text),
            _ if refused == 0 => continue,
            _ if refused == MOST_REFUSED => {
                let frame = CloseFrame {
                    code: close_code::POLICY,
                    reason: "too many messages".into(),
                };
                return drop(socket.send(Message::Close(Some(frame))).await);
            }
            // Of a message that costs more than the limit ever admits, no wait is known.
            _ => {
                let millis = decision
                    .retry_after()
                    .map(|wait| wait.as_micros().div_ceil(1_000).to_string());
                let millis = millis.as_deref().unwrap_or("null");
                Message::Text(
                    format!(r#"{{"error":"too many messages","retry_after_ms":{millis}}}"#).into(),
                )
            }
        };
        if socket.send(answer).await.is_err() {
            return;
        }
    }
}
