//! A gateway to a model, limited by requests and by tokens. Run it with `cargo run`, or
//! `cargo run -- --demo`.

mod board;
mod demo;
mod limits;
mod model;
mod proxy;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use clap::Parser;
use throttle_tower::MemoryBackend;
use tokio::net::TcpListener;

use board::Board;
use limits::Left;

/// A gateway to a pretended model, limited by requests and by tokens.
#[derive(Parser)]
struct Settings {
    /// The port to listen on; 0 for any free one
    #[arg(long, env, default_value_t = 3000)]
    port: u16,
    /// Run clients that show the limits at work, then end
    #[arg(long)]
    demo: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Settings { port, demo } = Settings::parse();
    let (model, gateway) = (listen(0).await?, listen(if demo { 0 } else { port }).await?);
    let (model_address, address) = (model.local_addr()?, gateway.local_addr()?);

    let memory = MemoryBackend::new();
    let board = Board::new(Left::new(&memory)?);
    let app = proxy::app(limits::layer(&memory)?, model_address, board.clone());
    let model = tokio::spawn(serve(model, model::app()));

    println!(
        "a pretended model on http://{model_address}, and the gateway to it on http://{address}"
    );
    if !demo {
        println!("try, several times and with other numbers:");
        println!(
            "  curl -iN -H 'x-api-key: ada' \
                'http://{address}/v1/complete?max_tokens=120&prompt=a+long+story'"
        );
    }
    println!();
    board.title();
    let gateway = tokio::spawn(serve(gateway, app));
    if demo {
        return demo::run(address).await;
    }
    tokio::select! {
        ended = model => ended??,
        ended = gateway => ended??,
    }
    Ok(())
}

async fn listen(port: u16) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listener.with_context(|| {
        format!("cannot listen on port {port}: choose another with --port or PORT")
    })
}

async fn serve(listener: TcpListener, app: Router) -> Result<(), std::io::Error> {
    axum::serve(
        listener,
        app.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::time::Duration;

    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use axum::http::{Request, Response, StatusCode, Version};
    use bytes::Bytes;
    use http_body_util::BodyExt;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    use throttle_tower::Key;

    use super::*;

    /// Starts a model and a gateway to it. Returns the gateway's address, and a view of what keys
    /// have left.
    async fn start() -> (SocketAddr, Left) {
        let (model, gateway) = (listen(0).await.unwrap(), listen(0).await.unwrap());
        let (model_address, address) = (model.local_addr().unwrap(), gateway.local_addr().unwrap());
        let memory = MemoryBackend::new();
        let left = Left::new(&memory).unwrap();
        let app = proxy::app(
            limits::layer(&memory).unwrap(),
            model_address,
            Board::new(left.clone()),
        );
        tokio::spawn(serve(model, model::app()));
        tokio::spawn(serve(gateway, app));
        (address, left)
    }

    async fn send(
        gateway: SocketAddr,
        route: &str,
        query: &str,
    ) -> Response<impl http_body::Body<Data = Bytes, Error: Debug>> {
        send_over(Version::HTTP_11, gateway, route, query).await
    }

    async fn send_over(
        version: Version,
        gateway: SocketAddr,
        route: &str,
        query: &str,
    ) -> Response<impl http_body::Body<Data = Bytes, Error: Debug>> {
        let uri = format!("http://{gateway}/v1/{route}?{query}");
        let request = Request::get(uri)
            .header("x-api-key", "ada")
            .body(Body::empty())
            .unwrap();
        Client::builder(TokioExecutor::new())
            .http2_only(version == Version::HTTP_2)
            .build_http()
            .request(request)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn clients_of_http_1_and_2_get_the_answer_of_the_model() {
        let (gateway, _) = start().await;
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let response = send_over(version, gateway, "complete", "max_tokens=3").await;
            assert_eq!(
                (response.version(), response.status()),
                (version, StatusCode::OK)
            );
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, "rivers\nrun\nwhere\n", "{version:?}");
        }
    }

    async fn ask(gateway: SocketAddr, query: &str) -> (StatusCode, u64) {
        let (head, body) = send(gateway, "complete", query).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (
            head.status,
            body.iter().filter(|byte| **byte == b'\n').count() as u64,
        )
    }

    #[tokio::test]
    async fn the_month_is_charged_for_what_the_model_sent_not_for_the_estimate() {
        let (gateway, left) = start().await;
        let key = key_of("ada");
        let before = left.of(&key)[1];
        for (query, prompt) in [
            ("max_tokens=60&prompt=a+long+story", 3),
            ("max_tokens=400&prompt=hello", 1),
        ] {
            let month = left.of(&key)[1];
            let (status, words) = ask(gateway, query).await;
            assert_eq!(status, StatusCode::OK);
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(month - left.of(&key)[1], prompt + words, "{query}");
        }
        let month = left.of(&key)[1];
        assert!(month < before);
        assert_eq!(
            ask(gateway, "max_tokens=100&prompt=crash").await.0,
            StatusCode::BAD_GATEWAY
        );
        assert_eq!(left.of(&key)[1], month, "a failure costs nothing");
    }

    #[tokio::test]
    async fn batches_leave_tokens_to_interactive_requests() {
        let (gateway, _) = start().await;
        // Each is estimated at 203 of 600 tokens, and streams for six seconds.
        let query = "max_tokens=400&prompt=a+long+story";
        let (first, second) = (
            send(gateway, "batch", query).await,
            send(gateway, "batch", query).await,
        );
        assert_eq!(
            (first.status(), second.status()),
            (StatusCode::OK, StatusCode::TOO_MANY_REQUESTS)
        );
        assert_eq!(
            send(gateway, "complete", query).await.status(),
            StatusCode::OK
        );
    }

    #[test]
    fn estimate_is_within_bounds_whatever_the_client_writes() {
        for (query, estimate) in [
            ("max_tokens=0", 1),
            ("max_tokens=0&prompt=hello", 1),
            ("max_tokens=1&prompt=", 1),
            ("max_tokens=-1", 50),
            ("max_tokens=many", 50),
            ("max_tokens=18446744073709551616", 50),
            ("max_tokens=18446744073709551615&prompt=a+b", 502),
        ] {
            let request = Request::get(format!("/v1/complete?{query}")).body(());
            let (parts, ()) = request.unwrap().into_parts();
            assert_eq!(limits::estimate(&parts), estimate, "{query}");
        }
    }

    #[test]
    fn invented_keys_share_the_budget_of_their_address() {
        assert_eq!(key_of("eve"), key_of("mallory"));
        assert_ne!(key_of("ada"), key_of("bob"));
    }

    #[tokio::test]
    async fn the_demo_runs_to_its_end() {
        let (gateway, _) = start().await;
        demo::run(gateway).await.unwrap();
    }

    fn key_of(name: &str) -> Key {
        let peer = ConnectInfo(SocketAddr::from(([203, 0, 113, 9], 40_000)));
        let (parts, ()) = Request::get("/")
            .header("x-api-key", name)
            .extension(peer)
            .body(())
            .unwrap()
            .into_parts();
        limits::key(&parts).unwrap()
    }
}
