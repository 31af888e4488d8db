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
