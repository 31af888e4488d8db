//! A rate-limited axum server. Run with `cargo run -p quickstart`.

use std::env::VarError;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use axum::Router;
use axum::routing::get;
use throttle_tower::{
    ClientIp, ConfigError, Gcra, Header, KeyExtractor, LimitReport, Rate, ThrottleLayer, TokenBucket, all, limit,
};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let app = app()?;
    let port = match std::env::var("PORT") {
        Err(VarError::NotPresent) => 3000,
        port => {
            let port = port.unwrap_or_default();
            port.parse().map_err(|_| format!("PORT is {port:?}: it must be a number from 0 to 65535"))?
        }
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        format!(
            "cannot listen on 127.0.0.1:{port}: {error}; choose another port, as in PORT=3001 cargo run -p quickstart"
        )
    })?;
    let address = listener.local_addr()?;
    println!("listening on http://{address}; stop with Ctrl-C. Try:");
    println!("  curl -i http://{address}/");
    println!("  curl -i -H 'x-api-key: ada' http://{address}/");
    println!("  for i in $(seq 25); do curl -s -o /dev/null -w '%{{http_code}} ' http://{address}/; done; echo");
    // The peer's address is what requests are limited by, so axum has to provide it.
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

fn app() -> Result<Router, ConfigError> {
    let throttle = ThrottleLayer::new(all([
        // Two a second, twenty at once: the burst is easy to reach by hand, and to see refill.
        limit("per-ip", Gcra::new(Rate::per_second(2)).burst(20)).by(ClientIp::peer()),
        // Who sends no key is counted by address here too. Keys are taken as they come: in production, accept only those
        // you know, with `Header::new("x-api-key").accept(…)`.
        limit("per-key", TokenBucket::new("100/minute".parse()?)).by(Header::new("x-api-key").or(ClientIp::peer())),
    ]))?;
    Ok(Router::new().route("/", get(hello)).layer(throttle))
}

/// The report is optional, so that the handler also works where a shared store is down and limits are open then.
async fn hello(report: Option<LimitReport>) -> String {
    let left = report.map_or(String::from("any number of"), |report| report.decision().remaining().to_string());
    format!("hello; you have {left} requests left right now\n")
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
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, last], 40_000))));
        request
    }

    #[tokio::test]
    async fn twenty_at_once_then_429_and_another_client_is_not_concerned() {
        let app = app().unwrap();
        for _ in 0..20 {
            let response = app.clone().oneshot(request(1)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert!(response.headers().contains_key("ratelimit"));
        }
        let refused = app.clone().oneshot(request(1)).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        assert_eq!(app.oneshot(request(2)).await.unwrap().status(), StatusCode::OK);
    }
}
