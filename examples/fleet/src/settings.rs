//! The command line and the environment.

use clap::Parser;

/// Processes that call one upstream at one pace, which they share through Redis.
#[derive(Parser)]
pub struct Settings {
    /// Calls a second that all processes make together
    #[arg(long, env, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=1000))]
    pub rate: u64,
    /// Processes
    #[arg(long, env, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    pub workers: u32,
    /// How long the demo runs, in seconds
    #[arg(long, env, default_value_t = 15, value_parser = clap::value_parser!(u64).range(5..=3600))]
    pub seconds: u64,
    /// Keep the demo's own Redis running; without this it is stopped for the middle third
    #[arg(long)]
    pub no_outage: bool,
    /// A Redis to use, which is never stopped; without it the demo starts a redis-server on a free
    /// port
    #[arg(long, env, hide_env_values = true)]
    pub redis_url: Option<String>,
    /// Run as one worker with this number; the demo starts its workers with it
    #[arg(long, hide = true)]
    pub worker: Option<u32>,
    /// The upstream that a worker calls
    #[arg(long, hide = true, requires = "worker", default_value = "")]
    pub upstream: String,
}

impl Settings {
    /// Whether the demo stops Redis for a while.
    pub fn has_outage(&self) -> bool {
        self.redis_url.is_none() && !self.no_outage
    }
}
