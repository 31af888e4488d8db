//! The command line and the environment.

use std::time::Duration;

use clap::Parser;
use reqwest::Url;

/// A batch of calls at a steady pace.
#[derive(Parser)]
pub struct Settings {
    /// Calls to make
    #[arg(long, env, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub count: u64,
    /// Calls a second to each host
    #[arg(long, env, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rate: u64,
    /// Seconds that a call may wait for its turn, 0 to 3600
    #[arg(long, env, default_value = "30", value_parser = seconds)]
    pub max_wait: Duration,
    /// Milliseconds by which calls may differ in how long they travel, 0 to 1000
    #[arg(long, env, default_value = "20", value_parser = milliseconds)]
    pub headroom: Duration,
    /// Timeout of two calls in ten, in seconds, 0 to 3600
    #[arg(long, env, default_value = "2", value_parser = seconds)]
    pub timeout: Duration,
    /// The server to call, as in http://127.0.0.1:3000/; without it, the demo starts one
    #[arg(long, env)]
    pub url: Option<Url>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    bounded(text, 3600).map(Duration::from_secs)
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    bounded(text, 1000).map(Duration::from_millis)
}

fn bounded(text: &str, most: u64) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("{text:?} is not a whole number from 0 to {most}"))
}
