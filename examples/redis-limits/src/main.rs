//! A rate-limited axum server whose processes share their limits through Redis. `sh demo.sh` runs
//! two of them.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use clap::Parser;
use throttle_redis::RedisBackend;
use throttle_tower::{
    ClientIp, ConfigError, Gcra, Header, KeyExtractor, LimitReport, OnError, Rate, ThrottleLayer,
    all, limit,
};
use tokio::net::TcpListener;

/// How many processes share the limits. While Redis is away, each of them admits this fraction of a
/// limit.
const PROCESSES: u32 = 2;

/// The keys that have been issued, in place of a table. An invented key counts against its address.
const API_KEYS: [&[u8]; 2] = [b"ada", b"bob"];

/// A rate-limited server; several of them share their limits through Redis.
#[derive(Parser)]
struct Settings {
    /// The Redis that the processes share
    #[arg(
        long,
        env,
        default_value = "redis://127.0.0.1:6379",
        hide_env_values = true
    )]
    redis_url: String,
    /// The port to listen on; 0 for any free one
    #[arg(long, env, default_value_t = 3001)]
    port: u16,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The layer logs when Redis stops answering, and when it answers again.
    tracing_subscriber::fmt().with_target(false).init();
    let Settings { redis_url, port } = Settings::parse();
    let app = app(RedisBackend::new(&redis_url)?)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another with --port or PORT")
        })?;
    println!(
        "listening on http://{}; stop with Ctrl-C",
        listener.local_addr()?
    );
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

fn app(redis: RedisBackend) -> Result<Router, ConfigError> {
    let throttle = ThrottleLayer::builder(all([
        // While Redis is away, each process enforces its share of this limit.
        limit("per-ip", Gcra::new(Rate::per_second(1)).burst(10))
            .by(ClientIp::peer())
            .on_error(OnError::local(PROCESSES)),
        // While Redis is away, this limit admits every request.
        limit("per-key", Gcra::new(Rate::per_minute(100)))
            .by(Header::new("x-api-key")
                .accept(|key| API_KEYS.contains(&key))
                .or(ClientIp::peer()))
            .on_error(OnError::Open),
    ]))
    .backend(redis)
    .build()?;
    Ok(Router::new().route("/", get(hello)).layer(throttle))
}

async fn hello(report: LimitReport) -> String {
    let by = if report.decision().degraded().is_some() {
        "this process alone"
    } else {
        "all processes together"
    };
    format!(
        "hello; {} requests left, counted by {by}\n",
        report.decision().remaining()
    )
}
