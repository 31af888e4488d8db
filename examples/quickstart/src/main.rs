//! A rate-limited axum server. Run it with `cargo run -p quickstart`.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::routing::get;
use throttle_tower::{
    ClientIp, ConfigError, Gcra, Header, KeyExtractor, LimitReport, Rate, ThrottleLayer,
    TokenBucket, all, limit,
};
use tokio::net::TcpListener;

/// The keys that have been issued, in place of a table.
const API_KEYS: [&[u8]; 2] = [b"ada", b"bob"];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let port = std::env::var("PORT").unwrap_or_else(|_| "3000".to_owned());
    let port: u16 = port
        .parse()
        .with_context(|| format!("PORT is {port:?}: set a port number from 0 to 65535"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .with_context(|| {
            format!("cannot listen on port {port}: choose another, as in PORT=3001 cargo run")
        })?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}; stop with Ctrl-C. Try:");
    println!("  curl -i http://{address}/");
    println!("  curl -i -H 'x-api-key: ada' http://{address}/");
    println!(
        "  for i in $(seq 25); do curl -s -o /dev/null -w '%{{http_code}} ' http://{address}/; done; echo"
    );
    // The layer limits by the peer's address, which axum provides to it only through this call.
    axum::serve(
        listener,
        app()?.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?;
    Ok(())
}

fn app() -> Result<Router, ConfigError> {
    let throttle = ThrottleLayer::new(all([
        // Two a second with a burst of twenty: easy to exhaust by hand, and quick to refill.
        limit("per-ip", Gcra::new(Rate::per_second(2)).burst(20)).by(ClientIp::peer()),
        // A request without a key that has been issued counts against its address: an invented key
        // must not come with a budget of its own.
        limit("per-key", TokenBucket::new("100/minute".parse()?)).by(Header::new("x-api-key")
            .accept(|key| API_KEYS.contains(&key))
            .or(ClientIp::peer())),
    ]))?;
    Ok(Router::new().route("/", get(hello)).layer(throttle))
}

async fn hello(report: LimitReport) -> String {
    format!(
        "hello; you have {} requests left right now\n",
        report.decision().remaining()
    )
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use axum::http::{Request, StatusCode};
    use tower::ServiceExt;

    use super::*;

    fn request(last: u8) -> Request<Body> {
        let mut request = Request::new(Body::empty());
        request
            .extensions_mut()
            .insert(ConnectInfo(SocketAddr::from(([192, 0, 2, last], 40_000))));
        request
    }

    #[tokio::test]
    async fn invented_keys_count_against_the_address() {
        let app = app().unwrap();
        let mut left = Vec::new();
        for key in ["ada", "bob", "eve", "mallory"] {
            let mut request = request(3);
            request
                .headers_mut()
                .insert("x-api-key", key.parse().unwrap());
            let response = app.clone().oneshot(request).await.unwrap();
            let state = response.headers()["ratelimit"].to_str().unwrap();
            left.push(state.split(r#""per-key";r="#).nth(1).unwrap()[..2].to_owned());
        }
        assert_eq!(left, ["99", "99", "99", "98"]);
    }

    #[tokio::test]
    async fn a_burst_of_twenty_is_admitted_and_other_clients_are_not_affected() {
        let app = app().unwrap();
        for _ in 0..20 {
            let response = app.clone().oneshot(request(1)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert!(response.headers().contains_key("ratelimit"));
        }
        let refused = app.clone().oneshot(request(1)).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        assert_eq!(
            app.oneshot(request(2)).await.unwrap().status(),
            StatusCode::OK
        );
    }
}
