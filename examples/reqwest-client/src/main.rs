//! A batch of calls through a `reqwest::Client` at a steady pace. Run with `cargo run -p reqwest-client`.

mod progress;
mod settings;
mod summary;
mod upstream;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use progress::Progress;
use reqwest::{Client, Request, Response, StatusCode, Url};
use settings::{Settings, USAGE};
use summary::Summary;
use throttle_tower::shape::{HeadOf, Shape, ShapeError, Shaper, TokioClock};
use throttle_tower::{ConfigError, LeakyBucket, MemoryBackend, Rate, ShapeLayer};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tower::{Layer, Service, ServiceExt};

#[tokio::main]
async fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        None => run().await,
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(true)
        }
        Some(_) => Err(USAGE.into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// A client that keeps to the pace. Its clones keep to it together.
type Paced = Shape<Client, Request, MemoryBackend<TokioClock>, HeadOf<Response>>;

fn paced(client: Client, settings: &Settings) -> Result<Paced, ConfigError> {
    let bucket = LeakyBucket::new(Rate::per_second(settings.rate)).max_wait(settings.max_wait);
    // Where the usual 5 ms of headroom do, this is `ShapeLayer::new(bucket)?`.
    let shaper = Shaper::builder(bucket).headroom(settings.headroom).build()?;
    let layer = ShapeLayer::of(shaper)
        // A schedule for each host.
        .by(|request: &Request| request.url().host_str().unwrap_or_default().into())
        // Whoever would wait longer than its own timeout is told so at once.
        .deadline(|request: &Request| request.timeout().copied())
        // `Retry-After` and `RateLimit` of the upstream hold, where they ask for less than the pace.
        .obey_upstream_of(|response: &Response| (response.status(), response.headers()));
    Ok(layer.layer(client))
}

async fn run() -> Result<bool, Box<dyn Error>> {
    let settings = Settings::from_env()?;
    let mut client = Client::builder();
    let mut arrivals = None;
    let urls = match &settings.url {
        Some(url) => vec![url.clone()],
        None => {
            let (address, seen) = upstream::start(settings.rate).await?;
            arrivals = Some(seen);
            let hosts = [upstream::OPEN, upstream::STRICT];
            client = hosts.into_iter().fold(client, |client, host| client.resolve(host, address));
            hosts
                .map(|host| Url::parse(&format!("http://{host}:{}/", address.port())))
                .into_iter()
                .collect::<Result<_, _>>()?
        }
    };
    let mut client = paced(client.build()?, &settings)?;
    let (count, rate, hosts) = (settings.count, settings.rate, urls.len());
    eprintln!("{count} calls to {hosts} host(s), {rate} a second each; Ctrl-C ends it");

    let began = Instant::now();
    let mut calls = JoinSet::new();
    for (number, url) in (1..=count).zip(urls.iter().cycle()) {
        let mut request = Request::new(reqwest::Method::GET, url.clone());
        if number % 10 < 2 {
            *request.timeout_mut() = Some(settings.patience);
        }
        // Places are taken in the order of these calls; what is spawned is the waiting.
        let response = client.ready().await?.call(request);
        calls.spawn(read(response));
    }

    let mut summary = Summary::default();
    let mut progress = Progress::new();
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(stopped());
    loop {
        tokio::select! {
            done = calls.join_next() => match done {
                Some(answer) => summary.note(answer?),
                None => break,
            },
            _ = tick.tick() => progress.show(&client.layer().stats(), count),
            () = &mut stop => {
                // Drops the calls: those that wait give their slots back.
                calls.shutdown().await;
                break;
            }
        }
    }
    progress.show(&client.layer().stats(), count);
    progress.end();
    summary.print(&client.layer().stats(), began.elapsed());
    let was_kept = arrivals.is_none_or(|arrivals| summary::print_arrivals(&arrivals, rate));
    Ok(was_kept && summary.errors == 0)
}

async fn read(
    response: impl Future<Output = Result<Response, ShapeError<reqwest::Error>>>,
) -> Result<StatusCode, ShapeError<reqwest::Error>> {
    let response = response.await?;
    let status = response.status();
    response.bytes().await.map_err(ShapeError::Inner)?;
    Ok(status)
}

async fn stopped() {
    // Without a signal handler there is nothing to wait for but the end.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
