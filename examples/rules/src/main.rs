//! A rate-limited axum server whose limits are in a file, which may change while it runs.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use throttle_rules::{Handle, Registry, Rules};
use throttle_tower::{Header, MemoryBackend, Route};
use tokio::net::TcpListener;

/// The keys that have been issued, in place of a table.
const API_KEYS: [&[u8]; 2] = [b"live_ada", b"live_bob"];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = port("PORT", 3007)?;
    let file = std::env::args()
        .nth(1)
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/throttle.toml").to_owned());
    let (app, handle) = app(&Rules::from_path(file, registry())?)?;
    handle.on_reload(|reloaded| match reloaded {
        Ok(change) => println!("{change}"),
        Err(error) => eprintln!("the former limits stay in force:\n{error}"),
    });
    let _watch = handle.watch().context("cannot watch the file")?;
    let listener = listen(port, "PORT").await?;
    println!(
        "listening on http://{}; stop with Ctrl-C",
        listener.local_addr()?
    );
    let admin = listen(self::port("ADMIN_PORT", 3008)?, "ADMIN_PORT").await?;
    println!("rules in force: http://{}/rules", admin.local_addr()?);
    // For this machine only. Where others can reach it, it needs authentication.
    tokio::spawn(async move { axum::serve(admin, handle.admin()).await });
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

fn port(name: &str, usual: u16) -> anyhow::Result<u16> {
    let port = std::env::var(name).unwrap_or_else(|_| usual.to_string());
    port.parse()
        .with_context(|| format!("{name} is {port:?}: set a port number from 0 to 65535"))
}

async fn listen(port: u16, name: &str) -> anyhow::Result<TcpListener> {
    let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listening.with_context(|| {
        format!("cannot listen on port {port}: choose another, as in {name}=3009 cargo run")
    })
}

/// What the file refers to by name.
fn registry() -> Registry {
    // An invented key must not come with a budget of its own.
    let issued = HashSet::from(API_KEYS);
    Registry::new()
        .key(
            "api-key",
            Header::new("x-api-key").accept(move |key| issued.contains(key)),
        )
        // The route, and not the path: a path has several spellings.
        .cost("size", |parts: &Parts| {
            if Route::template(parts) == Some("/reports/year") {
                100
            } else {
                1
            }
        })
}

fn app(rules: &Rules) -> anyhow::Result<(Router, Handle)> {
    let (throttle, handle) = rules.layer(MemoryBackend::new())?;
    let router = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/login", post(login))
        .route("/reports/month", get(|| async { "a report\n" }))
        .route("/reports/year", get(|| async { "a large report\n" }));
    // Inside the router, so that the limits know the routes.
    Ok((router.layer(throttle), handle))
}

async fn login(headers: HeaderMap) -> (StatusCode, &'static str) {
    match headers.get("x-password") {
        Some(password) if password == "s3cret" => (StatusCode::OK, "welcome\n"),
        _ => (StatusCode::UNAUTHORIZED, "wrong password\n"),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    const FILE: &str = include_str!("../throttle.toml");

    async fn status(app: &Router, request: axum::http::request::Builder) -> StatusCode {
        let peer = ConnectInfo(SocketAddr::from(([203, 0, 113, 9], 4_000)));
        app.clone()
            .oneshot(request.extension(peer).body(Body::empty()).unwrap())
            .await
            .unwrap()
            .status()
    }

    fn app_of_file() -> Router {
        app(&Rules::from_str("throttle.toml", FILE, registry()).unwrap())
            .unwrap()
            .0
    }

    #[tokio::test]
    async fn sixth_wrong_password_is_refused_and_right_ones_are_not_counted() {
        let app = app_of_file();
        for password in [
            "s3cret", "guess", "s3cret", "guess", "guess", "guess", "s3cret", "guess",
        ] {
            let expected = if password == "guess" {
                StatusCode::UNAUTHORIZED
            } else {
                StatusCode::OK
            };
            assert_eq!(
                status(&app, Request::post("/login").header("x-password", password)).await,
                expected
            );
        }
        assert_eq!(
            status(&app, Request::post("/login")).await,
            StatusCode::TOO_MANY_REQUESTS
        );
        assert_eq!(status(&app, Request::get("/")).await, StatusCode::OK);
    }

    #[tokio::test]
    async fn operator_blocks_an_address_and_exempts_it() {
        let (app, handle) =
            app(&Rules::from_str("throttle.toml", FILE, registry()).unwrap()).unwrap();
        let login =
            r#"{"method": "POST", "uri": "/login", "route": "/login", "peer": "203.0.113.9"}"#;
        for (treatment, expected) in [
            ("blocked", StatusCode::TOO_MANY_REQUESTS),
            ("exempt", StatusCode::UNAUTHORIZED),
        ] {
            let body =
                format!(r#"{{"request": {login}, "treatment": "{treatment}", "for": "1h"}}"#);
            let request = Request::put("/keys/login").body(Body::from(body)).unwrap();
            let admin: Router = handle.admin();
            assert_eq!(
                admin.oneshot(request).await.unwrap().status(),
                StatusCode::OK
            );
            for _ in 0..9 {
                assert_eq!(
                    status(&app, Request::post("/login")).await,
                    expected,
                    "{treatment}"
                );
            }
        }
    }

    #[tokio::test]
    async fn large_report_costs_more() {
        let app = app_of_file();
        let year = || Request::get("/reports/year").header("x-api-key", "live_ada");
        for _ in 0..10 {
            assert_eq!(status(&app, year()).await, StatusCode::OK);
        }
        assert_eq!(status(&app, year()).await, StatusCode::TOO_MANY_REQUESTS);
    }

    #[tokio::test]
    async fn invented_keys_have_no_budget_of_their_own() {
        let app = app_of_file();
        for key in ["live_eve", "live_", "LIVE_ADA", "live_ada "] {
            let request = Request::get("/reports/month").header("x-api-key", key);
            assert_eq!(
                status(&app, request).await,
                StatusCode::UNAUTHORIZED,
                "{key}"
            );
        }
        assert_eq!(
            status(&app, Request::get("/reports/month")).await,
            StatusCode::UNAUTHORIZED
        );
    }

    #[tokio::test]
    async fn no_spelling_of_a_large_report_is_served_at_a_lower_cost() {
        for path in [
            "/reports/yea%72",
            "/reports/./year",
            "/reports//year",
            "/%72eports/year",
            "/reports/year?a=1",
        ] {
            let app = app_of_file();
            let mut served = 0;
            for _ in 0..20 {
                let request = Request::get(path).header("x-api-key", "live_ada");
                served += usize::from(status(&app, request).await == StatusCode::OK);
            }
            assert!(served <= 10, "{path}: {served}");
        }
    }

    #[test]
    fn mistake_is_reported_where_it_stands() {
        let wrong = FILE.replace("burst", "brust");
        let error = Rules::from_str("throttle.toml", &wrong, registry())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(
            "throttle.toml:10:30: limit \"per-ip\": gcra.brust is not a field; did you \
                    mean \"burst\"?"
        ));
    }
}
