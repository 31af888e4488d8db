//! The upstream's limits, which both sides know: so many requests and so many tokens in each
//! period.

use std::time::Duration;

use clap::Parser;
use throttle_tower::Rate;

/// Calls to a model that limits requests and tokens.
#[derive(Clone, Copy, Debug, Parser)]
pub struct Settings {
    /// Calls to make with the shaper, and again without it
    #[arg(long, env, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub count: u64,
    /// Requests that the model admits in a period
    #[arg(long, env, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub requests: u64,
    /// Tokens that it admits in a period
    #[arg(long, env, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(2_000..=10_000_000))]
    pub tokens: u64,
    /// Seconds in a period; those of a real model have 60
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub period: u64,
}

impl Settings {
    pub fn requests(&self) -> Rate {
        Rate::new(self.requests, self.period())
    }

    pub fn tokens(&self) -> Rate {
        Rate::new(self.tokens, self.period())
    }

    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period)
    }
}

/// Tokens of a prompt: about four letters make one.
pub fn prompt_tokens(prompt: &str) -> u64 {
    prompt.len().div_ceil(4) as u64
}
