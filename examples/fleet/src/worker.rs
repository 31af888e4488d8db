//! One process of the fleet: it calls the upstream as fast as the shared pace lets it.

use std::error::Error;
use std::time::Duration;

use reqwest::{Client, Request, Url};
use throttle_redis::RedisBackend;
use throttle_tower::shape::{Shape, ShapeError, Shaper};
use throttle_tower::{LeakyBucket, OnError, Rate, ShapeLayer};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt};

/// Calls that a worker makes at once: they wait in the shared schedule. It is few, because who was told his turn by Redis
/// does not hear of it when a share takes over, nor the other way round.
const CALLS_AT_ONCE: usize = 4;

/// What the parent tells a worker.
pub struct Orders {
    pub number: u32,
    pub workers: u32,
    pub rate: u64,
    pub upstream: String,
}

impl Orders {
    /// As arguments, of which the first says that this process is a worker.
    pub fn to_args(&self) -> [String; 5] {
        let Self { number, workers, rate, upstream } = self;
        ["worker".to_owned(), number.to_string(), workers.to_string(), rate.to_string(), upstream.clone()]
    }

    pub fn from_args(args: &[String]) -> Option<Self> {
        let [_, number, workers, rate, upstream] = args else { return None };
        let (number, workers, rate) = (number.parse().ok()?, workers.parse().ok()?, rate.parse().ok()?);
        Some(Self { number, workers, rate, upstream: upstream.clone() })
    }
}

type Paced = Shape<Client, Request, RedisBackend>;

fn paced(orders: &Orders) -> Result<Paced, Box<dyn Error>> {
    let bucket = LeakyBucket::new(Rate::per_second(orders.rate)).max_wait(Duration::from_secs(2));
    let shaper = Shaper::builder(bucket)
        // Those who name it so share it.
        .name("fleet-example")
        // While Redis is away, each process goes on by its part of the pace.
        .on_error(OnError::local(orders.workers))
        // Redis answers, and calls travel, at different speeds: most of all on one machine that does all of it.
        .headroom(Duration::from_millis(50))
        .backend(RedisBackend::new(&std::env::var("REDIS_URL")?)?)
        .build()?;
    Ok(ShapeLayer::of(shaper).layer(Client::new()))
}

pub async fn run(orders: Orders) -> Result<(), Box<dyn Error>> {
    let client = paced(&orders)?;
    let mut url = Url::parse(&orders.upstream)?;
    url.set_query(Some(&orders.number.to_string()));
    let mut calls = JoinSet::new();
    for _ in 0..CALLS_AT_ONCE {
        calls.spawn(keep_calling(client.clone(), url.clone()));
    }
    // Until the parent closes the pipe, or is gone. Ctrl-C reaches this process too; that is for the parent to act upon.
    let ignored = tokio::spawn(async { while tokio::signal::ctrl_c().await.is_ok() {} });
    let mut stdin = tokio::io::stdin();
    while stdin.read(&mut [0]).await.is_ok_and(|read| read > 0) {}
    calls.shutdown().await;
    ignored.abort();
    let stats = client.layer().stats();
    println!(
        "worker {}: {} calls left, {} decided without Redis, {} dropped at the end",
        orders.number, stats.sent, stats.degraded, stats.cancelled
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
