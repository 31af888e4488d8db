//! Processes that call one upstream at one pace, which they share through Redis. Run it with
//! `cargo run -p fleet`.

mod redis;
mod settings;
mod upstream;
mod view;
mod worker;

use std::process::{ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;
use redis::Redis;
use settings::Settings;
use tokio::process::{Child, Command};
use tokio::time::sleep_until;
use view::View;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let settings = Settings::parse();
    if let Some(number) = settings.worker {
        worker::run(number, &settings).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let was_kept = lead(&settings).await?;
    Ok(if was_kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the upstream and its callers. Returns whether the upstream saw at most what was promised.
async fn lead(settings: &Settings) -> anyhow::Result<bool> {
    let mut redis = Redis::find(settings.redis_url.as_deref()).await?;
    let (address, arrivals) = upstream::start().await?;
    let mut workers = Vec::new();
    for number in 1..=settings.workers {
        workers.push(spawn(
            number,
            settings,
            &format!("http://{address}/"),
            &redis.url,
        )?);
    }

    let mut view = View::new(arrivals, settings);
    view.print_head();
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    for second in 1..=settings.seconds {
        if settings.has_outage() && second == settings.seconds / 3 + 1 {
            redis.stop().await?;
            view.redis_went_away(Instant::now());
        }
        if settings.has_outage() && second == settings.seconds * 2 / 3 + 1 {
            redis.start()?;
            view.redis_came_back(Instant::now());
        }
        tokio::select! {
            () = sleep_until(view.end_of(second).into()) => view.print_second(second),
            _ = &mut stop => break,
        }
    }
    println!();
    let end = Instant::now();
    for worker in &mut workers {
        // A worker ends when its pipe is closed.
        drop(worker.stdin.take());
        worker.wait().await?;
    }
    Ok(view.print_verdict(end))
}

fn spawn(
    number: u32,
    settings: &Settings,
    upstream: &str,
    redis_url: &str,
) -> Result<Child, std::io::Error> {
    Command::new(std::env::current_exe()?)
        .args(["--worker", &number.to_string(), "--upstream", upstream])
        .args([
            "--rate",
            &settings.rate.to_string(),
            "--workers",
            &settings.workers.to_string(),
        ])
        // Every user of the machine can read arguments, and a URL may hold a password.
        .env("REDIS_URL", redis_url)
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}
