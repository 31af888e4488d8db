//! Limits the messages inside WebSockets. A layer limits the connections, and a limiter the
//! messages of a user across all of its connections.

#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::any;
use throttle_tower::throttle_core::{Limiter, Policy};
use throttle_tower::{
    ClientIp, ConfigError, Constant, Gcra, Header, InFlight, Key, KeyExtractor, Permit, Rate,
    ThrottleLayer, all, limit,
};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// After so long a silence a client is pinged, and after another one it is gone. A client whose
/// network goes away says nothing, and would hold its permits until the server restarts.
const SILENCE: Duration = Duration::from_secs(15);

/// The users, in place of authentication. A name that is not one of them counts against its
/// address: an invented name must not come with a budget of its own.
const USERS: [&[u8]; 2] = [b"ada", b"bob"];

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
    let app = app(throttle()?)?;
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

/// Limits how often a client connects, and how many connections are open.
fn throttle() -> Result<ThrottleLayer, ConfigError> {
    ThrottleLayer::new(all((
        limit("connects", Gcra::new(Rate::per_second(1)).burst(10)).by(ClientIp::peer()),
        limit("in-flight", InFlight::new(10_000)).by(Constant),
        limit("in-flight-per-ip", InFlight::new(20)).by(ClientIp::peer()),
    )))
}

fn app(throttle: ThrottleLayer) -> Result<Router, ConfigError> {
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
/// found, by `extract::Extension`.
fn user(parts: &Parts) -> Key {
    Header::new("x-user")
        .accept(|user| USERS.contains(&user))
        .or(ClientIp::peer())
        .extract(parts)
        .unwrap_or(Key::CONSTANT)
}

async fn upgrade(
    State(messages): State<Limiter>,
    permit: Permit,
    parts: Parts,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.on_upgrade(async move |socket| serve(socket, &messages, user(&parts), permit).await)
}

/// Echoes what the limiter admits. `_permit` is dropped with the connection, or the permit would
/// be free at once.
async fn serve(mut socket: WebSocket, messages: &Limiter, user: Key, _permit: Permit) {
    let mut refused = 0;
    while let Some(message) = receive(&mut socket).await {
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
                send(&mut socket, Message::Close(Some(frame))).await;
                return;
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
        if send(&mut socket, answer).await.is_none() {
            return;
        }
    }
}

/// The next message, such as the answer to a ping. `None` if there will be none.
async fn receive(socket: &mut WebSocket) -> Option<Message> {
    if let Ok(message) = timeout(SILENCE, socket.recv()).await {
        return message?.ok();
    }
    send(socket, Message::Ping(Bytes::new())).await?;
    timeout(SILENCE, socket.recv()).await.ok()??.ok()
}

/// `None` if the client does not take the message: one that reads nothing would hold the permits.
async fn send(socket: &mut WebSocket, message: Message) -> Option<()> {
    timeout(SILENCE, socket.send(message)).await.ok()?.ok()
}
