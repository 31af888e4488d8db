//! Processes that call one upstream at one pace, shared through Redis. Run with `cargo run -p fleet`.

mod redis;
mod settings;
mod upstream;
mod view;
mod worker;

use std::error::Error;
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use redis::Redis;
use settings::{Settings, USAGE};
use tokio::process::{Child, Command};
use tokio::time::sleep_until;
use view::View;
use worker::Orders;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.first().map(String::as_str) {
        None => lead().await,
        Some("worker") => match Orders::from_args(&args) {
            Some(orders) => worker::run(orders).await.map(|()| true),
            None => Err("a worker is started by the demo itself".into()),
        },
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

/// Runs the upstream and the fleet. Whether the upstream saw no more than was promised.
async fn lead() -> Result<bool, Box<dyn Error>> {
    let settings = Settings::from_env()?;
    let mut redis = Redis::find(settings.redis_url.clone()).await?;
    let (address, arrivals) = upstream::start().await?;
    let mut workers = Vec::new();
    for number in 1..=settings.workers {
        let (rate, upstream) = (settings.rate, format!("http://{address}/"));
        workers.push(spawn(&Orders { number, workers: settings.workers, rate, upstream }, &redis.url)?);
    }

    let mut view = View::new(arrivals, &settings);
    view.print_head();
    let mut stop = std::pin::pin!(stopped());
    for second in 1..=settings.seconds {
        if settings.outage && second == settings.seconds / 3 + 1 {
            redis.stop().await?;
            view.redis_went_away(Instant::now());
        }
        if settings.outage && second == settings.seconds * 2 / 3 + 1 {
            redis.start()?;
            view.redis_came_back(Instant::now());
        }
        tokio::select! {
            () = sleep_until(view.end_of(second).into()) => view.print_second(second),
            () = &mut stop => break,
        }
    }
    println!();
    let end = Instant::now();
    for worker in &mut workers {
        // It ends when its pipe is closed.
        drop(worker.stdin.take());
        worker.wait().await?;
    }
    Ok(view.print_verdict(end))
}

fn spawn(orders: &Orders, redis_url: &str) -> Result<Child, std::io::Error> {
    let mut worker = Command::new(std::env::current_exe()?);
    // Not as an argument: those are for everybody to see, and a URL may have a password in it.
    worker.env("REDIS_URL", redis_url);
    worker.args(orders.to_args()).stdin(Stdio::piped()).kill_on_drop(true).spawn()
}

/// Ctrl-C, or the request to end. Without signal handlers there is nothing to wait for but the end.
async fn stopped() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => _ = signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
}
