//! One process of the fleet: it calls the upstream as fast as the shared pace permits.

use std::time::Duration;

use anyhow::Context;
use reqwest::{Client, Request, Response, Url};
use throttle_redis::RedisBackend;
use throttle_tower::shape::{Shape, ShapeError, Shaper};
use throttle_tower::{OnError, Pace, Rate, ShapeLayer};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt};

use crate::settings::Settings;

/// Calls that a worker makes at once; they wait in the shared schedule. The number is small,
/// because a call that already has its turn from Redis keeps it when this process's share takes
/// over, and the other way round.
const CALLS_AT_ONCE: usize = 4;

type Paced = Shape<Client, Request, Response>;

fn paced(settings: &Settings) -> anyhow::Result<Paced> {
    let redis_url = settings
        .redis_url
        .as_deref()
        .context("a worker is started by the demo itself")?;
    let pace = Pace::new(Rate::per_second(settings.rate)).max_wait(Duration::from_secs(2));
    let shaper = Shaper::builder(pace)
        // Processes that use the same name share one schedule.
        .name("fleet-example")
        // While Redis is away, each process keeps to its share of the pace.
        .on_error(OnError::local(settings.workers))
        // Covers the differences in how long Redis takes to answer and calls take to arrive. They
        // are large here, because one machine does everything.
        .headroom(Duration::from_millis(50))
        // A pause of one process holds in the others as well, for a minute at most.
        .share_pauses(Duration::from_secs(60))
        .backend(RedisBackend::new(redis_url)?)
        .build()?;
    let layer = ShapeLayer::of(shaper)
        // A refusal that names a wait, or a limit with nothing left, pauses the calls.
        .obey_upstream_of(|response: &Response| Some((response.status(), response.headers())));
    Ok(layer.layer(Client::new()))
}

pub async fn run(number: u32, settings: &Settings) -> anyhow::Result<()> {
    let client = paced(settings)?;
    let mut url = Url::parse(&settings.upstream)?;
    url.set_query(Some(&number.to_string()));
    let mut calls = JoinSet::new();
    for _ in 0..CALLS_AT_ONCE {
        calls.spawn(keep_calling(client.clone(), url.clone()));
    }
    // Runs until the parent closes the pipe or dies. Ctrl-C reaches this process too, but the
    // parent handles it.
    let ignored = tokio::spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
    let mut stdin = tokio::io::stdin();
    while stdin.read(&mut [0]).await.is_ok_and(|read| read > 0) {}
    calls.shutdown().await;
    ignored.abort();
    let stats = client.layer().stats();
    println!(
        "worker {}: {} calls sent, {} decided without Redis, {} dropped at the end",
        number, stats.sent, stats.degraded, stats.cancelled
    );
    Ok(())
}

async fn keep_calling(mut client: Paced, url: Url) {
    loop {
        let request = Request::new(reqwest::Method::GET, url.clone());
        let answer = match client.ready().await {
            Ok(client) => client.call(request).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => {}
            Err(ShapeError::QueueFull(full)) => {
                tokio::time::sleep(full.retry_after.unwrap_or(Duration::from_secs(1))).await;
            }
            Err(error) => {
                eprintln!("a call failed: {}", error.into_boxed());
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}
