//! An upstream to try the client on: it admits few calls, and says so in its `RateLimit` headers.

use std::net::{Ipv4Addr, SocketAddr};

use axum::Router;
use axum::routing::get;
use throttle_tower::{Constant, Gcra, Rate, ThrottleLayer, limit};
use tokio::net::TcpListener;

/// Starts an upstream of so many calls a second on a free port; it ends with the process.
pub async fn start(per_second: u64) -> anyhow::Result<SocketAddr> {
    let calls = limit(
        "calls",
        Gcra::new(Rate::per_second(per_second)).burst(per_second),
    )
    .by(Constant);
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(ThrottleLayer::new(calls)?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(address)
}
