//! A rate-limited axum server whose processes share their limits through a file of SQLite. Run it
//! with `SECRET=$(openssl rand -hex 16) cargo run -p sqlite`.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use throttle_tower::throttle_core::SystemClock;
use throttle_tower::{
    ClientIp, ConfigError, Gcra, LimitReport, OnError, Rate, ThrottleLayer, limit,
};
use tokio::net::TcpListener;

use crate::store::Sqlite;

mod store;
#[cfg(test)]
mod tests;

/// How many processes share the file. While it cannot be written, each of them admits this fraction
/// of a limit.
const PROCESSES: u32 = 2;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let setting = |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.into());
    let port = setting("PORT", "3019");
    let port: u16 = port
        .parse()
        .with_context(|| format!("PORT is {port:?}: set a port number from 0 to 65535"))?;
    // Keep it secret: the secret and the file together reveal the addresses of clients.
    let secret = u128::from_str_radix(&setting("SECRET", ""), 16)
        .ok()
        .context("SECRET is not set to 32 hexadecimal digits: SECRET=$(openssl rand -hex 16)")?;
    let path = setting("DATABASE", "limits.sqlite");
    let store = Sqlite::open(&path, &secret.to_be_bytes(), SystemClock::new())
        .with_context(|| format!("DATABASE is {path:?}: set a file that can be written"))?;
    tokio::spawn(forget_each_minute(store.clone()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another, as in PORT=3020 cargo run")
        })?;
    println!(
        "listening on http://{}; stop with Ctrl-C",
        listener.local_addr()?
    );
    let app = app(store)?.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

fn app(store: Sqlite) -> Result<Router, ConfigError> {
    let per_ip = limit("per-ip", Gcra::new(Rate::per_second(1)).burst(5))
        .by(ClientIp::peer())
        .on_error(OnError::local(PROCESSES));
    let throttle = ThrottleLayer::builder(per_ip).backend(store).build()?;
    Ok(Router::new().route("/", get(hello)).layer(throttle))
}

async fn hello(report: LimitReport) -> String {
    format!("hello; {} requests left\n", report.decision().remaining())
}

/// Deletes rows that no decision needs.
async fn forget_each_minute(store: Sqlite) {
    loop {
        tokio::time::sleep(Duration::from_secs(60)).await;
        if let Err(error) = store.forget().await {
            eprintln!("rows that are over could not be deleted: {error}");
        }
    }
}
