//! A batch of calls through a paced reqwest client. Run it with `cargo run -p reqwest-client`.

mod progress;
mod settings;
mod summary;
mod upstream;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use progress::Progress;
use reqwest::{Client, Request, Response, StatusCode, Url};
use settings::Settings;
use summary::Summary;
use throttle_tower::shape::{Shape, ShapeError, Shaper};
use throttle_tower::{ConfigError, Pace, Rate, ShapeLayer};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tower::{Layer, Service, ServiceExt};

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let was_kept = run(&Settings::parse()).await?;
    Ok(if was_kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A client that keeps to the pace. Its clones share the pace.
type Paced = Shape<Client, Request, Response>;

fn paced(client: Client, settings: &Settings) -> Result<Paced, ConfigError> {
    let pace = Pace::new(Rate::per_second(settings.rate)).max_wait(settings.max_wait);
    // With the default headroom of 5 ms, this is `ShapeLayer::new(pace)?`.
    let shaper = Shaper::builder(pace).headroom(settings.headroom).build()?;
    let layer = ShapeLayer::of(shaper)
        // Each host has a schedule of its own.
        .by(|request: &Request| host(request.url()).into())
        // A call whose turn comes after its own timeout fails at once.
        .deadline(|request: &Request| request.timeout().copied())
        // Keeps the waits that the upstream states, and calls carefully when little is left.
        .obey_upstream_of(|response: &Response| Some((response.status(), response.headers())));
    Ok(layer.layer(client))
}

/// Returns the key of a call: its host.
fn host(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

/// Makes all calls. Returns whether each succeeded or was refused here, and the upstream saw at
/// most what was promised.
async fn run(settings: &Settings) -> anyhow::Result<bool> {
    let mut client = Client::builder();
    let mut arrivals = None;
    let urls = match &settings.url {
        Some(url) => vec![url.clone()],
        None => {
            let (address, seen) = upstream::start(settings.rate).await?;
            arrivals = Some(seen);
            let hosts = [upstream::OPEN, upstream::STRICT];
            client = hosts
                .into_iter()
                .fold(client, |client, host| client.resolve(host, address));
            hosts
                .map(|host| Url::parse(&format!("http://{host}:{}/", address.port())))
                .into_iter()
                .collect::<Result<_, _>>()?
        }
    };
    let mut client = paced(client.build()?, settings)?;
    let hosts: Vec<String> = urls.iter().map(host).collect();
    let (count, rate, number) = (settings.count, settings.rate, hosts.len());
    eprintln!("{count} calls to {number} host(s), {rate} a second each; Ctrl-C ends it");

    let began = Instant::now();
    let mut calls = JoinSet::new();
    for (number, url) in (1..=count).zip(urls.iter().cycle()) {
        let mut request = Request::new(reqwest::Method::GET, url.clone());
        if number % 10 < 2 {
            *request.timeout_mut() = Some(settings.timeout);
        }
        // `call` reserves the turn, so calls leave in the order of this loop; the spawned task only
        // waits.
        let response = client.ready().await?.call(request);
        calls.spawn(read(response));
    }

    let mut summary = Summary::default();
    let progress = Progress::new(count);
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            done = calls.join_next() => match done {
                Some(answer) => summary.note(answer?),
                None => break,
            },
            _ = tick.tick() => progress.show(client.layer().shaper(), &hosts),
            _ = &mut stop => {
                // A call that is dropped while it waits gives its turn back.
                calls.shutdown().await;
                break;
            }
        }
    }
    progress.show(client.layer().shaper(), &hosts);
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
