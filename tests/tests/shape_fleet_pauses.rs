//! Three processes share one pace and their pauses: an upstream refuses one of them, and all three
//! stop.
//!
//! This program starts itself again as the processes of the fleet, so it has a `main` of its own.

#![allow(clippy::print_stdout, reason = "it is its own test runner")]

#[path = "support/own_runner.rs"]
mod own_runner;

use std::env;
use std::future::IntoFuture;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use throttle_redis::{RedisBackend, Single};
use throttle_test_servers::Server;
use throttle_tower::shape::Shaper;
use throttle_tower::{OnError, Pace, Rate, ShapeLayer};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};

const PROCESSES: usize = 3;
/// Callers of each process, so that some calls have their slots when the refusal comes.
const CALLERS: usize = 4;
const PER_SECOND: u64 = 60;
/// The upstream refuses one call of the first process when it has seen so many, and some of each
/// process.
const REFUSED: usize = 90;
/// Seconds.
const PAUSE: u64 = 4;

const NAME: &str =
    "shape_an_upstream_that_refuses_one_process_is_left_alone_by_all_within_a_second";

#[tokio::main]
async fn main() -> ExitCode {
    if let Ok(upstream) = env::var("SHAPE_FLEET_UPSTREAM") {
        call(
            &env::var("SHAPE_FLEET_REDIS").expect("the URL of a server"),
            &upstream,
        )
        .await;
        return ExitCode::SUCCESS;
    }
    own_runner::run(NAME, check).await
}

/// When calls of each process came, and when one was refused.
#[derive(Default)]
struct Seen {
    calls: Vec<(usize, Instant)>,
    refused_at: Option<Instant>,
}

impl Seen {
    fn between(&self, process: usize, from: Duration, to: Duration) -> Option<usize> {
        let refused_at = self.refused_at?;
        let is_within = |at: Instant| (refused_at + from..refused_at + to).contains(&at);
        Some(
            self.calls
                .iter()
                .filter(|(by, at)| *by == process && is_within(*at))
                .count(),
        )
    }
}

async fn check() -> Result<(), String> {
    let redis = Server::start();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let upstream = start_upstream(&seen).await;
    let mut fleet: Vec<Child> = (0..PROCESSES)
        .map(|number| start_one(&redis.url(), &upstream, number))
        .collect();
    let deadline = Instant::now() + Duration::from_secs(30);
    let is_over = || {
        let seen = seen.lock().expect("no panic");
        seen.refused_at
            .is_some_and(|at| at.elapsed() > Duration::from_secs(PAUSE + 2))
    };
    while !is_over() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for process in &mut fleet {
        process.kill().expect("a process of the fleet");
        process.wait().expect("a process of the fleet");
    }
    let seen = seen.lock().expect("no panic");
    for process in 0..PROCESSES {
        let between = |from: u64, to: u64| {
            seen.between(process, Duration::from_secs(from), Duration::from_secs(to))
        };
        let before = seen
            .calls
            .iter()
            .filter(|(by, at)| *by == process && Some(*at) < seen.refused_at)
            .count();
        let (paused, after) = (between(1, PAUSE), between(PAUSE, PAUSE + 2));
        let refused = if process == 0 { " (refused)" } else { "" };
        println!(
            "process {process}{refused}: {before} calls before, {paused:?} from 1 s to {PAUSE} s, \
                {after:?} after"
        );
        if before == 0 || paused != Some(0) || after.is_none_or(|after| after == 0) {
            return Err(format!(
                "process {process}: {before} before, {paused:?} during the pause, {after:?} after \
                    it"
            ));
        }
    }
    Ok(())
}

/// Returns its address.
async fn start_upstream(seen: &Arc<Mutex<Seen>>) -> String {
    let seen = Arc::clone(seen);
    let answer = move |Path(process): Path<usize>| {
        let mut seen = seen.lock().expect("no panic");
        seen.calls.push((process, Instant::now()));
        let all_call = (0..PROCESSES).all(|number| seen.calls.iter().any(|(by, _)| *by == number));
        let is_refused =
            process == 0 && seen.calls.len() >= REFUSED && all_call && seen.refused_at.is_none();
        let mut headers = HeaderMap::new();
        if is_refused {
            seen.refused_at = Some(Instant::now());
            headers.insert("retry-after", PAUSE.into());
        }
        let status = if is_refused {
            StatusCode::TOO_MANY_REQUESTS
        } else {
            StatusCode::OK
        };
        std::future::ready((status, headers))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(
        axum::serve(listener, Router::new().route("/{process}", get(answer))).into_future(),
    );
    format!("http://{address}")
}

fn start_one(redis: &str, upstream: &str, number: usize) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .env("SHAPE_FLEET_REDIS", redis)
        .env("SHAPE_FLEET_UPSTREAM", format!("{upstream}/{number}"))
        .stdin(Stdio::null())
        .spawn()
        .expect("a process of the fleet")
}

/// The work of each process: each of its callers makes its next call after its last response, until
/// the process ends.
async fn call(redis: &str, upstream: &str) {
    let pace = Pace::new(Rate::per_second(PER_SECOND)).max_wait(Duration::from_secs(60));
    // A busy machine may take its time.
    let connector = Single::new(redis).expect("a valid URL");
    let backend = RedisBackend::builder(connector)
        .deadline(Duration::from_secs(2))
        .build()
        .expect("valid options");
    let shaper = Shaper::builder(pace)
        .name("fleet")
        .share_pauses(Duration::from_secs(60));
    let shaper = shaper
        .on_error(OnError::Closed)
        .backend(backend)
        .build()
        .expect("a valid configuration");
    let layer = ShapeLayer::of(shaper).obey_upstream();
    let mut calling = JoinSet::new();
    for _ in 0..CALLERS {
        let service = layer.layer(Client::builder(TokioExecutor::new()).build_http());
        let upstream = upstream.to_owned();
        calling.spawn(async move {
            loop {
                let request = Request::get(&upstream)
                    .body(Empty::<Bytes>::new())
                    .expect("a valid request");
                // A busy machine may be too slow for one of them.
                drop(service.clone().oneshot(request).await);
            }
        });
    }
    calling.join_all().await;
}
