//! A gateway to a model, limited by requests and tokens. Run with `cargo run`, or `cargo run -- --demo`.

mod board;
mod demo;
mod limits;
mod model;
mod proxy;

use std::env::VarError;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use axum::Router;
use throttle_tower::MemoryBackend;
use tokio::net::TcpListener;

use board::Board;
use limits::Left;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let demo = std::env::args().any(|argument| argument == "--demo");
    let (model, gateway) = (listen(0).await?, listen(if demo { 0 } else { port()? }).await?);
    let (model_address, address) = (model.local_addr()?, gateway.local_addr()?);

    let memory = MemoryBackend::new();
    let board = Board::new(Left::new(&memory)?);
    let app = proxy::app(limits::layer(&memory)?, model_address, board.clone());
    let model = tokio::spawn(serve(model, model::app()));

    println!("a model that is none on http://{model_address}, and the gateway to it on http://{address}");
    if !demo {
        println!("try, several times and with other numbers:");
        println!("  curl -iN -H 'x-api-key: ada' 'http://{address}/v1/complete?max_tokens=120&prompt=a+long+story'");
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

async fn listen(port: u16) -> Result<TcpListener, String> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .await
        .map_err(|error| format!("cannot listen on 127.0.0.1:{port}: {error}; choose another port with PORT=…"))
}

async fn serve(listener: TcpListener, app: Router) -> Result<(), std::io::Error> {
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}

fn port() -> Result<u16, String> {
    match std::env::var("PORT") {
        Err(VarError::NotPresent) => Ok(3000),
        port => {
            let port = port.unwrap_or_default();
            port.parse().map_err(|_| format!("PORT is {port:?}: it must be a number from 0 to 65535"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::http::{Request, StatusCode};
    use http_body_util::BodyExt;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    use throttle_tower::Key;

    use super::*;

    /// A gateway to a model, and what a key has left.
    async fn start() -> (SocketAddr, Left) {
        let (model, gateway) = (listen(0).await.unwrap(), listen(0).await.unwrap());
        let (model_address, address) = (model.local_addr().unwrap(), gateway.local_addr().unwrap());
        let memory = MemoryBackend::new();
        let left = Left::new(&memory).unwrap();
        let app = proxy::app(limits::layer(&memory).unwrap(), model_address, Board::new(left.clone()));
        tokio::spawn(serve(model, model::app()));
        tokio::spawn(serve(gateway, app));
        (address, left)
    }

    async fn ask(gateway: SocketAddr, query: &str) -> (StatusCode, u64) {
        let uri = format!("http://{gateway}/v1/complete?{query}");
        let request = Request::get(uri).header("x-api-key", "ada").body(Body::empty()).unwrap();
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, body.iter().filter(|byte| **byte == b'\n').count() as u64)
    }

    #[tokio::test]
    async fn the_month_is_charged_for_what_the_model_said_and_not_for_what_was_estimated() {
        let (gateway, left) = start().await;
        let key = key_of("ada");
        let before = left.of(&key)[1];
        for (query, prompt) in [("max_tokens=60&prompt=a+long+story", 3), ("max_tokens=400&prompt=hello", 1)] {
            let month = left.of(&key)[1];
            let (status, words) = ask(gateway, query).await;
            assert_eq!(status, StatusCode::OK);
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(month - left.of(&key)[1], prompt + words, "{query}");
        }
        let month = left.of(&key)[1];
        assert!(month < before);
        assert_eq!(ask(gateway, "max_tokens=100&prompt=crash").await.0, StatusCode::BAD_GATEWAY);
        assert_eq!(left.of(&key)[1], month, "a failure costs nothing");
    }

    #[tokio::test]
    async fn the_demo_runs_to_its_end() {
        let (gateway, _) = start().await;
        demo::run(gateway).await.unwrap();
    }

    fn key_of(name: &str) -> Key {
        let (parts, ()) = Request::get("/").header("x-api-key", name).body(()).unwrap().into_parts();
        limits::key(&parts).unwrap()
    }
}
