//! A rate-limited axum server whose limits all of its processes share. Run two, as in `sh examples/redis-limits/demo.sh`.

use std::env::VarError;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use axum::Router;
use axum::routing::get;
use throttle_redis::RedisBackend;
use throttle_tower::{ClientIp, Gcra, Header, KeyExtractor, LimitReport, OnError, Rate, ThrottleLayer, all, limit};
use tokio::net::TcpListener;

/// How many processes share the limits: what each of them admits when Redis is away is one of so many parts.
const PROCESSES: u32 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    // Tells when Redis stops answering, and when it is back.
    tracing_subscriber::fmt().with_target(false).init();
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let url = setting("REDIS_URL")?.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let port: u16 = match setting("PORT")? {
        None => 3001,
        Some(port) => port.parse().map_err(|_| format!("PORT is {port:?}: it must be a number from 0 to 65535"))?,
    };
    let app = app(RedisBackend::new(&url)?)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}; choose another port with PORT=…"))?;
    println!("listening on http://{}; stop with Ctrl-C", listener.local_addr()?);
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).with_graceful_shutdown(stopped()).await?;
    Ok(())
}

fn app(redis: RedisBackend) -> Result<Router, Box<dyn Error>> {
    let throttle = ThrottleLayer::new(all([
        // While Redis is away, each process admits its part of the limit by itself.
        limit("per-ip", Gcra::new(Rate::per_second(1)).burst(10))
            .by(ClientIp::peer())
            .on_error(OnError::local(PROCESSES)),
        // This one would rather refuse nobody then.
        limit("per-key", Gcra::new(Rate::per_minute(100)))
            .by(Header::new("x-api-key").or(ClientIp::peer()))
            .on_error(OnError::Open),
    ]))?;
    Ok(Router::new().route("/", get(hello)).layer(throttle.backend(redis)?))
}

async fn hello(report: Option<LimitReport>) -> String {
    let Some(report) = report else { return "hello\n".to_owned() };
    let by = if report.decision().degraded().is_some() { "this process alone" } else { "all processes together" };
    format!("hello; {} requests left, counted by {by}\n", report.decision().remaining())
}

fn setting(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not Unicode")),
    }
}

async fn stopped() {
    // Without a signal handler there is nothing to wait for but the end.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
