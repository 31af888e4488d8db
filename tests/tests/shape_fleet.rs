//! Three processes share one pace: an upstream counts no more calls than promised, whichever process makes them.
//!
//! This program starts itself again as the processes of the fleet, so it has a `main` of its own.

#![allow(clippy::print_stdout, reason = "it is its own test runner")]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/own_runner.rs"]
mod own_runner;

use std::env;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use counting::Upstream;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Server;
use throttle_tower::shape::Shaper;
use throttle_tower::{LeakyBucket, OnError, Rate, ShapeLayer};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};

const PROCESSES: usize = 3;
const CALLERS: usize = 8;
/// Calls of each process.
const CALLS: usize = 120;
/// The most calls in a period. The headroom covers how much more a busy machine may delay one call than another.
const COUNT: u64 = 80;
const PERIOD: Duration = Duration::from_secs(1);
const HEADROOM: Duration = Duration::from_millis(250);

const NAME: &str = "shape_an_upstream_never_counts_more_than_promised_from_three_processes";

#[tokio::main]
async fn main() -> ExitCode {
    if let Ok(upstream) = env::var("SHAPE_FLEET_UPSTREAM") {
        call(&env::var("SHAPE_FLEET_REDIS").expect("the URL of a server"), &upstream).await;
        return ExitCode::SUCCESS;
    }
    own_runner::run(NAME, check).await
}

async fn check() -> Result<(), String> {
    let redis = Server::start();
    let upstream = Upstream::start().await;
    let start = Instant::now();
    let fleet: Vec<Child> = (0..PROCESSES).map(|_| start_one(&redis.url(), &upstream)).collect();
    for process in fleet {
        let ended = tokio::task::spawn_blocking(|| process.wait_with_output()).await.expect("no panic");
        if !ended.expect("a process of the fleet").status.success() {
            return Err("a process of the fleet failed".to_owned());
        }
    }
    let took = start.elapsed();
    if upstream.count() != PROCESSES * CALLS {
        return Err(format!("{} of {} calls have arrived", upstream.count(), PROCESSES * CALLS));
    }
    let most = upstream.most_within(PERIOD);
    if most > COUNT as usize {
        return Err(format!("{most} in a period of {PERIOD:?}, promised {COUNT}"));
    }
    // A fleet that is merely slow would pass without this check.
    let due = (PERIOD + HEADROOM) * (PROCESSES * CALLS) as u32 / COUNT as u32;
    if took > due * 3 / 2 {
        return Err(format!("{took:?} for what is due in {due:?}"));
    }
    Ok(())
}

fn start_one(redis: &str, upstream: &Upstream) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .env("SHAPE_FLEET_REDIS", redis)
        .env("SHAPE_FLEET_UPSTREAM", format!("http://{}/", upstream.address))
        .stdin(Stdio::null())
        .spawn()
        .expect("a process of the fleet")
}

/// The work of each process: each of its callers makes its next call after its last response.
async fn call(redis: &str, upstream: &str) {
    let bucket = LeakyBucket::new(Rate::new(COUNT, PERIOD)).max_wait(Duration::from_secs(60));
    // This test checks the pace, not how soon a busy machine responds.
    let connector = Single::new(redis).expect("a valid URL");
    let backend = RedisBackend::builder(connector).deadline(Duration::from_secs(2)).build().expect("valid options");
    let shaper = Shaper::builder(bucket).headroom(HEADROOM).name("fleet").on_error(OnError::Closed).backend(backend);
    let layer = ShapeLayer::of(shaper.build().expect("a valid configuration"));
    let mut calling = JoinSet::new();
    for _ in 0..CALLERS {
        let service = layer.layer(Client::builder(TokioExecutor::new()).build_http());
        let upstream = upstream.to_owned();
        calling.spawn(async move {
            for _ in 0..CALLS / CALLERS {
                let request = Request::get(&upstream).body(Empty::<Bytes>::new()).expect("a valid request");
                let answer = service.clone().oneshot(request).await.expect("an answer");
                assert_eq!(answer.status(), StatusCode::OK);
            }
        });
    }
    calling.join_all().await;
}
