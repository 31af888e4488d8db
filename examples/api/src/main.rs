//! A JSON API behind nginx. Every request is limited by address; logins by address and by the user
//! name in their body; all else by the plan of the user that authentication has found.

mod accounts;
mod error;
mod login;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, io};

use anyhow::Context;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use throttle_tower::throttle_core::snapshot::Saver;
use throttle_tower::throttle_core::{Limiter, Policy, PolicySet};
use throttle_tower::{
    ClientIp, Constant, Dialect, Gcra, InFlight, LimitReport, MemoryBackend, Rate, SlidingLog,
    ThrottleLayer, TrustedProxies, all, extract, limit, plans,
};
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;

use accounts::{Accounts, User};
use error::ApiError;

/// The plans, and how many requests a minute each allows.
const PLANS: [(&str, u64); 2] = [("free", 60), ("pro", 600)];

/// A client that stops sending its request holds a permit of its address until then.
const MOST_TIME: Duration = Duration::from_secs(30);

struct Settings {
    /// The proxies whose `X-Forwarded-For` names the client.
    proxies: TrustedProxies,
    /// Where the pages are from that use this API.
    origin: HeaderValue,
}

#[derive(Clone)]
struct App {
    accounts: Accounts,
    failed_logins: Limiter,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let setting = |name: &str, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let port = setting("PORT", "3010");
    let port: u16 = port
        .parse()
        .with_context(|| format!("PORT is {port:?}: set a port number from 0 to 65535"))?;
    let proxies = setting("TRUSTED_PROXIES", "127.0.0.1");
    let proxies =
        TrustedProxies::new(proxies.split(',').map(str::trim)).context("TRUSTED_PROXIES")?;
    let origin = setting("ALLOWED_ORIGIN", "http://localhost:8080")
        .parse()
        .context("ALLOWED_ORIGIN")?;
    let (store, saver) = match env::var_os("COUNTS") {
        Some(file) => saved_in(PathBuf::from(file)),
        None => (MemoryBackend::new(), None),
    };
    let app = app(store, Settings { proxies, origin })?;

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another, as in PORT=3011 cargo run")
        })?;
    println!(
        "listening on http://{}; stop with Ctrl-C",
        listener.local_addr()?
    );
    // The address of the peer is needed behind a proxy, too: only a trusted peer's header is read.
    let server = axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    );
    server.with_graceful_shutdown(stopped()?).await?;
    // After the last request: what it was charged is saved, too.
    drop(saver);
    Ok(())
}

/// A store whose counts outlive the process. A file that does not fit does not keep the server from
/// starting: clients then begin with unused budgets, and the next save replaces the file.
fn saved_in(file: PathBuf) -> (MemoryBackend, Option<Saver>) {
    let restored = MemoryBackend::builder().restore_file(&file);
    let store = restored.unwrap_or_else(|error| {
        eprintln!(
            "COUNTS is {}; no counts are restored: {error}",
            file.display()
        );
        MemoryBackend::new()
    });
    let saver = store.save_every(file, Duration::from_secs(1), |saved| {
        if let Err(error) = saved {
            eprintln!("the counts are not saved: {error}");
        }
    });
    (store, Some(saver))
}

/// Ctrl-C, or the signal of a service manager.
fn stopped() -> io::Result<impl Future<Output = ()>> {
    let mut terminated = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = ctrl_c() => {}
            _ = terminated.recv() => {}
        }
    })
}

fn app(store: MemoryBackend, settings: Settings) -> anyhow::Result<Router> {
    let app = App {
        accounts: Accounts::default(),
        failed_logins: failed_logins(store.clone())?,
    };
    let client = || ClientIp::x_forwarded_for(settings.proxies.clone());

    // Outside authentication: what protects the server.
    let outside = ThrottleLayer::builder(all((
        limit("per-ip", Gcra::new(Rate::per_second(20)).burst(40)).by(client()),
        limit("in-flight", InFlight::new(500)).by(Constant),
        limit("in-flight-per-ip", InFlight::new(20)).by(client()),
    )))
    .backend(store)
    .response(error::refused)
    .build()?;

    // The layers below have the same store and the same response.
    let per_login = outside
        .with_limits(limit("logins", Gcra::new(Rate::per_minute(10)).burst(20)).by(client()))?;
    let accounts = app.accounts.clone();
    let per_user = outside.with_limits(
        plans(
            "per-user",
            PLANS.map(|(plan, count)| (plan, Gcra::new(Rate::per_minute(count)))),
        )
        .by(extract::Extension::by(|user: &User| user.id))
        .lookup(move |id: String| accounts.clone().plan_of(id))
        .cache(10_000, Duration::from_secs(60))
        .unknown("free"),
    )?;

    // Of the layers of a router, the last one is the outermost.
    let login = Router::new()
        .route("/login", post(login::login))
        .layer(per_login);
    let limited = Router::new()
        .route("/me", get(me))
        .layer(per_user)
        .layer(from_fn_with_state(app.accounts.clone(), authenticate))
        .merge(login)
        .fallback(async || ApiError::NotFound)
        .layer(TimeoutLayer::with_status_code(
            StatusCode::REQUEST_TIMEOUT,
            MOST_TIME,
        ))
        .layer(outside)
        .layer(cors(settings.origin));
    Ok(limited
        .route("/health", get(async || "ok\n"))
        .with_state(app))
}

/// Five wrong passwords for one name in a quarter of an hour. The name is in the body, which only
/// the handler reads.
fn failed_logins(store: MemoryBackend) -> anyhow::Result<Limiter> {
    let policy = Policy::new("failed-logins", SlidingLog::new("5/15m".parse()?))?;
    Ok(Limiter::new(store, PolicySet::new(policy)?)?)
}

/// Outside the limits: it answers preflights, and pages can read refusals.
fn cors(origin: HeaderValue) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE])
        .expose_headers(Dialect::Draft11.exposed_names().to_vec())
}

/// Leaves the user in the request, for the limit by user and for handlers.
async fn authenticate(
    State(accounts): State<Accounts>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let user = token.and_then(|token| accounts.user_of(token.strip_prefix("Bearer ")?));
    request
        .extensions_mut()
        .insert(user.ok_or(ApiError::Unauthorized)?);
    Ok(next.run(request).await)
}

async fn me(Extension(user): Extension<User>, report: LimitReport) -> Json<Value> {
    let plan = report.tier("per-user").unwrap_or("none");
    Json(json!({ "name": user.name, "plan": plan, "requests_left": report.decision().remaining() }))
}
