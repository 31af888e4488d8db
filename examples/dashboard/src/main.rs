//! A rate-limited server that shows what its limits do, and clients that keep it busy. Run it with
//! `cargo run`.

mod app;
mod exporter;
mod limits;
mod load;
mod payments;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use clap::Parser;
use throttle_redis::{RedisBackend, Single};
use tokio::net::TcpListener;

/// A rate-limited server that shows what its limits do, and clients that keep it busy.
#[derive(Parser)]
struct Settings {
    /// The port to listen on; 0 for any free one
    #[arg(long, env, default_value_t = 3000)]
    port: u16,
    /// A Redis that counts; without it, this process counts in memory
    #[arg(long, env, hide_env_values = true)]
    redis_url: Option<String>,
    /// Run the server alone, without clients
    #[arg(long)]
    no_load: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The Redis backend logs when Redis stops answering, and when it answers again.
    tracing_subscriber::fmt().with_target(false).init();
    let Settings {
        port,
        redis_url,
        no_load,
    } = Settings::parse();
    let app = build(redis_url.as_deref())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another with --port or PORT")
        })?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}; stop with Ctrl-C");
    println!("  the page     http://{address}/throttle");
    println!("  the metrics  http://{address}/metrics");
    println!("  to try       curl -i -H 'x-api-key: key_pro_me' http://{address}/");
    println!(
        "counted {}\n",
        if redis_url.is_some() {
            "in Redis"
        } else {
            "in this process"
        }
    );
    let _load = if no_load {
        None
    } else {
        println!("{}", load::WHAT_IT_DOES);
        Some(load::start(address)?)
    };
    let server = axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    );
    // Not `with_graceful_shutdown`, which would wait for clients that hold their connections.
    tokio::select! {
        ended = server => ended?,
        ended = tokio::signal::ctrl_c() => ended?,
    }
    Ok(())
}

fn build(redis_url: Option<&str>) -> anyhow::Result<Router> {
    // First, so that every metric is there from the first request on.
    let metrics = exporter::install()?;
    match redis_url {
        Some(url) => {
            let redis = RedisBackend::builder(Single::new(url)?)
                .metrics("redis")
                .build()?;
            app::app(limits::builder()?.backend(redis), metrics)
        }
        None => app::app(limits::builder()?, metrics),
    }
}

#[cfg(test)]
mod tests;
