//! Clients that show the limits at work.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

pub async fn run(gateway: SocketAddr) -> anyhow::Result<()> {
    say("a short answer: most of the estimate is given back");
    read(ask(gateway, "ada", "tell+me+about+rivers", 100).await?).await?;

    say(
        "a long answer outgrows its estimate: as much again is reserved while it streams, and the \
            rest is given back",
    );
    read(ask(gateway, "ada", "a+long+story", 150).await?).await?;

    say("a client that disconnects midway pays for what was sent until then");
    let mut response = ask(gateway, "ada", "a+long+story", 200).await?;
    for _ in 0..20 {
        response.frame().await;
    }
    drop(response);
    pause().await;

    say("the model fails: nothing is charged, and no request is counted");
    read(ask(gateway, "ada", "crash", 100).await?).await?;

    say(
        "estimates of 251 fit twice into a minute; the third request is refused, with the time to \
            retry",
    );
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(ask(gateway, "bob", "hello", 500).await?);
    }
    for response in waiting {
        read(response).await?;
    }

    say("the answers were short and most of their estimates came back, so it fits now");
    read(ask(gateway, "bob", "hello", 500).await?).await
}

fn say(what: &str) {
    println!("\n== {what}");
}

/// Waits long enough for the gateway to notice what has happened and to print it.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(150)).await;
}

async fn ask(
    gateway: SocketAddr,
    key: &str,
    prompt: &str,
    max_tokens: u64,
) -> anyhow::Result<Response<Body>> {
    let uri = format!("http://{gateway}/v1/complete?max_tokens={max_tokens}&prompt={prompt}");
    let request = Request::get(uri)
        .header("x-api-key", key)
        .body(Body::empty())?;
    // Each request has a connection of its own, so that dropping the response disconnects.
    let response = Client::builder(TokioExecutor::new())
        .build_http()
        .request(request)
        .await?;
    Ok(response.map(Body::new))
}

async fn read(response: Response<Body>) -> anyhow::Result<()> {
    let (head, body) = response.into_parts();
    let words = body
        .collect()
        .await?
        .to_bytes()
        .iter()
        .filter(|byte| **byte == b'\n')
        .count();
    pause().await;
    let header = |name| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or("-")
    };
    let left = header("x-ratelimit-remaining-tokens");
    match head.status.as_u16() {
        200 => println!("-> 200, {words} words; tokens left: {left}"),
        429 => println!(
            "-> 429; tokens left: {left}; retry-after: {}",
            header("retry-after")
        ),
        other => println!("-> {other}"),
    }
    Ok(())
}
