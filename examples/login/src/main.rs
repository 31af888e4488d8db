//! A login that bans addresses which keep guessing. Run it with `cargo run -p login`, and watch an
//! attack of a day in a second with `cargo run -p login -- --attack`.

mod attack;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Form, Router};
use serde::Deserialize;
use throttle_tower::limit::Ban;
use throttle_tower::{
    ClientIp, ConfigError, Constant, Gcra, MemoryBackend, Rate, ReportIn, SlidingLog,
    ThrottleLayer, all, limit,
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    if std::env::args().any(|argument| argument == "--attack") {
        return attack::show().await;
    }
    let port = std::env::var("PORT").unwrap_or_else(|_| "3018".to_owned());
    let port: u16 = port
        .parse()
        .with_context(|| format!("PORT is {port:?}: set a port number from 0 to 65535"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another, as in PORT=3019 cargo run")
        })?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}; stop with Ctrl-C. Try:");
    println!("  curl -i http://{address}/login -d user=ada -d password=lovelace");
    println!(
        "  for i in $(seq 7); do curl -si http://{address}/login -d user=ada -d password=guess | \
            head -1; done"
    );
    // The layer limits by the peer's address, which axum provides to it only through this call.
    axum::serve(
        listener,
        app(MemoryBackend::new(), Some(ban()))?.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

/// Five strikes within ten minutes are a ban of ten minutes. Each further ban is twice as long, up
/// to a day. After a week without one, the next is of ten minutes again.
fn ban() -> Ban {
    let (minute, day) = (60, 86_400);
    Ban::after(5)
        .within(Duration::from_secs(10 * minute))
        .lasting(Duration::from_secs(10 * minute))
        .growing(2)
        .up_to(Duration::from_secs(day))
        .forgotten_after(Duration::from_secs(7 * day))
}

fn app(store: MemoryBackend, ban: Option<Ban>) -> Result<Router, ConfigError> {
    // A ban by user name would let an attacker who knows a name ban its owner. Behind a proxy, name
    // the proxy: `ClientIp::x_forwarded_for(…)`.
    let mut failed = limit("failed-logins", SlidingLog::new("5/15m".parse()?))
        .by(ClientIp::peer())
        .refund_if(limit::successful);
    if let Some(ban) = ban {
        // A refusal is a strike, and so is a wrong password.
        failed = failed
            .ban(ban)
            .strike_if(|status, _| status == StatusCode::UNAUTHORIZED);
    }
    let throttle = ThrottleLayer::builder(all([
        failed,
        // To check a password takes time, by design. A limit that is still on trial would stand
        // here, too.
        limit("logins", Gcra::new(Rate::per_second(50))).by(Constant),
    ]))
    .backend(store)
    .report_in(ReportIn::Both)
    .build()?;
    Ok(Router::new().route("/login", post(login)).layer(throttle))
}

#[derive(Deserialize)]
struct Login {
    user: String,
    password: String,
}

/// In production, compare with a slow hash.
async fn login(Form(login): Form<Login>) -> (StatusCode, &'static str) {
    match (&*login.user, &*login.password) {
        ("ada", "lovelace") => (StatusCode::OK, "welcome\n"),
        _ => (StatusCode::UNAUTHORIZED, "wrong user or password\n"),
    }
}
